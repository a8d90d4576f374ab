"""`penstock` on an empty database, in an environment of the test's own, and with an embedded server."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from acceptance.commandline import CommandLine
from penstock import embedded


@pytest.fixture
def penstock(dsn: str, tmp_path: Path) -> CommandLine:
    """The command on an empty penstock."""
    return CommandLine({"PENSTOCK_URL": dsn}, tmp_path)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., CommandLine]:
    """The command in an environment of the test's own."""
    return lambda **environment: CommandLine(environment, tmp_path)


@pytest.fixture
def empty_dsn(penstock_server: str) -> Iterator[str]:
    """A database without a schema."""
    name = f"penstock_empty_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        yield make_conninfo(penstock_server, dbname=name)
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture
def user(penstock_server: str) -> Iterator[str]:
    """A database user who may do nothing."""
    name = f"user-{uuid4().hex[:12]}"
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(Identifier(name)))
        yield name
        connection.execute(SQL("DROP ROLE {}").format(Identifier(name)))


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder for an embedded server; it is made once, because making one takes seconds."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-cli-"))
    # Run as root, the server is another user, who must be able to get here.
    folder.chmod(0o755)
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def embedded_penstock(home: Path, tmp_path: Path) -> Iterator[CommandLine]:
    """The command with the embedded server, which does not run at first."""
    embedded.stop(home)
    yield CommandLine({"PENSTOCK_HOME": str(home)}, tmp_path)
    embedded.stop(home)
