"""Kills workers, dispatchers, Valkey and PostgreSQL, stops dispatchers, wipes Valkey or a key of it, all under items.

Checks that nothing is lost, pushed twice or out of order.

`make chaos-warm ITEMS=100000` runs it. tests/integration/warm/test_faults.py has each fault by itself, in small.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock import Client, embedded
from windows import ValkeyServer

from .crowd import own_server
from .items import _GROUPS, Workers, _left, _next, _push, check

_LONGEST = 3600.0
# Longer than a dispatcher holds a group without a heartbeat.
_STOPPED = 12.0
_WINDOW = 500
# Seconds between two kills of PostgreSQL: its keeper gives it up after six ends in a minute.
_SERVER_EVERY = 15.0


class Faults:
    """All that can go wrong, one thing at a time."""

    def __init__(self, workers: Workers, server: ValkeyServer, dsn: str, home: Path | None) -> None:
        self._workers = workers
        self._home = home
        self._server_at = time.monotonic()
        self._server = server
        self._environment = {**os.environ, "PENSTOCK_URL": dsn, "PENSTOCK_VALKEY_URL": server.url}
        self._dispatcher = self._start()
        self._waking: list[threading.Timer] = []
        self.counts: Counter[str] = Counter()

    def cause(self, chance: random.Random) -> str:
        """Cause one of them, and name it."""
        name = chance.choice(("worker", "worker", "wipe", "key", "valkey", "dispatcher", "stop", "postgres"))
        if name == "postgres" and (self._home is None or time.monotonic() < self._server_at):
            name = "worker"
        if name == "postgres" and self._home is not None:
            self._server_at = time.monotonic() + _SERVER_EVERY
            postmaster = embedded.status(self._home).postgres
            if postmaster is not None:
                os.kill(postmaster, signal.SIGKILL)
        elif name == "worker":
            self._workers.kill_one(chance)
        elif name == "wipe":
            self._server.client().flushall()
        elif name == "key":
            valkey = self._server.client()
            names = sorted(valkey.keys("penstock:*"))
            if names:
                valkey.delete(chance.choice(names))
        elif name == "valkey":
            self._server.kill()
            self._server.start()
        elif name == "dispatcher":
            self._dispatcher.kill()
            self._dispatcher.wait()
            self._dispatcher = self._start()
        else:
            stopped = self._dispatcher
            stopped.send_signal(signal.SIGSTOP)
            timer = threading.Timer(_STOPPED, stopped.send_signal, (signal.SIGCONT,))
            timer.start()
            self._waking.append(timer)
        self.counts[name] += 1
        return name

    def end(self) -> None:
        """Stop the dispatcher."""
        for timer in self._waking:
            timer.cancel()
        self._dispatcher.kill()
        self._dispatcher.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "penstock.cli", "dispatch"]
        return subprocess.Popen(command, env=self._environment, stderr=subprocess.DEVNULL)


def run(
    dsn: str, items: int, faults: int, seed: int, say: Callable[[str], None], home: Path | None = None
) -> Counter[str]:
    """Push items, cause about so many faults until all are handled, check; return what was caused how often.

    PostgreSQL is killed where `home` says which server of its own it is.
    """
    chance = random.Random(seed)
    server = ValkeyServer()
    os.environ["PENSTOCK_VALKEY_URL"] = server.url
    try:
        with tempfile.TemporaryDirectory() as folder, Client(dsn, valkey_url="none") as client:
            notes = Path(folder) / "notes"
            notes.touch()
            expected = _push(client, items)
            for queue, group in _GROUPS:
                client.configure_group(queue, group, warm=True, in_memory_queue_size=_WINDOW)
            workers = Workers(dsn, notes, 2)
            causing = Faults(workers, server, dsn, home)
            try:
                begun, fault_at = time.monotonic(), _next(chance, 2 * items, items, faults)
                while left := _left_through_outages(client):
                    if time.monotonic() - begun > _LONGEST:
                        raise AssertionError(f"{left} calls are left after {_LONGEST:g} s")
                    if left <= fault_at:
                        say(f"{left} calls left: {causing.cause(chance)}")
                        fault_at = _next(chance, left, items, faults)
                    time.sleep(0.05)
            finally:
                causing.end()
                workers.end()
            check(client, expected, notes)
            return causing.counts
    finally:
        del os.environ["PENSTOCK_VALKEY_URL"]
        server.close()


def _left_through_outages(client: Client) -> int:
    while True:
        try:
            return _left(client)
        except ConnectionError:
            time.sleep(0.2)


def main() -> None:
    """Run it on a server of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=60, help="how many faults there are, about")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.monotonic()
    with own_server() as (home, dsn):
        say = lambda line: print(line, flush=True)  # noqa: E731, T201
        caused = run(dsn, given.items, given.faults, given.seed, say, home)
    print(f"{given.items} items came through once, with {dict(caused)}, in {time.monotonic() - begun:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
