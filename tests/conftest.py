"""Databases for tests: `penstock_dsn` of the plugin makes a new one each time, `dsn` empties one that all share.

A test that changes functions, tables or roles takes the first; all others take the second, which costs milliseconds.
Run by several processes, a file stays with one of them, and so do all tests of the shared Spark, which begin first.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

import java
from databases import Connection, Connections, empty
from penstock import Client
from penstock import sql as schema


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the conformance suite be run in full, which takes minutes more: `make conformance`."""
    parser.addoption("--every-way", action="store_true", help="run all of tests/conformance through every way in")


def pytest_configure() -> None:
    """Let every Spark that a test starts, and those of the commands it runs, begin quickly; let no example be late."""
    java.begin_quickly()
    # How long an example takes says how busy the machine is.
    hypothesis.settings.register_profile("penstock", deadline=None)
    hypothesis.settings.load_profile("penstock")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that all processes end together: with Spark, and what starts its own."""
    items.sort(key=lambda item: (_rank(item.nodeid), item.nodeid.startswith(CHECKS_OTHERS)))


LONGEST = ("tests/acceptance/test_bench.py", "tests/docs/test_examples.py")
# After all others of its process.
CHECKS_OTHERS = "tests/conformance/test_recorded.py"


def _rank(nodeid: str) -> int:
    process = _process_of(nodeid)
    if process == "spark":
        return 0
    return 1 if process.startswith(("tests/spark/", *LONGEST)) else 2 if process == "recorded" else 3


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let one process tell another what tests said and why they failed: some of it is half a character."""
    report = yield
    report.sections = [(title, _writable(said)) for title, said in report.sections]
    if report.longrepr is not None and _writable(why := str(report.longrepr)) != why:
        report.longrepr = _writable(why)
    return report


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


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
    if file.startswith("tests/spark/"):
        # Those that kill a Spark have one of their own.
        return nodeid if file.endswith("kills.py") else "spark"
    # One test checks what all others sent through a recorder.
    return "recorded" if file.startswith("tests/conformance/") and "recorded" in nodeid else file


@contextmanager
def _database(kind: str, server: str, template: str) -> Iterator[str]:
    name = Identifier(f"penstock_{kind}_{uuid4().hex[:12]}")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, Identifier(template)))
        connection.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        # A user called penstock would make tables of its own in our schema.
        connection.execute(SQL("ALTER DATABASE {} SET search_path = public").format(name))
        yield make_conninfo(server, dbname=name.as_string().strip('"'))
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="session")
def shared_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """A migrated database for the whole run."""
    with _database("shared", penstock_server, penstock_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def mutable_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """Another one, in which functions are changed and nothing else is tested."""
    with _database("mutable", penstock_server, penstock_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def cleaner(shared_dsn: str) -> Iterator[Connection]:
    """Who empties the shared database."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def dsn(shared_dsn: str, cleaner: Connection) -> str:
    """The DSN of an empty penstock."""
    empty(cleaner)
    return shared_dsn


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    """A connection of its own to the same database, which commits each statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def connections(dsn: str) -> Iterator[Connections]:
    """Opens as many connections to the same database as a test asks for."""
    with Connections(dsn) as opener:
        yield opener


@pytest.fixture
def fresh(mutable_dsn: str) -> Iterator[Connections]:
    """Connections to an empty penstock whose functions may be changed; it begins with all of them as they are."""
    with psycopg.connect(mutable_dsn) as connection:
        empty(connection)
        connection.execute(schema.repeatable().encode())
    with Connections(mutable_dsn) as opener:
        yield opener


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    """A client of an empty penstock."""
    with Client(dsn) as client:
        yield client
