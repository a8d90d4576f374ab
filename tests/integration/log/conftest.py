"""Connections beside the client's: to look on, to hold locks, to do what SQL callers do."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    """A connection of its own to the same database, which commits each statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def connections(dsn: str) -> Iterator["Connections"]:
    """Opens as many connections to the same database as a test asks for."""
    with Connections(dsn) as opener:
        yield opener


class Connections(contextlib.ExitStack):
    """Opens connections, and closes them when the test is over."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = dsn

    def open(self, **options: Any) -> Connection:
        connection: Connection = psycopg.connect(self.dsn, **options)
        self.callback(connection.close)
        return connection
