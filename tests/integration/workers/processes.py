"""Worker processes, as `penstock worker` starts them, and what their handlers say."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import Client

APPS = Path(__file__).parent / "apps"
LONGEST = 30.0


class WorkerProcess:
    """A worker, and what it has said so far."""

    def __init__(self, dsn: str, app: str | Path, *options: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", "worker", str(APPS / app), *options]
        environment = {**os.environ, "PENSTOCK_URL": dsn, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until lines that have a text were said so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count(text) >= times or self._ended(), LONGEST), self.lines
        assert self._count(text) >= times, f"{text!r} was not said, but: {self.lines}"

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self._process.wait(LONGEST)
        self._reader.join(LONGEST)
        return code

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def _count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def _ended(self) -> bool:
        return not self._reader.is_alive() and self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.decode().rstrip("\n"))
                self._changed.notify_all()
        self._process.stdout.close()
        self._process.wait()
        with self._changed:
            self._changed.notify_all()


@contextmanager
def running(dsn: str, app: str | Path, *options: str) -> Iterator[WorkerProcess]:
    """A worker that has started, and is killed in the end."""
    worker = WorkerProcess(dsn, app, *options)
    try:
        worker.wait_for("working")
        yield worker
    finally:
        worker.kill()


def values(client: Client, queue: str, count: int, group: str = "test") -> list[Any]:
    """Wait for so many messages of a queue, and return their values."""
    found: list[Any] = []
    deadline = time.monotonic() + LONGEST
    while len(found) < count:
        assert time.monotonic() < deadline, f"{queue} has {found}"
        batch = client.pop(queue, group, wait=1, max_partitions=100)
        if batch is not None:
            with batch:
                found += [message.json() for message in batch]
    assert len(found) == count, found
    return found


def handled(client: Client, queue: str, group: str) -> None:
    """Wait until nothing is left to do for a group."""
    deadline = time.monotonic() + LONGEST
    pause = threading.Event()
    while client.lag(queue, group):
        assert time.monotonic() < deadline, f"{group} has not handled {queue}"
        pause.wait(0.02)
