"""A real Valkey for tests, and dispatchers that keep windows in it."""

import asyncio
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import valkey

from penstock.embedded.binaries import installed_valkey
from penstock.postgres.async_database import AsyncDatabase
from penstock.settings import resolve
from penstock.valkey import find
from penstock.warm.dispatcher import Dispatcher
from penstock.warm.kept import Terms
from penstock.warm.links import AsyncLink

# Looks often, so that a test waits for nothing long, and has leases that outlast a loaded machine.
TERMS = Terms(hold_for=20.0, beat_every=0.5, grant=5.0, leave_within=0.3, find_every=0.1)
# For those that wait until something ends.
SHORT_TERMS = Terms(hold_for=3.0, beat_every=0.5, grant=2.0, leave_within=2.0, find_every=0.1)
_PATIENCE = 60.0


class ValkeyServer:
    """A server of its own, which can be killed and started again."""

    def __init__(self, *options: str) -> None:
        # Not below a test's folder: the path of a socket is short.
        self.folder = Path(tempfile.mkdtemp(prefix="pkv"))
        self.url = f"unix://{self.folder}/s"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        socket = self.folder / "s"
        socket.unlink(missing_ok=True)
        arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", str(self.folder), "--loglevel", "warning"]
        if "--save" not in self._options:
            arguments += ["--save", ""]
        program = str(installed_valkey().path)
        self.process = subprocess.Popen([program, *arguments, *self._options], stdout=subprocess.DEVNULL)
        wait_for(self._answers)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def client(self) -> Any:
        """Return a client of it."""
        return valkey.Valkey.from_url(self.url)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with valkey.Valkey.from_url(self.url) as client:
                return bool(client.ping())
        except valkey.ConnectionError:
            return False


class RunningDispatcher:
    """A dispatcher in a thread of its own."""

    def __init__(self, dsn: str, url: str, terms: Terms = TERMS) -> None:
        settings = resolve({"url": dsn, "valkey_url": url})
        self._settings = settings
        self._terms = terms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.dispatcher: Dispatcher | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        address = find(self._settings)
        assert address is not None
        database = AsyncDatabase(self._settings)
        self.dispatcher = Dispatcher(database, AsyncLink(address, starting=True), terms=self._terms)
        try:
            await self.dispatcher.run(self._stop)
        finally:
            await database.close()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Let it give its windows back, and wait for that."""
        wait_for(lambda: self._stop is not None)
        assert self._loop is not None
        assert self._stop is not None
        if not self.alive:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def dispatching(dsn: str, url: str, terms: Terms = TERMS) -> Iterator[RunningDispatcher]:
    """Run a dispatcher during the body."""
    running = RunningDispatcher(dsn, url, terms)
    try:
        yield running
    finally:
        running.close()


def wait_for(condition: Callable[[], Any], patience: float = _PATIENCE) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
