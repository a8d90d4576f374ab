"""Connections and clients for tests of calls that share a round trip."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from groups.conftest import fresh, mutable_dsn
from log.conftest import Connection, Connections

from penstock import AsyncClient

__all__ = ["fresh", "mutable_dsn"]


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    """A connection of its own, which commits each statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def connections(dsn: str) -> Iterator[Connections]:
    """Opens as many connections to the same database as a test asks for."""
    with Connections(dsn) as opener:
        yield opener


@pytest.fixture
async def many(dsn: str) -> AsyncIterator[AsyncClient]:
    """A client that many tasks use at once."""
    async with AsyncClient(dsn) as client:
        yield client
