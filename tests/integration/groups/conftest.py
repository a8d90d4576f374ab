"""Databases for races between groups: one that all tests share, and another one whose functions may be changed."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from log.conftest import Connection, Connections
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock import sql as schema


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


@pytest.fixture(scope="session")
def mutable_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """A migrated database for the whole run, in which functions are changed and nothing else is tested."""
    name = Identifier(f"penstock_mutable_{uuid4().hex[:12]}")
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, Identifier(penstock_template)))
        connection.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        yield make_conninfo(penstock_server, dbname=name.as_string().strip('"'))
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def fresh(mutable_dsn: str) -> Iterator[Connections]:
    """Connections to an empty penstock whose functions may be changed; it begins with all of them as they are."""
    with psycopg.connect(mutable_dsn) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock' AND tablename <> 'migrations'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(SQL("DELETE FROM penstock.{}").format(Identifier(table)))
        connection.execute(schema.repeatable().encode())
    with Connections(mutable_dsn) as opener:
        yield opener
