"""The sweep does what time brings, one at a time, and never waits: nobody's open transaction stops the timers."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from log.interleaving import mutate, push, source

from databases import Connection, Connections
from penstock.broker.infos import SweepResult
from penstock.broker.operations.claiming import Sweep
from penstock.broker.operations.groups import ConfigureGroup, Seek
from penstock.consuming.polling import Sweeping

from .steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    outcome,
    pass_time,
    pop,
    push_some,
    push_to_many,
    release,
    run,
    start,
    sweep,
    violations,
)

SWEEP = Sweep()
LOCK_PARTITION = "SELECT 1 FROM penstock.partitions WHERE name = %s FOR NO KEY UPDATE"
LOCK_JOURNAL = "SELECT 1 FROM penstock.journal FOR UPDATE"


def push_to_a_parked_partition(connections: Connections, sql: Connection) -> Connection:
    push(sql)
    ack(sql, must_pop(sql))
    pass_time(sql, "p")
    other = connections.open()
    push(other)
    return other


def an_ack(connections: Connections, sql: Connection) -> Connection:
    push(sql)
    claim = must_pop(sql)
    other = connections.open()
    ack(other, claim)
    return other


def a_locked_claim_that_expired(connections: Connections, sql: Connection) -> Connection:
    push(sql)
    must_pop(sql)
    pass_time(sql)
    other = connections.open()
    other.execute(LOCK_JOURNAL)
    return other


def a_late_ack_of_a_partition_that_is_in_line_again(connections: Connections, sql: Connection) -> Connection:
    """It locks the row that says ready, finds that its lease is lost, and does not end its transaction."""
    push_some(sql, 2)
    claim = must_pop(sql, most=1)
    release(sql, claim)
    other = connections.open()
    assert outcome(lambda: ack(other, claim)) == "lost"
    ack(sql, must_pop(sql, most=2))
    pass_time(sql)
    return other


def a_late_ack_of_a_partition_that_was_parked(connections: Connections, sql: Connection) -> Connection:
    """The row that it locked says parked, and is not the newest any more."""
    push(sql)
    claim = must_pop(sql)
    ack(sql, claim)
    other = connections.open()
    assert outcome(lambda: ack(other, claim)) == "lost"
    push(sql)
    pass_time(sql, "c")
    other.execute("UPDATE penstock.journal SET due_at = due_at - interval '1 day' WHERE state = 'p'")
    other.commit()
    other.execute("SELECT 1 FROM penstock.journal WHERE state = 'p' FOR UPDATE")
    return other


def a_pop_with_auto_ack(connections: Connections, sql: Connection) -> Connection:
    push_some(sql, 2)
    other = connections.open()
    must_pop(other, auto_ack=True)
    return other


def a_seek(connections: Connections, sql: Connection) -> Connection:
    push_some(sql, 2)
    must_pop(sql)
    pass_time(sql)
    other = connections.open()
    run(other, Seek("q", "g", position="earliest"))
    return other


def a_late_wakeup_of_a_locked_partition(connections: Connections, sql: Connection) -> Connection:
    push(sql)
    sql.execute("INSERT INTO penstock.late_wakeups SELECT partition_id, 0 FROM penstock.partitions")
    other = connections.open()
    other.execute(LOCK_PARTITION, ("p",))
    return other


def a_group_whose_settings_change(connections: Connections, sql: Connection) -> Connection:
    push(sql)
    sql.execute("UPDATE penstock.consumer_groups SET enrolled_to = 0")
    other = connections.open()
    run(other, ConfigureGroup("q", "g", {"lease_time": 5}))
    return other


HOLDERS = [
    push_to_a_parked_partition,
    an_ack,
    a_locked_claim_that_expired,
    a_late_ack_of_a_partition_that_is_in_line_again,
    a_late_ack_of_a_partition_that_was_parked,
    a_pop_with_auto_ack,
    a_seek,
    a_late_wakeup_of_a_locked_partition,
    a_group_whose_settings_change,
]


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_the_sweep_does_not_wait_for(
    connections: Connections, sql: Connection, hold: Callable[[Connections, Connection], Connection]
) -> None:
    create_group(sql)
    other = hold(connections, sql)
    push(sql, "elsewhere")
    expired = must_pop(sql, partition="elsewhere")
    sql.execute(
        "UPDATE penstock.journal SET due_at = due_at - interval '1 day' WHERE partition_id = %s",
        (expired.partition_id,),
    )
    sweeping = start(connections.open(autocommit=True), SWEEP)
    assert not sweeping.waits(sql)
    assert newest(sql, partition="elsewhere")[1] == "r"
    other.commit()
    drain(sql)
    assert violations(sql) == {}


def range_being_acked(connections: Connections, sql: Connection) -> Connection:
    claim = must_pop(sql, most=5)
    pass_time(sql)
    other = connections.open()
    other.execute("SELECT 1 FROM penstock.claims WHERE lease_id = %s FOR UPDATE", (claim.lease_id,))
    return other


def range_being_popped(connections: Connections, sql: Connection) -> Connection:
    other = connections.open()
    must_pop(other, most=5)
    return other


@pytest.mark.parametrize("hold", [range_being_acked, range_being_popped], ids=lambda hold: hold.__name__)
def test_the_sweep_of_a_shared_group_does_not_wait_for(
    connections: Connections, sql: Connection, hold: Callable[[Connections, Connection], Connection]
) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 20)
    other = hold(connections, sql)
    sweeping = start(connections.open(autocommit=True), SWEEP)
    assert not sweeping.waits(sql)
    other.rollback()
    pass_time(sql)
    sweep(sql)
    assert sorted(offsets(drain(sql))) == list(range(20))
    assert violations(sql) == {}


def sweeps_past(
    connections: Connections, sql: Connection, hold: Callable[[Connections, Connection], Connection]
) -> bool:
    """Say whether a sweep ends while somebody holds a lock."""
    create_group(sql)
    other = hold(connections, sql)
    sweeping = start(connections.open(autocommit=True), SWEEP)
    waits = sweeping.waits(sql)
    other.rollback()
    sweeping.rows()
    return not waits


@pytest.mark.parametrize(
    "hold", [push_to_a_parked_partition, a_locked_claim_that_expired], ids=lambda hold: hold.__name__
)
def test_without_skip_locked_the_sweep_waits_for(
    fresh: Connections, hold: Callable[[Connections, Connection], Connection]
) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "sweep_timer", ("UPDATE SKIP LOCKED", "UPDATE"))
    assert not sweeps_past(fresh, sql, hold)


def test_without_skip_locked_the_trimming_waits_for_a_late_ack(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "sweep_together", ("FOR UPDATE OF o SKIP LOCKED", "FOR UPDATE OF o"))
    assert not sweeps_past(fresh, sql, a_late_ack_of_a_partition_that_is_in_line_again)


@pytest.mark.parametrize("mode", MODES)
def test_of_two_sweeps_at_once_the_second_returns_at_once_and_does_nothing(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    must_pop(sql)
    pass_time(sql)
    first = connections.open()
    swept = sweep(first)
    assert swept is not None
    assert swept.woken >= 1
    second = start(connections.open(autocommit=True), SWEEP)
    assert not second.waits(sql)
    assert second.rows() == []
    first.commit()
    assert must_pop(sql).attempt == 2
    assert pop(sql) is None
    assert violations(sql) == {}


def test_a_sweep_that_rolls_back_leaves_its_work_to_the_next(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push(sql)
    must_pop(sql)
    pass_time(sql)
    first = connections.open()
    sweep(first)
    first.rollback()
    assert pop(sql) is None
    sweep(sql)
    assert must_pop(sql).attempt == 2


def test_a_claim_that_expired_is_taken_back_once_although_many_sweep(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push(sql)
    must_pop(sql)
    pass_time(sql, "c")
    sweepers = [start(connections.open(autocommit=True), SWEEP) for _ in range(4)]
    for sweeper in sweepers:
        sweeper.rows()
    sweep(sql)
    assert newest(sql)[:2] == (3, "r")
    assert must_pop(sql).attempt == 2


def locked_partitions_beside_an_expired_claim(connections: Connections, sql: Connection) -> str:
    """More parked partitions than a sweep visits are locked by one push; another's lease has expired; who gets it?"""
    create_group(sql)
    push_to_many(sql, 20)
    for _ in range(20):
        ack(sql, must_pop(sql))
    pass_time(sql)
    holder = connections.open()
    holder.execute("SELECT 1 FROM penstock.partitions ORDER BY partition_id FOR NO KEY UPDATE")
    push(sql)
    must_pop(sql)
    sql.execute(
        "UPDATE penstock.journal SET due_at = clock_timestamp() WHERE state = 'c' AND due_at > clock_timestamp()"
    )
    for _ in range(3):
        sql.execute("SELECT penstock.sweep(10)")
    state: str = newest(sql)[1]
    holder.rollback()
    return state


def test_many_locked_partitions_do_not_keep_the_sweep_from_others(connections: Connections, sql: Connection) -> None:
    assert locked_partitions_beside_an_expired_claim(connections, sql) == "r"


def test_without_going_on_past_them_they_do(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "sweep_together", ("EXIT WHEN visited < max_rows OR woken + trimmed >= max_rows;", "EXIT;"))
    assert locked_partitions_beside_an_expired_claim(fresh, sql) == "c"


def test_the_sweep_takes_no_lock_that_it_would_wait_for() -> None:
    for function in ("sweep_together", "serve_timer", "sweep_timer", "enrol_partitions", "publish_scheduled"):
        locks = [
            line for line in source(function).splitlines() if " UPDATE" in line and line.lstrip().startswith("FOR ")
        ]
        assert locks
        assert all("SKIP LOCKED" in line for line in locks)


def test_a_sweep_says_where_the_next_one_may_begin(sql: Connection) -> None:
    done = sweep(sql)
    assert done is not None
    ((behind,),) = sql.execute("SELECT clock_timestamp() - %s", (done.swept_to,)).fetchall()
    assert 2 <= behind.total_seconds() < 60


def test_a_sweep_that_did_not_get_to_the_end_says_nothing_of_the_kind(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 20)
    for _ in range(20):
        ack(sql, must_pop(sql))
    pass_time(sql)
    assert sql.execute("SELECT swept_to FROM penstock.sweep(10)").fetchall() == [(None,)]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_what_was_due_before_is_left_to_a_sweep_from_the_beginning(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push(sql)
    must_pop(sql)
    pass_time(sql)
    later = run(sql, Sweep(datetime.now(UTC) + timedelta(hours=1)))
    assert (later and later.woken) == 0
    everything = run(sql, Sweep())
    # In a shared group the frontier's own timer is due, too.
    assert (everything and everything.woken) == {"ordered": 1, "shared": 2}[mode]


def test_served_timers_cost_a_sweep_nothing_although_a_transaction_is_open(
    connections: Connections, sql: Connection
) -> None:
    create_group(sql)
    holder = connections.open()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1")
    for _ in range(300):
        push(sql)
        ack(sql, must_pop(sql))
        sql.execute("UPDATE penstock.journal SET due_at = clock_timestamp() WHERE due_at > clock_timestamp()")
        sweep(sql)

    def pages(since: str) -> int:
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT penstock.sweep(since => {since})"
        ((plans,),) = sql.execute(statement.encode()).fetchall()
        return int(plans[0]["Plan"]["Shared Hit Blocks"])

    # The better of two: after autovacuum has been here, the first one plans anew.
    assert min(pages("clock_timestamp()") for _ in range(2)) * 3 < pages("'-infinity'")
    holder.rollback()


def test_a_process_begins_where_its_last_sweep_said() -> None:
    sweeping = Sweeping()
    assert sweeping.since() is None
    moment = datetime.now(UTC)
    sweeping.did(SweepResult(1, 0, 0, None, moment))
    assert sweeping.since() == moment
    sweeping.did(SweepResult(0, 0, 0, None, None))
    sweeping.did(None)
    assert sweeping.since() == moment
    assert sweeping.brought == 1
