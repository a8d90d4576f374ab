"""The processes of a chaos run: a server of its own, its maintenance, and clients; whoever is killed comes back."""

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from penstock import embedded

from .client import main
from .faults import ROLES, Fault

# A commit that was answered survives the server; whether it would survive the machine is not asked here.
_OPTIONS = "fsync=off full_page_writes=off"


class Crowd:
    """Who works, and who is killed."""

    def __init__(self, dsn: str, home: Path, notes: Path, seed: int) -> None:
        self._dsn, self._home, self._notes, self._seed = dsn, home, notes, seed
        self._context = multiprocessing.get_context("forkserver")
        # Imported once and inherited by all: they begin at once, and can be killed while they work.
        self._context.set_forkserver_preload(["pytest", "penstock.client.client"])
        self._processes: dict[int, BaseProcess] = {}
        self._started = 0
        self.killed: Counter[str] = Counter()
        # When the server was killed.
        self.crashes: list[float] = []

    def start_all(self) -> None:
        for place in range(-1, len(ROLES)):
            self._start(place)

    def suffer(self, fault: Fault) -> None:
        """Kill somebody; a client and maintenance are replaced, and its keeper starts the server again."""
        self.killed[fault.whom] += 1
        if fault.whom == "server":
            server = embedded.status(self._home).postgres
            if server is not None:
                self.crashes.append(time.time())
                os.kill(server, signal.SIGKILL)
            return
        place = -1 if fault.whom == "maintenance" else fault.place
        self._kill(place)
        self._start(place)

    def kill_all(self) -> None:
        for place in list(self._processes):
            self._kill(place)

    def _start(self, place: int) -> None:
        self._started += 1
        role, me = "maintenance" if place < 0 else ROLES[place], f"{self._seed}/c{self._started}"
        path = str(self._notes / f"{role}-c{self._started}")
        process = self._context.Process(target=main, args=(role, self._dsn, path, me), daemon=True)
        process.start()
        self._processes[place] = process

    def _kill(self, place: int) -> None:
        process = self._processes.pop(place)
        process.kill()
        process.join()


@contextmanager
def own_server() -> Iterator[tuple[Path, str]]:
    """Run a server that nobody else uses, in a folder that goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    # Run as root, the server is another user, who must be able to get here.
    folder.chmod(0o755)
    before = os.environ.get("PENSTOCK_POSTGRES_OPTIONS")
    os.environ["PENSTOCK_POSTGRES_OPTIONS"] = _OPTIONS
    try:
        with embedded.attach(folder / "home") as instance:
            yield folder / "home", instance.dsn
        embedded.stop(folder / "home", timeout=30)
    finally:
        if before is None:
            del os.environ["PENSTOCK_POSTGRES_OPTIONS"]
        else:
            os.environ["PENSTOCK_POSTGRES_OPTIONS"] = before
        shutil.rmtree(folder, ignore_errors=True)


def server_is_back(home: Path, seconds: float = 60) -> None:
    """Wait until the server runs, and fail if it does not."""
    deadline = time.monotonic() + seconds
    while embedded.status(home).postgres is None:
        assert time.monotonic() < deadline, "the server did not come back"
        time.sleep(0.05)
