"""A gateway as `penstock serve` starts it, and requests to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

LONGEST = 60.0


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class ServedGateway:
    """A process that serves, and what it has logged so far."""

    def __init__(self, dsn: str, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PENSTOCK_URL": dsn, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url.startswith("http"), self.lines
        eventually(lambda: self.get("/healthz").status == 200)

    def get(self, path: str, **headers: str) -> Answer:
        """Send a GET."""
        request = urllib.request.Request(self.url + path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=LONGEST) as response:
                return Answer(response.status, _lower(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read())
        except urllib.error.URLError:
            return Answer(0, {}, b"")

    def end(self) -> int:
        """Tell it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LONGEST)
        self._reader.join(LONGEST)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))
        self.process.stderr.close()


@contextmanager
def served(dsn: str, *options: str, **environment: str) -> Iterator[ServedGateway]:
    """A gateway that serves, and is ended in the end."""
    gateway = ServedGateway(dsn, *options, **environment)
    try:
        yield gateway
    finally:
        gateway.end()


def eventually(condition: Callable[[], object]) -> Any:
    """Wait for something to be so, and return it."""
    deadline = time.monotonic() + LONGEST
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "it has not become so"
        pause.wait(0.1)
    return found


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
