"""A message that is pushed while a consumer finds nothing is delivered all the same.

The push saw that the partition was ready, or held, and left it alone; the consumer could not see the message yet.
So a partition never becomes idle by a consumer's word, only by that of the sweep, under the lock that a push holds.
"""

import pytest
from log.interleaving import PUSH_ONE, Running, mutate, push

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Pop

from .steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    pass_time,
    pop,
    push_some,
    run,
    sweep,
    violations,
)

LOST = {"work_not_ready": 1}


def push_during_an_empty_pop(connections: Connections, sql: Connection, mode: str = "ordered") -> list[int]:
    """The push sees the partition in the ready list; the pop finds nothing and gives up; then the push commits."""
    create_group(sql, mode=mode)
    push_some(sql, 1)
    sql.execute("SELECT penstock.purge('q')")
    pusher = connections.open()
    push(pusher)
    assert newest(pusher)[1] == "r"
    assert pop(sql) is None
    pusher.commit()
    return offsets(drain(sql))


def push_during_an_ack(connections: Connections, sql: Connection) -> list[int]:
    """The push sees the partition claimed; the ack sees nothing more to give; then the push commits."""
    create_group(sql)
    push(sql)
    claim = must_pop(sql)
    pusher = connections.open()
    push(pusher)
    ack(sql, claim)
    pusher.commit()
    return offsets(drain(sql))


def push_during_a_sweep(connections: Connections, sql: Connection, mode: str = "ordered") -> list[int]:
    """The push sees the partition in the ready list; the pop parks it; the sweep comes before the push commits."""
    create_group(sql, mode=mode)
    push_some(sql, 1)
    sql.execute("SELECT penstock.purge('q')")
    pusher = connections.open()
    push(pusher)
    assert pop(sql) is None
    pass_time(sql)
    sweep(sql)
    pusher.commit()
    return offsets(drain(sql))


@pytest.mark.parametrize("mode", MODES)
def test_a_push_that_saw_ready_is_delivered_though_a_pop_found_nothing(
    connections: Connections, sql: Connection, mode: str
) -> None:
    assert push_during_an_empty_pop(connections, sql, mode) == [1]
    assert violations(sql) == {}


def test_without_parking_an_empty_pop_loses_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "claim_partition",
        ("CASE WHEN retry_at IS NULL THEN 'p' ELSE 't' END", "'i'"),
        ("coalesce(retry_at, clock_timestamp() + interval '50 milliseconds')", "retry_at"),
    )
    assert push_during_an_empty_pop(fresh, sql) == []
    assert violations(sql) == LOST


def test_without_parking_an_empty_pop_of_a_shared_group_loses_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "claim_range",
        ("CASE WHEN given.due_at IS NULL THEN 'p' ELSE 't' END", "'i'"),
        ("due_at => coalesce(given.due_at, clock_timestamp() + interval '50 milliseconds')", "due_at => NULL"),
    )
    assert push_during_an_empty_pop(fresh, sql, "shared") == []
    assert violations(sql) == LOST


def test_a_push_that_saw_a_claim_is_delivered_though_the_ack_saw_no_more(
    connections: Connections, sql: Connection
) -> None:
    assert push_during_an_ack(connections, sql) == [1]
    assert violations(sql) == {}


def parked_for_long(fresh: Connections) -> Connection:
    """A schema in which parked partitions are due so late that no machine is too slow for a test."""
    sql = fresh.open(autocommit=True)
    for function in ("end_claim", "look_again"):
        mutate(sql, function, ("50 milliseconds", "50 minutes"))
    return sql


def relaxed_pop(connection: Connection) -> Claim | None:
    """Pop as clients do in transactions of their own."""
    claims = run(connection, Pop("q", "g", None, 100, 8 << 20, 1, None, "c", False, durable=False))
    return claims[0] if claims else None


def park_during_a_push(fresh: Connections, sql: Connection) -> None:
    """The push sees the partition claimed, the ack sees nothing more to give, and then the push commits."""
    create_group(sql)
    push(sql)
    claim = must_pop(sql)
    pusher = fresh.open()
    push(pusher)
    ack(sql, claim)
    assert relaxed_pop(sql) is None
    pusher.commit()


def test_the_next_pop_finds_a_message_that_an_ack_did_not_see_without_a_sweep(fresh: Connections) -> None:
    sql = parked_for_long(fresh)
    park_during_a_push(fresh, sql)
    # Not in a transaction that others would wait for.
    assert pop(sql) is None
    found = relaxed_pop(sql)
    assert found is not None
    assert (found.start, found.stop) == (1, 2)
    assert violations(sql) == {}


def test_a_pop_leaves_a_parked_partition_to_the_push_that_is_under_way(fresh: Connections) -> None:
    sql = parked_for_long(fresh)
    park_during_a_push(fresh, sql)
    pusher = fresh.open()
    push(pusher)
    assert relaxed_pop(sql) is None
    pusher.commit()
    found = relaxed_pop(sql)
    assert found is not None
    assert (found.start, found.stop) == (1, 3)
    assert violations(sql) == {}


def test_a_pop_of_another_group_leaves_what_was_parked_alone(fresh: Connections) -> None:
    sql = parked_for_long(fresh)
    park_during_a_push(fresh, sql)
    create_group(sql, "other")
    while sweep(sql).enrolled:  # type: ignore[union-attr]
        pass
    assert len(drain(sql, "other")) > 0
    before = newest(sql)
    assert run(sql, Pop("q", "other", None, 100, 8 << 20, 1, None, "c", False, durable=False)) == []
    assert newest(sql) == before


def test_a_pop_that_looks_again_in_vain_writes_nothing(fresh: Connections) -> None:
    sql = parked_for_long(fresh)
    create_group(sql)
    push(sql)
    ack(sql, must_pop(sql))
    before = newest(sql)
    assert before[1] == "p"
    assert relaxed_pop(sql) is None
    assert newest(sql) == before


def test_without_parking_an_ack_loses_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "end_claim",
        ("CASE WHEN entry IS NOT NULL THEN 'r' ELSE 'p' END", "CASE WHEN entry IS NOT NULL THEN 'r' ELSE 'i' END"),
        ("CASE WHEN entry IS NULL THEN clock_timestamp() + interval '50 milliseconds' END", "NULL"),
    )
    assert push_during_an_ack(fresh, sql) == []
    assert violations(sql) == LOST


@pytest.mark.parametrize("mode", MODES)
def test_a_sweep_leaves_a_parked_partition_to_the_push_that_is_under_way(
    connections: Connections, sql: Connection, mode: str
) -> None:
    assert push_during_a_sweep(connections, sql, mode) == [1]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_without_the_partitions_lock_a_sweep_loses_the_message(fresh: Connections, mode: str) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "sweep_timer",
        ("WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED", "WHERE p.partition_id = target"),
    )
    assert push_during_a_sweep(fresh, sql, mode) == []
    assert violations(sql) == LOST


def test_a_push_that_waited_for_the_sweep_wakes_the_partition_itself(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push(sql)
    ack(sql, must_pop(sql))
    pass_time(sql, "p")
    sweeper, pusher = connections.open(), connections.open()
    sweep(sweeper)
    assert newest(sweeper)[1] == "i"
    pushing = Running(pusher, PUSH_ONE, "p")
    assert pushing.waits(sql)
    sweeper.commit()
    assert pushing.value() == 1
    pusher.commit()
    assert newest(sql)[1] == "r"
    assert offsets(drain(sql)) == [1]
