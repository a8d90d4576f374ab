"""Sixteen clients that push and consume while some of them are killed all the time, and what must hold after that.

The database itself is not killed here: `tests/integration/embedded` does that, and the server that other tests of a run
share must stay.
"""

import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from penstock import Client

from . import checker
from .client import LEASE, PARTITIONS, QUEUE, Notes, handle, main

SECONDS = 15.0
ROLES = ["produce"] * 8 + ["ordered"] * 4 + ["shared"] * 4
GROUPS = ("ordered", "shared")


class Crowd:
    """The client processes: each that is killed is replaced by another."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        # Imported once and inherited by all: they begin at once, and can be killed while they work.
        self._context.set_forkserver_preload(["pytest", "penstock.engine.client"])
        self._started = 0
        self.processes: dict[int, BaseProcess] = {}

    def start(self, place: int) -> None:
        self._started += 1
        role, me = ROLES[place], f"c{self._started}"
        path = str(self._folder / f"{role}-{me}")
        process = self._context.Process(target=main, args=(role, self._dsn, path, me), daemon=True)
        process.start()
        self.processes[place] = process

    def kill(self, place: int) -> None:
        process = self.processes.pop(place)
        process.kill()
        process.join()


@pytest.fixture
def crowd(penstock_dsn: str, tmp_path: Path) -> Iterator[Crowd]:
    """Sixteen clients at work."""
    folder = tmp_path / "notes"
    folder.mkdir()
    crowd = Crowd(penstock_dsn, folder)
    with Client(penstock_dsn) as client:
        client.create(QUEUE, backoff_initial=0.01, backoff_max=0.1, max_attempts=2)
        for group in GROUPS:
            client.create_group(QUEUE, group, mode=group)
    try:
        for place in range(len(ROLES)):
            crowd.start(place)
        yield crowd
    finally:
        for place in list(crowd.processes):
            crowd.kill(place)


def violations(client: Client) -> list[object]:
    return [check for check in client.verify() if check.violations]


def drain(client: Client, folder: Path) -> None:
    """Consume what the killed have left, and write it down like they did."""
    deadline = time.monotonic() + 60
    for group in GROUPS:
        notes = Notes(folder / f"{group}-last")
        while client.lag(QUEUE, group):
            assert time.monotonic() < deadline, "what was left could not be consumed"
            batch = client.pop(QUEUE, group, max_messages=500, max_partitions=10, lease=LEASE, wait=0.2)
            if batch is not None:
                handle(batch, notes)


def test_nothing_is_lost_or_out_of_order_though_clients_are_killed(
    crowd: Crowd, penstock_dsn: str, tmp_path: Path
) -> None:
    chance = random.Random(2026)
    with Client(penstock_dsn) as client:
        ends_at = time.monotonic() + SECONDS
        verified_at = 0.0
        while time.monotonic() < ends_at:
            time.sleep(0.4)
            place = chance.randrange(len(ROLES))
            crowd.kill(place)
            crowd.start(place)
            if time.monotonic() - verified_at > 1:
                verified_at = time.monotonic()
                assert violations(client) == []
                list(client.maintain(min_segments=16))
        for place in list(crowd.processes):
            crowd.kill(place)
        assert violations(client) == []

        drain(client, tmp_path / "notes")
        assert violations(client) == []
        assert [client.lag(QUEUE, group) for group in GROUPS] == [0, 0]
        assert client.claims(QUEUE) == []

        notes = checker.Notes(tmp_path / "notes", LEASE)
        log = {}
        for number in range(PARTITIONS):
            stored = client.read(QUEUE, f"p{number}")
            assert [message.offset for message in stored] == list(range(len(stored)))
            log[f"p{number}"] = [message.json() for message in stored]
        letters = client.dead_letters(QUEUE, limit=100_000)

    assert len(notes.pushed) > 1000
    assert list(checker.lost_pushes(notes, log)) == []
    for group in GROUPS:
        claims = list(notes.claims[group].values())
        dead = {(letter.partition, letter.offset) for letter in letters if letter.group == group}
        assert list(checker.wrong_deliveries(claims, log)) == []
        assert list(checker.lost_messages(claims, log, dead)) == []
        assert list(checker.done_twice(claims, dead)) == []
        if group == "ordered":
            assert list(checker.disorder(claims, dead)) == []
