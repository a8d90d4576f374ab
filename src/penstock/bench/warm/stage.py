"""What a run needs: a database, a Valkey and a dispatcher of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import valkey

from penstock.bench.databases import own_database
from penstock.client.client import Client
from penstock.embedded.binaries import installed_valkey
from penstock.errors import PenstockError
from penstock.postgres.migrate import migrate

_PATIENCE = 120.0


class Stage(NamedTuple):
    """Where to measure."""

    dsn: str
    valkey_url: str

    def warm(self) -> Client:
        """Open a client that takes from windows."""
        return Client(self.dsn, valkey_url=self.valkey_url, metrics=False)

    def cold(self) -> Client:
        """Open a client that knows PostgreSQL alone."""
        return Client(self.dsn, valkey_url="none", metrics=False)

    def bare(self) -> Any:
        """Open a client of Valkey."""
        return valkey.Valkey.from_url(self.valkey_url)


@contextmanager
def stage(url: str) -> Iterator[Stage]:
    """Make all of it, and remove it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pkb"))
    socket = folder / "s"
    program = str(installed_valkey().path)
    server = subprocess.Popen([program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
                              stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        address = f"unix://{socket}"
        wait_for(lambda: socket.exists())
        with own_database(url) as dsn:
            with psycopg.connect(dsn, autocommit=True) as connection:
                migrate(connection)
            dispatcher = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "dispatch"],
                env={**os.environ, "PENSTOCK_URL": dsn, "PENSTOCK_VALKEY_URL": address},
                stderr=subprocess.DEVNULL,
            )
            try:
                yield Stage(dsn, address)
            finally:
                dispatcher.terminate()
                dispatcher.wait()
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise PenstockError("the dispatcher did not do its work in time; run it by hand: penstock dispatch")
        time.sleep(0.02)
    return found


def fill(client: Client, queue: str, group: str, items: int) -> None:
    """Wait until the window of a group has so many items."""
    wait_for(lambda: any(
        each.queue == queue and each.name == group and (each.items or 0) >= items for each in client.windows()
    ))  # fmt: skip
