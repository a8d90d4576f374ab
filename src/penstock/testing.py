"""A fresh penstock for each test: the pytest plugin that comes with penstock.

    def test_order_is_pushed(penstock_client):
        place_order(penstock_client)
        assert penstock_client.read("orders", "0")[0].json() == {"id": 1}

One embedded PostgreSQL serves the whole test run, in a temporary folder; each test gets a database of its own,
copied from a migrated one. Set PENSTOCK_TEST_URL to use a server of yours instead; its user must be allowed to create
databases.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock import Client

# Tests may lose their data with the machine; they should not wait for the disk.
_FAST = "fsync=off full_page_writes=off synchronous_commit=off"


@pytest.fixture(scope="session")
def penstock_server() -> Iterator[str]:
    """The DSN of the server that test databases are made on."""
    given = os.environ.get("PENSTOCK_TEST_URL")
    if given:
        yield given
        return
    from penstock import embedded

    home = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    # Run as root, the server is another user, who must be able to get here.
    home.chmod(0o755)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # For the start of this server only: servers that a test starts by itself are none of our business.
            patch.setenv("PENSTOCK_POSTGRES_OPTIONS", _FAST)
            instance = embedded.attach(home)
        with instance:
            yield instance.dsn
        embedded.stop(home, timeout=30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def penstock_template(penstock_server: str) -> Iterator[str]:
    """The name of a migrated, empty database that others are copied from."""
    import psycopg

    from penstock.postgres.address import with_database
    from penstock.postgres.migrate import migrate

    name = f"penstock_template_{uuid4().hex[:12]}"
    _execute(penstock_server, "CREATE DATABASE {}", name)
    with psycopg.connect(with_database(penstock_server, name), autocommit=True) as connection:
        migrate(connection)
    yield name
    _execute(penstock_server, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def penstock_dsn(penstock_server: str, penstock_template: str) -> Iterator[str]:
    """The DSN of a fresh, migrated database, dropped after the test."""
    from penstock.postgres.address import with_database

    name = f"penstock_test_{uuid4().hex[:12]}"
    _execute(penstock_server, "CREATE DATABASE {} TEMPLATE {}", name, penstock_template)
    yield with_database(penstock_server, name)
    _execute(penstock_server, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def penstock_client(penstock_dsn: str) -> Iterator["Client"]:
    """A client of a fresh penstock."""
    from penstock import Client

    with Client(penstock_dsn) as client:
        yield client


@pytest.fixture(scope="session")
def penstock_spark() -> Iterator["SparkSession"]:
    """A Spark session on this machine that knows penstock, for the whole test run; it takes seconds to start."""
    import penstock.spark

    session = penstock.spark.session("penstock tests", "local[2]", {"spark.sql.ansi.enabled": "false"})
    yield session
    session.stop()


def _execute(server: str, statement: str, *names: str) -> None:
    import psycopg
    from psycopg.sql import SQL, Identifier

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL(statement).format(*map(Identifier, names)))
