"""A message that was cancelled is never handed out, and nothing else changes: whichever way it is popped."""

import random
from typing import Any
from uuid import UUID, uuid4

import pytest
from groups.steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
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
from log.interleaving import Running

from databases import Connection, Connections
from penstock import Client, InvalidInput
from penstock.broker.claims import Claim
from penstock.broker.ids import message_id
from penstock.broker.items import CancelledItem, ItemOutcome, ItemResult, SettledClaim
from penstock.broker.operations.claiming import Pop, PopMany
from penstock.broker.operations.items import CancelMessages, GetState, ListCancelled, SettleItems

from .steps import ALL, failed, settle_one, snoozed


def ids(sql: Connection, *wanted: int, partition: str = "p") -> list[UUID]:
    """Return the ids of messages by their offsets."""
    rows = sql.execute(
        "SELECT m.message_offset, m.id FROM penstock.messages m WHERE queue_name = 'q' AND partition_name = %s",
        (partition,),
    ).fetchall()
    found = dict(rows)
    return [found[offset] for offset in wanted]


def cancel(sql: Connection, *wanted: int, group: str | None = None, partition: str = "p") -> list[int]:
    """Cancel messages, and return the offsets for which it was in time."""
    given = ids(sql, *wanted, partition=partition)
    cancelled = run(sql, CancelMessages(given, group))
    return [offset for offset, each in zip(wanted, given, strict=True) if each in cancelled]


def states(sql: Connection, *wanted: int) -> list[str | None]:
    """Return what messages are to their only group, by their offsets."""
    return [state.state for each in ids(sql, *wanted) for state in run(sql, GetState(each)) or ()]


def gated(sql: Connection, group: str = "g") -> bool:
    rows = sql.execute("SELECT gated FROM penstock.consumer_groups WHERE name = %s", (group,)).fetchall()
    return bool(rows[0][0])


PATTERNS: list[list[int]] = [[0], [9], [0, 1, 2, 7], [1, 3, 5, 7, 9], [3, 4, 5], list(range(10))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_it_never_comes_and_all_others_do(sql: Connection, mode: str, size: int, pattern: list[int]) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 10)
    assert cancel(sql, *pattern) == pattern
    assert sorted(offsets(drain(sql, most=size))) == [offset for offset in range(10) if offset not in pattern]
    assert violations(sql) == {}
    # A message that comes later is not affected.
    push_some(sql, 1)
    assert offsets(drain(sql)) == [10]


@pytest.mark.parametrize("mode", MODES)
def test_any_number_can_be_cancelled(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1000)
    cancel(sql, *range(2, 402), *range(500, 1000, 2))
    came = sorted(offsets(drain(sql, most=7 if mode == "ordered" else 100)))
    assert came == [0, 1, *range(402, 500), *range(501, 1000, 2)]
    assert violations(sql) == {}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", MODES)
def test_whatever_else_happens_it_never_comes_after_it_was_cancelled(sql: Connection, mode: str, seed: int) -> None:
    chance = random.Random(seed)
    create_group(sql, mode=mode, max_attempts=100)
    push_some(sql, 30)
    cancelled: set[int] = set()
    done: set[int] = set()
    held: list[Claim] = []
    for _ in range(60):
        match chance.choice(["pop", "pop", "settle", "settle", "cancel", "expire", "maintain"]):
            case "pop":
                claim = pop(sql, most=chance.choice([1, 3, 8]))
                if claim is not None:
                    assert not cancelled & {message.offset for message in claim.messages}
                    held.append(claim)
            case "settle" if held:
                claim = held.pop(chance.randrange(len(held)))
                middle = chance.randint(claim.start, claim.stop - 1)
                outcomes = [chance.choice([failed(middle), snoozed(middle)])] if chance.random() < 0.5 else []
                finished = [(claim.start, middle)] if middle > claim.start else []
                if settle_one(sql, claim, *outcomes, done=finished, release=True) == "settled":
                    done |= set(range(claim.start, middle))
            case "cancel":
                cancelled |= set(cancel(sql, chance.randrange(30)))
            case "expire" if held:
                held.clear()
                pass_time(sql, "c")
                sweep(sql)
            case "maintain":
                sql.execute("SELECT penstock.maintain()")
    for claim in held:
        settle_one(sql, claim, release=True)
    assert sorted(set(offsets(drain(sql))) | done) == [offset for offset in range(30) if offset not in cancelled - done]
    assert violations(sql) == {}


WAYS: dict[str, Any] = {
    "any": lambda: Pop("q", "g", max_messages=4),
    "named": lambda: Pop("q", "g", "p", max_messages=4),
    "auto_ack": lambda: Pop("q", "g", max_messages=4, auto_ack=True),
    "small": lambda: Pop("q", "g", max_messages=4, max_bytes=1),
    "many": lambda: PopMany([Pop("q", "g", max_messages=4)]),
    "wide": lambda: Pop("q", "g", max_messages=4, max_partitions=5),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_it_never_comes_whichever_way_one_pops(sql: Connection, mode: str, way: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 10)
    cancel(sql, 0, 3, 4, 9)
    came: list[int] = []
    while True:
        found = run(sql, WAYS[way]())
        claims = (found[0] or []) if way == "many" else found
        if not claims:
            break
        came += [message.offset for claim in claims for message in claim.messages]
        if way != "auto_ack":
            run(sql, ack_of(claims))
    assert sorted(came) == [1, 2, 5, 6, 7, 8]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_failed_and_was_then_cancelled_does_not_come_again(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=5)
    push_some(sql, 4)
    settle_one(sql, must_pop(sql), failed(1, wait=3600), done=[(0, 1)], release=True)
    assert cancel(sql, 1) == [1]
    sweep(sql)
    assert offsets(drain(sql)) == [2, 3]
    assert sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall() == [(0,)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_one_that_is_snoozed_does_not_hold_up_others_when_it_is_cancelled(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    settle_one(sql, must_pop(sql), snoozed(0, 3600), release=True)
    assert cancel(sql, 0) == [0]
    sweep(sql)
    assert offsets([("p", m.offset) for m in must_pop(sql).messages]) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_the_next_one_is_not_taken_for_the_one_that_failed(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=5)
    push_some(sql, 3)
    settle_one(sql, must_pop(sql), failed(0), release=True)
    cancel(sql, 0)
    claim = must_pop(sql)
    assert (claim.start, claim.attempt) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_of_one_that_is_in_flight_its_worker_is_told(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    claim = must_pop(sql)
    place = (claim.group_id, claim.partition_id)
    assert run(sql, ListCancelled([place])) == []
    assert cancel(sql, 2) == [2]
    assert run(sql, ListCancelled([place, place, (0, 0)])) == [CancelledItem(*place, 2)]
    assert settle_one(sql, claim, done=ALL) == "settled"
    assert drain(sql) == []
    sql.execute("SELECT penstock.maintain()")
    assert run(sql, ListCancelled([place])) == []


@pytest.mark.parametrize("mode", MODES)
def test_one_whose_worker_died_does_not_come_again_but_the_rest_of_its_batch_does(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=9)
    push_some(sql, 4)
    must_pop(sql)
    cancel(sql, 1)
    pass_time(sql, "c")
    sweep(sql)
    assert sorted(offsets(drain(sql))) == [0, 2, 3]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("results", [True, False], ids=["with results", "without"])
def test_one_that_was_handled_before_its_worker_was_told_is_done(sql: Connection, mode: str, results: bool) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 2)
    claim = must_pop(sql)
    assert cancel(sql, 0, 1) == [0, 1]
    kept = [ItemResult(0, 0, "returned", b"1"), ItemResult(0, 1, "cancelled")] if results else []
    stopped = SettledClaim(claim.lease, [(0, 1)], [ItemOutcome(1, "cancelled")])
    assert run(sql, SettleItems([stopped], results=kept)).outcomes == [["cancelled"]]
    assert states(sql, 0, 1) == ["done", "cancelled"]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_one_that_a_consumer_acknowledged_is_done(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 2)
    claim = must_pop(sql)
    assert cancel(sql, 0, 1) == [0, 1]
    assert states(sql, 0, 1) == ["in flight", "in flight"]
    ack(sql, claim)
    assert states(sql, 0, 1) == ["done", "done"]
    sql.execute("SELECT penstock.maintain()")
    assert states(sql, 0, 1) == ["done", "done"]


@pytest.mark.parametrize("mode", MODES)
def test_one_that_was_passed_is_cancelled_whatever_came_before(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=9)
    push_some(sql, 5)
    settle_one(sql, must_pop(sql), failed(1, wait=3600), done=[(0, 1)], release=True)
    assert cancel(sql, 1, 3) == [1, 3]
    sweep(sql)
    while claim := pop(sql):
        ack(sql, claim)
    assert states(sql, *range(5)) == ["done", "cancelled", "done", "cancelled", "done"]


@pytest.mark.parametrize("mode", MODES)
def test_it_is_too_late_for_what_is_done(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    ack(sql, must_pop(sql, most=2))
    assert cancel(sql, 0, 1, 2) == [2]
    assert cancel(sql, 2) == [2], "again, as long as it waits"
    assert run(sql, CancelMessages([message_id(10**6, 0, 0), uuid4_of_a_message()])) == []


def uuid4_of_a_message() -> UUID:
    """Return the id of no message: its offset is far beyond the head."""
    return message_id(1, 1 << 40, 0)


def test_one_group_can_be_meant(sql: Connection) -> None:
    for group, mode in (("g", "ordered"), ("h", "shared"), ("i", "ordered")):
        create_group(sql, group, mode)
    push_some(sql, 3)
    assert cancel(sql, 1, group="h") == [1]
    assert [gated(sql, group) for group in "ghi"] == [False, True, False]
    assert [sorted(offsets(drain(sql, group))) for group in "ghi"] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert cancel(sql, 1, group="nobody") == []


@pytest.mark.parametrize("mode", MODES)
def test_a_group_pays_for_it_only_until_it_is_past(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    cancel(sql, 1)
    sql.execute("SELECT penstock.maintain()")
    assert gated(sql)
    drain(sql)
    sql.execute("SELECT penstock.maintain()")
    assert not gated(sql)
    assert sql.execute("SELECT count(*) FROM penstock.cancellations").fetchall() == [(1,)]
    sql.execute("UPDATE penstock.cancellations SET cancelled_at = cancelled_at - interval '2 days'")
    sql.execute("SELECT penstock.maintain()")
    assert sql.execute("SELECT count(*) FROM penstock.cancellations").fetchall() == [(0,)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_seek_back_brings_it_again(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    cancel(sql, 1)
    drain(sql)
    sql.execute("SELECT penstock.seek_partitions('q', 'g', to_offset => 0, partition_name => 'p')")
    assert sorted(offsets(drain(sql))) == [0, 1, 2]


def test_what_was_cancelled_is_not_counted_as_dropped(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 4)
    cancel(sql, 0, 1, 3)
    drain(sql)
    assert sql.execute("SELECT max(skipped) FROM penstock.journal").fetchall() == [(0,)]
    assert newest(sql)[2] == 4


@pytest.mark.parametrize("mode", MODES)
def test_whoever_pops_at_the_same_time_gets_it_or_not_and_nobody_waits(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    one = connections.open()
    assert cancel(one, 0) == [0]
    # It is not committed: the pop does not know, and does not wait.
    claim = must_pop(sql)
    assert claim.start == 0
    one.commit()
    place = (claim.group_id, claim.partition_id)
    assert run(sql, ListCancelled([place])) == [CancelledItem(*place, 0)]
    settle_one(sql, claim, release=True)
    assert sorted(offsets(drain(sql))) == [1, 2]


def test_two_who_cancel_the_same_do_not_deadlock(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    create_group(sql, "h")
    push_some(sql, 3)
    one, other = connections.open(), connections.open(autocommit=True)
    given = ids(sql, 0, 1, 2)
    assert run(one, CancelMessages(given)) == given
    second = CancelMessages(given[::-1])
    cancelling = start(other, second)
    assert cancelling.waits(sql)
    one.commit()
    assert reply(second, cancelling.rows()) == given[::-1]


def test_partitions_beside_it_are_not_touched(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    cancel(sql, 0, partition="n2")
    assert sorted(drain(sql)) == [("n1", 0), ("n3", 0)]
    assert pop(sql) is None


@pytest.mark.parametrize("given", ["x", [1], [uuid4()], ["no id"], None, [None], 5])
def test_what_is_no_message_id_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        CancelMessages(given)


def test_a_pop_that_acknowledges_gets_each_partition_of_an_ordered_group_once(client: Client) -> None:
    client.create_group("q", "g")
    client.push("q", list(range(6)), partition="a")
    nothing = client.push("q", "cancelled", partition="b").ids
    client.cancel(nothing[0])

    batch = client.pop("q", "g", max_messages=2, max_partitions=2, auto_ack=True)

    assert batch is not None
    assert [message.json() for message in batch] == [0, 1]
    assert client.lag("q", "g") == 4


DELETE = {
    "group": "SELECT penstock.delete_group('q', 'g')",
    "queue": "SELECT penstock.delete_queue('q')",
    "partition": "SELECT penstock.delete_partition('q', 'p')",
}


@pytest.mark.parametrize("what", DELETE)
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
def test_whoever_cancels_waits_for_a_deletion_and_leaves_nothing_of_what_is_gone(
    connections: Connections, sql: Connection, what: str, committed: bool
) -> None:
    create_group(sql)
    push_some(sql, 3)
    given = ids(sql, 0, 1, 2)
    one, other = connections.open(), connections.open(autocommit=True)
    one.execute(DELETE[what].encode())

    cancelling = start(other, CancelMessages(given))
    assert cancelling.waits(sql)
    one.commit() if committed else one.rollback()

    in_time = reply(CancelMessages(given), cancelling.rows())
    assert sorted(in_time) == ([] if committed else sorted(given))
    assert violations(sql) == {}


@pytest.mark.parametrize("what", DELETE)
def test_a_deletion_waits_for_whoever_cancels_and_deletes_that_too(
    connections: Connections, sql: Connection, what: str
) -> None:
    create_group(sql)
    push_some(sql, 3)
    given = ids(sql, 0, 1)
    one, other = connections.open(), connections.open(autocommit=True)
    run(one, CancelMessages(given[:1]))

    deleting = Running(other, DELETE[what])
    assert deleting.waits(sql)
    run(one, CancelMessages(given[1:]))
    one.commit()

    deleting.rows()
    assert violations(sql) == {}


@pytest.mark.parametrize("gone", ["group", "partition"])
def test_maintenance_removes_cancellations_of_nothing(client: Client, sql: Connection, gone: str) -> None:
    group_id = create_group(sql)
    push_some(sql, 3)
    sql.execute(
        "INSERT INTO penstock.cancellations (group_id, partition_id, message_offset)"
        " SELECT CASE %(gone)s WHEN 'group' THEN 77 ELSE %(group)s END,"
        " CASE %(gone)s WHEN 'group' THEN p.partition_id ELSE 77 END, 0 FROM penstock.partitions p",
        {"gone": gone, "group": group_id},
    )
    assert violations(sql) == {"orphan_items": 1}

    list(client.maintain())

    assert violations(sql) == {}
