"""Databases for tests: `penstock_dsn` of the plugin makes a new one each time, `dsn` empties one that all share.

A test that changes functions, tables or roles takes the first; all others take the second, which costs milliseconds.
Run by several processes, a file stays with one of them, and so do all tests of the shared Spark, which begin first.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock import Client


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the conformance suite be run in full: it takes minutes more, and has found nothing more so far."""
    parser.addoption("--every-way", action="store_true", help="run all of tests/conformance through every way in")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark, whose tests are the longest run; those with a Spark of their own come last."""
    items.sort(key=lambda item: (_process_of(item.nodeid) != "spark", "tests/spark/" in item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out to processes."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    # Tests that share what is slow to make stay together.
    scheduler._split_scope = _process_of
    return scheduler


def _process_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    # Those that kill a Spark have one of their own.
    return "spark" if file.startswith("tests/spark/") and not file.endswith("kills.py") else file


@pytest.fixture(scope="session")
def shared_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """A migrated database for the whole run."""
    name = Identifier(f"penstock_shared_{uuid4().hex[:12]}")
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, Identifier(penstock_template)))
        connection.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        # A user called penstock would make tables of its own in our schema.
        connection.execute(SQL("ALTER DATABASE {} SET search_path = public").format(name))
        yield make_conninfo(penstock_server, dbname=name.as_string().strip('"'))
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="session")
def cleaner(shared_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Who empties the shared database."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def dsn(shared_dsn: str, cleaner: psycopg.Connection[Any]) -> str:
    """The DSN of an empty penstock."""
    cleaner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    tables = cleaner.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'public'"
        " OR schemaname = 'penstock' AND tablename <> 'migrations'"
    ).fetchall()
    drops = {"public": SQL("DROP TABLE {} CASCADE"), "penstock": SQL("DELETE FROM {}")}
    # All in one statement: a round trip for each of thirty tables is most of what a short test takes.
    cleaner.execute(SQL("; ").join(drops[schema].format(Identifier(schema, table)) for schema, table in tables))
    return shared_dsn


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    """A client of an empty penstock."""
    with Client(dsn) as client:
        yield client
