"""A database of its own for a run that must not meet other people's data."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from penstock.postgres.address import with_database


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """Create a database on the server of an address, and drop it in the end."""
    name = f"penstock_bench_{uuid4().hex[:8]}"
    _execute(url, "CREATE DATABASE {}", name)
    try:
        yield with_database(url, name)
    finally:
        _execute(url, "DROP DATABASE {} WITH (FORCE)", name)


def _execute(url: str, statement: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL(statement).format(Identifier(name)))
