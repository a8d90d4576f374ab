"""What commits late is delivered, in order, and served though others have gone past it in the ready list."""

import itertools
import math
from types import SimpleNamespace

import pytest
from log.interleaving import PUSH_ONE, Running, push

from databases import Connection, Connections
from penstock import Client
from penstock.consuming import polling

from .steps import MODES, ack, create_group, drain, must_pop, offsets, pop, violations


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of whoever polls."""
    clock = Clock()
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def partition_of(client: Client) -> str | None:
    """Consume one batch and say where it was from."""
    batch = client.pop("q", "g")
    if batch is None:
        return None
    batch.ack()
    return batch.partition


def mark_passes_a_late_place(connections: Connections, client: Client, clock: Clock) -> str | None:
    """A push takes a ready list entry and commits when the client's mark is past it; what does the client pop then?"""
    client.create_group("q", "g")
    late = connections.open()
    push(late, "late")
    client.push("q", 1, partition="early")
    assert partition_of(client) == "early"
    clock.now += 1.0
    client.push("q", 2, partition="later")
    late.commit()
    assert partition_of(client) == "later", "the mark did not pass the place"
    assert partition_of(client) is None
    clock.now += 6.0
    return partition_of(client)


def test_a_place_in_line_that_shows_late_is_served_though_the_mark_is_past_it(
    connections: Connections, client: Client, clock: Clock
) -> None:
    assert mark_passes_a_late_place(connections, client, clock) == "late"
    assert client.lag("q", "g") == 0


def test_without_a_look_at_the_front_such_a_place_is_never_served(
    connections: Connections, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_FRONT_EVERY", math.inf)
    assert mark_passes_a_late_place(connections, client, clock) is None
    clock.now += 1e6
    assert partition_of(client) is None
    assert client.lag("q", "g") == 1


def test_the_mark_trails_so_that_a_place_a_moment_late_is_served_at_once(
    connections: Connections, client: Client, clock: Clock
) -> None:
    client.create_group("q", "g")
    late = connections.open()
    push(late, "late")
    client.push("q", 1, partition="early")
    assert partition_of(client) == "early"
    clock.now += 0.3
    late.commit()
    assert partition_of(client) == "late"


def test_a_client_that_lives_through_a_restore_to_older_places_is_served_at_its_usual_pace(
    client: Client, sql: Connection, clock: Clock
) -> None:
    client.create_group("q", "g")
    sql.execute("SELECT setval('penstock.ready_seq', 1000000)")
    for number in range(5):
        client.push("q", number, partition=f"before {number}")
        clock.now += 1.0
        assert partition_of(client) == f"before {number}"
    sql.execute("SELECT setval('penstock.ready_seq', 1)")
    for number in range(20):
        client.push("q", number, partition=f"after {number}")

    clock.now += 6.0
    came = []
    for _ in range(20):
        clock.now += 0.01
        came.append(partition_of(client))
    clock.now += 1.0
    client.push("q", 1, partition="later")

    assert came == [f"after {number}" for number in range(20)]
    assert partition_of(client) == "later"


def test_a_place_that_was_late_takes_the_mark_back_and_the_next_ones_move_it_on(clock: Clock) -> None:
    line = polling.ReadyCursor()
    line.took([SimpleNamespace(level=2, ready_seq=100)])  # type: ignore[list-item]
    clock.now += 1.0
    assert line.lows() == [0, 100]
    line.took([SimpleNamespace(level=2, ready_seq=40)])  # type: ignore[list-item]
    assert line.lows() == [0, 40]
    line.took([SimpleNamespace(level=2, ready_seq=120)])  # type: ignore[list-item]
    assert line.lows() == [0, 40]
    clock.now += 1.0
    assert line.lows() == [0, 120]


@pytest.mark.parametrize("mode", MODES)
def test_a_partition_is_delivered_in_the_order_of_commits(connections: Connections, sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    first, second = connections.open(), connections.open(autocommit=True)
    push(first)
    waiting = Running(second, PUSH_ONE, "p")
    assert waiting.waits(sql)
    assert pop(sql) is None
    first.commit()
    assert waiting.value() == 1
    assert offsets(drain(sql, most=1)) == [0, 1]
    assert violations(sql) == {}


def test_partitions_that_commit_in_any_order_are_each_delivered_in_order(
    connections: Connections, sql: Connection
) -> None:
    for number, order in enumerate(itertools.permutations(range(3))):
        group = f"g{number}"
        create_group(sql, group)
        drain(sql, group)
        pushers = [connections.open() for _ in order]
        first = [push(pusher, f"p{index}") for index, pusher in enumerate(pushers)]
        came = []
        for index in order:
            pushers[index].commit()
            claim = must_pop(sql, group)
            came += [(claim.partition, message.offset) for message in claim.messages]
            ack(sql, claim)
            push(sql, f"p{index}")
        came += drain(sql, group)
        assert [offsets(came, f"p{index}") for index in range(3)] == [[offset, offset + 1] for offset in first]
    assert violations(sql) == {}
