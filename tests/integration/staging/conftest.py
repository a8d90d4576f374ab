"""What tests of staging share: an empty penstock, and what a Spark job would send, as plain SQL."""

from collections.abc import Iterator

import psycopg
import pytest
from log.conftest import Connection, Connections


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
