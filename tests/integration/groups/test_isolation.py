"""Callers above READ COMMITTED: their pushes are delivered after a sweep; consuming there is refused."""

from typing import Any

import pytest
from log.interleaving import PUSHES, mutate, push
from psycopg import IsolationLevel, errors

from databases import Connection, Connections
from penstock.broker.operations.claiming import Nack, Release, Renew, Sweep
from penstock.broker.operations.groups import CreateGroup, Resync, Seek
from penstock.broker.operations.operation import Operation

from .steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    pop,
    pop_call,
    run,
    sweep,
    violations,
)

LEVELS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def push_from_an_old_snapshot(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str, mode: str = "ordered"
) -> list[int]:
    """The snapshot shows the partition as ready; meanwhile it is consumed and goes idle; then the push commits."""
    create_group(sql, mode=mode)
    push(sql)
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    assert offsets(drain(sql)) == [0]
    assert newest(sql)[1] == "i"
    push(caller, statement=statement)
    caller.commit()
    assert pop(sql) is None
    return offsets(drain(sql))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_push_from_an_old_snapshot_rings_and_the_sweep_wakes_the_partition(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str, mode: str
) -> None:
    assert push_from_an_old_snapshot(connections, sql, level, statement, mode) == [1]
    assert sql.execute("SELECT count(*) FROM penstock.late_wakeups").fetchall() == [(0,)]
    assert violations(sql) == {}


def test_without_the_late_wakeup_such_a_push_is_lost(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql, "append_segments", ("IF current_setting('transaction_isolation') = 'read committed' THEN", "IF true THEN")
    )
    assert push_from_an_old_snapshot(fresh, sql, IsolationLevel.REPEATABLE_READ, PUSHES[0]) == []
    assert violations(sql) == {"work_not_ready": 1}


def push_beside_a_late_wakeup(connections: Connections, sql: Connection) -> list[int]:
    """A group of new messages has not heard of a push above READ COMMITTED when another push wakes it."""
    push(sql)
    run(sql, CreateGroup("q", "g", "ordered", "new"))
    sweep(sql)
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    push(caller)
    caller.commit()
    push(sql)
    return offsets(drain(sql))


def test_a_group_of_new_messages_loses_none_of_a_push_from_a_higher_level(
    connections: Connections, sql: Connection
) -> None:
    assert push_beside_a_late_wakeup(connections, sql) == [1, 2]
    assert violations(sql) == {}


def test_verify_sees_a_group_that_began_after_a_message_that_was_for_it(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "begin_partition", ("least(base_offset, penstock.offset_at(target, moment))", "base_offset"))
    assert push_beside_a_late_wakeup(fresh, sql) == [2]
    assert violations(sql) == {"messages_passed_over": 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_late_wakeup_that_has_not_fired_counts_as_lag_and_is_no_fault(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    run(sql, CreateGroup("q", "new", mode, "new"))
    push(sql)
    drain(sql), drain(sql, "new")
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    push(caller), push(caller, "other")
    caller.commit()
    lags = "SELECT penstock.lag('q', 'g'), penstock.lag('q', 'new')"
    assert sql.execute(lags).fetchall() == [(2, 2)]
    assert violations(sql) == {}
    sweep(sql)
    assert sql.execute(lags).fetchall() == [(2, 2)]
    assert sorted(drain(sql)) == sorted(drain(sql, "new")) == [("other", 0), ("p", 1)]
    assert sql.execute(lags).fetchall() == [(0, 0)]


def test_a_new_partition_that_rings_is_taken_up_by_groups_that_its_push_could_not_see(
    connections: Connections, sql: Connection
) -> None:
    push(sql, "other")
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("SELECT 1 FROM penstock.queues")
    create_group(sql)
    drain(sql)
    push(caller)
    caller.commit()
    assert violations(sql) == {}
    assert offsets(drain(sql)) == [0]


def test_of_several_rings_each_is_answered(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    for partition in ("a", "a", "b"):
        push(caller, partition)
        caller.commit()
    swept = sweep(sql)
    assert swept is not None
    assert swept.woken == 3
    assert sorted(drain(sql)) == [("a", 0), ("a", 1), ("b", 0)]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("mode", MODES)
def test_consuming_above_read_committed_is_refused_and_says_what_to_do(
    connections: Connections, sql: Connection, level: IsolationLevel, mode: str
) -> None:
    create_group(sql, mode=mode)
    push(sql), push(sql)
    claim = must_pop(sql, most=1)
    caller = connections.open()
    caller.isolation_level = level
    calls: dict[str, Operation[Any]] = {
        "pop": pop_call(),
        "ack": ack_of([claim]),
        "nack": Nack(claim.lease, None, None, None, None),
        "renew": Renew([claim.lease]),
        "release": Release(claim.lease),
        "sweep": Sweep(),
        "seek": Seek("q", "g", position="earliest"),
        "create_group": CreateGroup("q", "new", mode, "all"),
        "resync": Resync(),
    }
    for name, call in calls.items():
        with pytest.raises(errors.ActiveSqlTransaction, match=f"penstock.{name} needs a READ COMMITTED") as caught:
            run(caller, call)
        assert "READ COMMITTED" in (caught.value.diag.message_hint or "")
        caller.rollback()
    ack(sql, claim)
    assert offsets(drain(sql)) == [1]


def test_a_pop_that_does_not_say_whether_it_acknowledges_is_refused(sql: Connection) -> None:
    one = "SELECT * FROM penstock.pop_claims('q', 'g', auto_ack => NULL)"
    several = (
        "SELECT * FROM penstock.pop_claims_batch('{q}', '{g}', '{NULL}', '{1}', '{100}', '{1}', '{NULL}', '{c}',"
        " '{NULL}', '{NULL}')"
    )
    for statement in (one, several):
        with pytest.raises(errors.InvalidParameterValue, match="auto_ack is null but must be true or false"):
            sql.execute(statement.encode())
    assert sql.execute("SELECT count(*) FROM penstock.journal").fetchall() == [(0,)]
