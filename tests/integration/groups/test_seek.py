"""Moving a group beside live traffic: whoever holds a claim loses it, and whoever is busy right now is asked again."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from log.interleaving import mutate, push

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.broker.infos import SeekResult
from penstock.broker.operations.claiming import Nack
from penstock.broker.operations.groups import Seek
from penstock.errors import LeaseLost

from .steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    nack,
    newest,
    offsets,
    outcome,
    pass_time,
    pop,
    push_some,
    push_to_many,
    reply,
    run,
    start,
    sweep,
    violations,
)

EARLIEST = Seek("q", "g", position="earliest")


def seek(connection: Connection, to: int | str = "earliest", preview: bool = False) -> SeekResult:
    """Move group g of queue q, or say what that would do."""
    return run(
        connection,
        Seek(
            "q",
            "g",
            offset=to if isinstance(to, int) else None,
            position=to if isinstance(to, str) else None,
            preview=preview,
        ),
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_that_is_held_loses_its_lease_and_comes_again(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 10)
    ack(sql, must_pop(sql, most=4))
    claim = must_pop(sql, most=4)
    assert seek(sql) == SeekResult(1, 1, 4, 0, 1, 0, None)
    assert outcome(lambda: ack(sql, claim)) == "lost"
    assert offsets(drain(sql)) == list(range(10))
    assert violations(sql) == {}


def popping(connections: Connections, sql: Connection) -> Connection:
    other = connections.open()
    must_pop(other, most=3)
    return other


def acking(connections: Connections, sql: Connection) -> Connection:
    claim = must_pop(sql, most=3)
    other = connections.open()
    ack(other, claim)
    return other


def acking_a_part(connections: Connections, sql: Connection) -> Connection:
    claim = must_pop(sql, most=3)
    other = connections.open()
    run(other, ack_of([claim], claim.start + 1))
    return other


def nacking(connections: Connections, sql: Connection) -> Connection:
    claim = must_pop(sql, most=3)
    other = connections.open()
    nack(other, claim)
    return other


def pushing(connections: Connections, sql: Connection) -> Connection:
    other = connections.open()
    push(other)
    return other


def sweeping(connections: Connections, sql: Connection) -> Connection:
    must_pop(sql, most=3)
    pass_time(sql, "c")
    other = connections.open()
    sweep(other)
    return other


HOLDERS = [popping, acking, acking_a_part, nacking, pushing, sweeping]
Hold = Callable[[Connections, Connection], Connection]


def seek_beside(connections: Connections, sql: Connection, mode: str, hold: Hold) -> SeekResult:
    """Seek while somebody is at the partition, and again when they have committed; return what the first one said."""
    create_group(sql, mode=mode)
    push_some(sql, 20)
    ack(sql, must_pop(sql, most=2))
    other = hold(connections, sql)
    seeking = start(connections.open(autocommit=True), EARLIEST)
    waits = seeking.waits(sql)
    other.commit()
    said = reply(EARLIEST, seeking.rows())
    assert not waits, "seek waited"
    seek(sql)
    return said


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_a_partition_that_somebody_is_at_is_busy_and_moves_later(
    connections: Connections, sql: Connection, mode: str, hold: Hold
) -> None:
    said = seek_beside(connections, sql, mode, hold)
    assert (said.moved, said.busy) == (0, 1)
    assert violations(sql) == {}
    came = offsets(drain(sql))
    assert sorted(came) == list(range(len(came)))
    assert len(came) >= 20
    assert violations(sql) == {}


def test_without_locking_its_ranges_a_shared_group_moves_and_leaves_some_behind(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "seek_partition", ("    IF locked < (SELECT", "    IF false AND locked < (SELECT"))
    with pytest.raises(AssertionError, match="seek waited"):
        seek_beside(fresh, sql, "shared", acking_a_part)
    assert violations(sql) != {}


def pop_between_the_lock_and_the_look(connections: Connections, sql: Connection) -> str:
    """A pop commits after a seek has locked what was the newest journal row; say how an ack of it and the seek end."""
    stop = "PERFORM pg_advisory_xact_lock(4711);"
    mutate(
        sql, "seek_partition", ("        locked := before.version;\n", f"        locked := before.version;\n{stop}\n")
    )
    create_group(sql)
    push_some(sql, 3)
    gate, seeker, holder = connections.open(), connections.open(), connections.open()
    gate.execute("SELECT pg_advisory_xact_lock(4711)")
    seeking = start(seeker, EARLIEST)
    assert seeking.waits(sql)
    claim = must_pop(sql)
    ack(holder, claim)
    gate.commit()
    assert not seeking.waits(sql), "seek waited"
    holder.commit()
    seeker.commit()
    return "busy" if reply(EARLIEST, seeking.rows()).busy else "moved"


def test_a_seek_does_not_move_what_was_popped_before_it_had_the_lock(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    assert pop_between_the_lock_and_the_look(fresh, sql) == "busy"
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_client_asks_again_until_the_partition_is_free(connections: Connections, client: Client, mode: str) -> None:
    client.create_group("q", "g", mode=mode)
    client.push("q", 1, partition="p")
    popper = connections.open()
    must_pop(popper)
    said: list[SeekResult] = []

    def progress(so_far: SeekResult) -> None:
        said.append(so_far)
        if len(said) == 3:
            popper.commit()

    total = client.seek("q", "g", "latest", progress=progress)
    assert [so_far.busy for so_far in said] == [1, 1, 1, 0]
    assert (total.moved, total.revoked, total.skipped) == (1, 1, 1)
    assert client.pop("q", "g") is None


def test_a_client_gives_up_in_the_end_and_says_so(connections: Connections, client: Client) -> None:
    client.create_group("q", "g")
    client.push("q", 1, partition="p"), client.push("q", 2, partition="free")
    popper = connections.open()
    must_pop(popper, partition="p")
    with pytest.raises(Retryable, match="1 partitions stayed busy; the others have moved"):
        client.seek("q", "g", "latest")
    popper.rollback()
    assert client.lag("q", "g") == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", ["earliest", "latest", 3])
def test_a_preview_changes_nothing_and_says_what_then_happens(sql: Connection, mode: str, to: int | str) -> None:
    create_group(sql, mode=mode)
    for name in ("idle", "acked", "held", "failed"):
        push_some(sql, 10, name)
    while (claim := pop(sql, partition="idle")) is not None:
        ack(sql, claim)
    ack(sql, must_pop(sql, partition="acked", most=5))
    must_pop(sql, partition="held", most=5)
    run(sql, Nack(must_pop(sql, partition="failed", most=1).lease, None, "oops", None, 60.0))
    push_some(sql, 10, "untouched")
    tables = ("journal", "ready", "claims")

    def contents() -> list[str]:
        return [
            str(sql.execute(f"SELECT * FROM penstock.{table} ORDER BY 1, 2, 3".encode()).fetchall()) for table in tables
        ]

    before = contents()
    preview = seek(sql, to, preview=True)
    assert contents() == before
    assert seek(sql, to) == preview
    assert violations(sql) == {}


def test_three_thousand_partitions_move_while_others_push_and_pop(dsn: str, sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3000)
    came: Counter[tuple[str, int]] = Counter()
    stop = threading.Event()
    failures: list[BaseException] = []

    def consume(client: Client) -> None:
        try:
            while not stop.is_set():
                batch = client.pop("q", "g", max_partitions=20)
                if batch is None:
                    continue
                came.update((message.partition, message.offset) for message in batch.messages)
                with suppress(LeaseLost):
                    batch.ack()
        except BaseException as error:
            failures.append(error)

    def produce(client: Client) -> None:
        try:
            for number in range(1, 3001, 10):
                client.push("q", number, partition=f"n{number}")
        except BaseException as error:
            failures.append(error)

    with Client(dsn) as client:
        for _ in range(20):
            first = client.pop("q", "g", max_partitions=50)
            assert first is not None
            came.update((message.partition, message.offset) for message in first.messages)
            first.ack()
        again = set(came)
        threads = [threading.Thread(target=work, args=(client,)) for work in (consume, produce)]
        for thread in threads:
            thread.start()
        total = client.seek("q", "g", "earliest")
        threads[1].join()
        stop.set()
        threads[0].join()
    assert failures == []
    assert total.visited >= 3000
    pass_time(sql, "c")
    sweep(sql)
    came.update(drain(sql, partitions=100))
    assert all(came[place] >= 2 for place in again)
    assert set(came) == {(f"n{n}", o) for n in range(1, 3001) for o in range(1 + (n % 10 == 1))}
    assert violations(sql) == {}
    assert newest(sql, partition="n1")[1] == "i"
