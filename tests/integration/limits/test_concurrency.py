"""Concurrency by key: never more at once than allowed; a slot that is freed wakes who waits, however its claim ends."""

from collections.abc import Callable

import psycopg
import pytest
from groups.steps import (
    MODES,
    SETTLING,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    pass_time,
    pop,
    pop_call,
    push_some,
    push_to_many,
    release,
    run,
    sweep,
    violations,
)

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Ack, AckAndPop, Pop

from .steps import configure, is_pending, one, push_keys, writing_nothing

ENDINGS: dict[str, Callable[[Connection, Claim], object]] = {
    "ack": lambda connection, claim: run(connection, SETTLING["ack"](claim)),
    "acks": lambda connection, claim: run(connection, Ack([claim.done(), must_pop(connection, "other").done()])),
    "ack with a pop": lambda connection, claim: run(
        connection, AckAndPop([claim.done()], Pop("q", "other", None, 1, 1, 1, None, "c", False))
    ),
    "nack": lambda connection, claim: run(connection, SETTLING["nack"](claim)),
    "release": release,
    "expiry": lambda connection, claim: _expire(connection),
    "seek": lambda connection, claim: connection.execute("SELECT penstock.seek_partitions('q', 'g', 'p', 1)"),
}


def _expire(connection: Connection) -> None:
    pass_time(connection, "c")
    sweep(connection)


def slots(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT key, sum(messages)::integer FROM penstock.slots GROUP BY 1").fetchall())


def keys_of(claim: Claim) -> str:
    return "".join(message.key or "" for message in claim.messages)


def heard(listener: Connection) -> list[str]:
    return [notice.payload for notice in listener.notifies(timeout=10, stop_after=1)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_slot_is_freed_when_its_claim_ends_and_the_first_who_waits_is_woken_at_once(
    sql: Connection, connections: Connections, ending: str
) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    create_group(sql, "other")
    for partition in ("p", "second", "third"):
        push_keys(sql, partition, "a")
    holder = must_pop(sql)
    assert pop(sql) is None
    assert slots(sql) == {"a": 1}
    listener = connections.open(autocommit=True)
    listener.execute("LISTEN penstock_pushed")
    ENDINGS[ending](sql, holder)
    assert is_pending(sql)
    assert len(heard(listener)) == 1
    next_one = must_pop(sql)
    if next_one.partition == "p":
        # Given back, it came to the front of the ready list before the one that was woken.
        release(sql, next_one)
        next_one = must_pop(sql)
    assert next_one.partition in ("second", "p")
    assert pop(sql) is None
    assert slots(sql) == {"a": 1}
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_delivered_in_the_end(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, concurrency_limit=2, concurrency_by="key")
    for number in range(10):
        push_keys(sql, f"p{number}", "abacb")
    came = drain(sql)
    assert sorted(came) == [(f"p{number}", offset) for number in range(10) for offset in range(5)]
    assert (slots(sql), one(sql, "SELECT count(*) FROM penstock.waiters")) == ({}, 0)
    assert violations(sql) == {}


def test_a_claim_of_an_ordered_group_takes_one_slot_of_each_key(sql: Connection) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "aabab")
    push_keys(sql, "second", "cab")
    push_keys(sql, "third", "d")
    first = must_pop(sql)
    assert (keys_of(first), slots(sql)) == ("aabab", {"a": 1, "b": 1})
    # The order of a partition is kept, so what comes before a key at its limit is all.
    second, third = must_pop(sql), must_pop(sql)
    assert (keys_of(second), keys_of(third)) == ("c", "d")
    ack(sql, second)
    assert pop(sql) is None
    ack(sql, first)
    assert keys_of(must_pop(sql)) == "ab"


def test_a_claim_of_a_shared_group_takes_a_slot_for_each_message_and_leaves_out_keys_at_their_limit(
    sql: Connection,
) -> None:
    create_group(sql, mode="shared", concurrency_limit=2, concurrency_by="key")
    push_keys(sql, "p", "aabaacab")
    first = must_pop(sql)
    assert (keys_of(first), slots(sql)) == ("aabcb", {"a": 2, "b": 2, "c": 1})
    assert [message.offset for message in first.messages] == [0, 1, 2, 5, 7]
    assert pop(sql) is None
    run(sql, ack_of([first]))
    second = must_pop(sql)
    assert keys_of(second) == "aa"
    ack(sql, second)
    assert keys_of(must_pop(sql)) == "a"
    assert violations(sql) == {}


def test_a_part_of_a_shared_claim_that_is_done_frees_its_slots(sql: Connection) -> None:
    create_group(sql, mode="shared", concurrency_limit=2, concurrency_by="key")
    push_keys(sql, "p", "abbaa")
    claim = must_pop(sql)
    assert (keys_of(claim), slots(sql)) == ("abba", {"a": 2, "b": 2})
    run(sql, Ack([claim.done(1, 3)]))
    assert slots(sql) == {"a": 2}
    assert pop(sql) is None
    run(sql, Ack([claim.done(3, 4)]))
    second = must_pop(sql)
    assert [message.offset for message in second.messages] == [4]
    assert slots(sql) == {"a": 2}
    run(sql, ack_of([claim, second]))
    assert slots(sql) == {}


def test_a_part_of_an_ordered_claim_that_is_done_frees_the_keys_that_do_not_come_again(sql: Connection) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "abac")
    claim = must_pop(sql)
    push_keys(sql, "second", "b")
    assert pop(sql) is None
    run(sql, ack_of([claim], up_to=1))
    assert slots(sql) == {"a": 1, "b": 1, "c": 1}
    run(sql, ack_of([claim], up_to=2))
    assert slots(sql) == {"a": 1, "c": 1}
    assert keys_of(must_pop(sql)) == "b"
    run(sql, ack_of([claim], up_to=3))
    assert slots(sql) == {"b": 1, "c": 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_group_as_a_whole_has_a_limit_and_is_told_when_it_may_go_on(
    sql: Connection, connections: Connections, mode: str
) -> None:
    create_group(sql, mode=mode, concurrency_limit=2, concurrency_by="group")
    push_to_many(sql, 5)
    claims = run(sql, pop_call(partitions=5))
    assert len(claims) == 2
    assert run(sql, pop_call(partitions=5)) == []
    assert not is_pending(sql)
    with writing_nothing(sql):
        assert pop(sql) is None
    listener = connections.open(autocommit=True)
    listener.execute("LISTEN penstock_pushed")
    ack(sql, claims[0])
    assert is_pending(sql)
    assert len(heard(listener)) == 1
    assert len(run(sql, pop_call(partitions=5))) == 1
    ack(sql, claims[1])
    assert len(drain(sql)) == 2
    assert violations(sql) == {}


def test_a_slot_that_is_being_freed_while_somebody_begins_to_wait_is_not_missed(
    sql: Connection, connections: Connections
) -> None:
    """Whoever frees it does not see who waits, and whoever waits does not see that it is free: the sweep sees both."""
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "a")
    push_keys(sql, "second", "a")
    holder = must_pop(sql)
    freeing = connections.open()
    run(freeing, ack_of([holder]))
    assert pop(sql) is None
    freeing.commit()
    assert pop(sql) is None
    due(sql)
    assert sweep(sql).woken >= 1  # type: ignore[union-attr]
    assert pop(sql) is not None


def test_the_sweep_looks_less_and_less_often_where_nothing_is_free(sql: Connection) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "a")
    push_keys(sql, "second", "a")
    must_pop(sql)
    assert pop(sql) is None
    pauses = []
    for _ in range(12):
        due(sql)
        assert sweep(sql).woken == 0  # type: ignore[union-attr]
        pauses.append(one(sql, "SELECT round(extract(epoch FROM look_at - looked_at), 1) FROM penstock.limited_keys"))
    assert pauses == sorted(pauses)
    assert (float(pauses[0]), float(pauses[-1])) == (0.1, 10.0)


def test_two_pops_at_the_same_time_do_not_get_the_same_slot(sql: Connection, connections: Connections) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "a")
    push_keys(sql, "second", "a")
    first, second = connections.open(), connections.open(options="-c lock_timeout=1s")
    got = [pop(first), pop(second)]
    first.commit()
    second.commit()
    assert [claim is not None for claim in got] == [True, False]
    pass_time(sql, "t")
    sweep(sql)
    assert pop(sql) is None
    assert slots(sql) == {"a": 1}


def test_a_new_key_that_two_use_at_the_same_time_makes_nobody_wait(sql: Connection, connections: Connections) -> None:
    create_group(sql, mode="shared", concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "ab")
    first, second = connections.open(), connections.open(options="-c lock_timeout=1s")
    assert keys_of(must_pop(first, most=1)) == "a"
    # The range of b was carved by the one that has not committed.
    assert pop(second) is None
    second.commit()
    first.commit()
    assert keys_of(must_pop(second)) == "b"


def test_a_limit_that_is_removed_while_claims_are_held_leaves_no_slots_that_count(sql: Connection) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "aa")
    push_keys(sql, "second", "a")
    claim = must_pop(sql, most=1)
    assert pop(sql) is None
    configure(sql, '{"concurrency_limit": null}')
    sweep(sql)
    other = must_pop(sql)
    ack(sql, claim)
    ack(sql, other)
    configure(sql, '{"concurrency_limit": 1}')
    push_keys(sql, "third", "a")
    first = pop(sql)
    assert first is None
    due(sql)
    sweep(sql)
    assert keys_of(must_pop(sql)) == "a"
    sql.execute("SELECT penstock.maintain()")
    assert slots(sql) == {"a": 1}


def test_what_counts_as_done_at_once_takes_no_slot(sql: Connection) -> None:
    create_group(sql, mode="shared", concurrency_limit=1)
    push_some(sql, 3)
    assert len(must_pop(sql, auto_ack=True).messages) == 3
    assert slots(sql) == {}


def test_a_deadlock_is_impossible_whichever_keys_two_want(sql: Connection, connections: Connections) -> None:
    create_group(sql, concurrency_limit=5, concurrency_by="key", rate_limit=100, rate_by="key")
    push_keys(sql, "p", "ab")
    push_keys(sql, "second", "ba")
    push_keys(sql, "third", "a")
    first, second = connections.open(), connections.open(options="-c lock_timeout=1s -c deadlock_timeout=100ms")
    assert keys_of(must_pop(first)) == "ab"
    assert pop(second) is None
    assert pop(first) is None
    first.commit()
    second.commit()
    assert len(drain(sql)) == 3


def test_slots_outlive_a_killed_backend_and_go_with_the_lease(sql: Connection, connections: Connections) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="key")
    push_keys(sql, "p", "a")
    push_keys(sql, "second", "a")
    victim = connections.open()
    pid = victim.info.backend_pid
    must_pop(victim)
    sql.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(psycopg.OperationalError):
        victim.execute("SELECT 1")
    assert slots(sql) == {}
    assert must_pop(sql).partition == "p"
    assert pop(sql) is None
    pass_time(sql, "c")
    sweep(sql)
    assert keys_of(must_pop(sql)) == "a"
    assert slots(sql) == {"a": 1}


def due(connection: Connection) -> None:
    """Let the sweep look at all keys, as if the time had come."""
    connection.execute(
        "UPDATE penstock.limited_keys SET looked_at = looked_at - (look_at - clock_timestamp()),"
        " look_at = look_at - (look_at - clock_timestamp()) WHERE look_at IS NOT NULL"
    )
