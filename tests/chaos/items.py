"""Kills workers and their children while they handle items, and checks that nothing is lost or pushed twice.

`make chaos-workers ITEMS=100000` runs it at full size; the suite runs it in small.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock import Client

from .crowd import own_server

APP = Path(__file__).parent / "items_app.py"
PARTITIONS = 16
_GROUPS = (("entered", "chaos.double"), ("doubled", "chaos.charge"))
_LONGEST = 1800.0


class Workers:
    """Some worker processes that are killed and replaced."""

    def __init__(self, dsn: str, notes: Path, count: int) -> None:
        self._environment = {**os.environ, "PENSTOCK_URL": dsn, "PENSTOCK_CHAOS_NOTES": str(notes)}
        self._processes = [self._start() for _ in range(count)]
        self.kills = 0

    def kill_one(self, chance: random.Random) -> None:
        """Kill a worker with its children, or one of its children."""
        place = chance.randrange(len(self._processes))
        worker = self._processes[place]
        children = _children(worker.pid)
        if children and chance.random() < 0.5:
            victim = chance.choice(children)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return
        else:
            worker.kill()
            worker.wait()
            self._processes[place] = self._start()
        self.kills += 1

    def end(self) -> None:
        """Stop all of them as an operator does."""
        for worker in self._processes:
            worker.terminate()
        for worker in self._processes:
            # One that has just been started may not have got to the point where it heeds the signal.
            if worker.wait(60) not in (0, -signal.SIGTERM):
                raise AssertionError(f"a worker ended with {worker.returncode}")

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "penstock.cli", "worker", str(APP)]
        return subprocess.Popen(command, env=self._environment, stderr=subprocess.DEVNULL)


class Victims(Protocol):
    """Workers of any kind that are killed and replaced."""

    kills: int

    def kill_one(self, chance: random.Random) -> None: ...

    def end(self) -> None: ...


def run(
    dsn: str,
    items: int,
    kills: int,
    seed: int,
    say: Callable[[str], None],
    start: Callable[[str, Path], Victims] = lambda dsn, notes: Workers(dsn, notes, 2),
) -> int:
    """Push items, kill about so often until all are handled, check; return how many kills there were.

    Kills come by progress and not by time, so that there is some on any machine, and as many on each.
    """
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Client(dsn) as client:
        notes = Path(folder) / "notes"
        notes.touch()
        expected = _push(client, items)
        workers = start(dsn, notes)
        try:
            begun, kill_at = time.monotonic(), _next(chance, 2 * items, items, kills)
            while left := _left(client):
                if time.monotonic() - begun > _LONGEST:
                    raise AssertionError(f"{left} calls are left after {_LONGEST:g} s")
                if left <= kill_at:
                    workers.kill_one(chance)
                    kill_at = _next(chance, left, items, kills)
                    say(f"{left} calls left, {workers.kills} kills")
                time.sleep(0.01)
        finally:
            workers.end()
        check(client, expected, notes)
        return workers.kills


def _next(chance: random.Random, left: int, items: int, kills: int) -> float:
    """Return how many calls are left when the next kill comes."""
    return left - chance.expovariate(kills / (2 * items))


def _push(client: Client, items: int) -> dict[str, list[int]]:
    expected: defaultdict[str, list[int]] = defaultdict(list)
    for number in range(items):
        expected[str(number % PARTITIONS)].append(number)
    for queue, group in _GROUPS:
        client.create_group(queue, group, lease_time=1, max_attempts=1000, backoff_initial=0.01, backoff_max=0.1)
    for partition, numbers in expected.items():
        for first in range(0, len(numbers), 500):
            part = numbers[first : first + 500]
            client.push("entered", [{"number": number} for number in part], partition=partition)
    return expected


def _left(client: Client) -> int:
    """Return how many calls of handlers are left: an item that is not doubled has two before it."""
    entered, doubled = (client.lag(queue, group) for queue, group in _GROUPS)
    return 2 * entered + doubled


def check(client: Client, expected: dict[str, list[int]], notes: Path) -> None:
    """Check that every item came through once, in the order of its partition, and that no step ran again."""
    for queue in ("doubled", "charged"):
        for partition, numbers in expected.items():
            found = [message.json()["number"] for message in client.scan(queue, partition)]
            if found != numbers:
                missing, more = set(numbers) - set(found), len(found) - len(set(found))
                raise AssertionError(f"{queue}/{partition}: {len(missing)} lost, {more} twice, or out of order")
    dead = [letter for queue, _ in _GROUPS for letter in client.dead_letters(queue)]
    if dead:
        raise AssertionError(f"dead letters: {dead[:3]}")
    wrong = [each for each in client.verify() if each.violations]
    if wrong:
        raise AssertionError(f"verify: {wrong}")
    check_steps(notes)


def check_steps(notes: Path) -> None:
    """Check that a step whose result was remembered did not run again."""
    past: set[str] = set()
    for line in notes.read_text().splitlines():
        what, _, number = line.partition(" ")
        if what == "past":
            past.add(number)
        elif number in past:
            raise AssertionError(f"the step of item {number} ran again after its result was remembered")


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def clear(client: Client) -> None:
    """Delete what a run before has left."""
    for queue in {"entered", "doubled", "charged"} & {each.name for each in client.queues()}:
        client.delete(queue)


def main() -> None:
    """Run it on a server of its own: two runs on one server would delete each other's queues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=100, help="how many kills there are, about")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with own_server() as (_, dsn):
        begun = time.monotonic()
        kills = run(dsn, given.items, given.kills, given.seed, lambda line: print(line, flush=True))  # noqa: T201
    print(f"{given.items} items came through once, with {kills} kills, in {time.monotonic() - begun:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
