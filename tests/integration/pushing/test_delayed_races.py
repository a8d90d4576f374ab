"""A delayed message gets its offset once, whoever sweeps, cancels, deletes or crashes at that moment."""

import threading
from typing import Any

import pytest
from groups.steps import create_group, drain, must_pop, offsets, pop, push_to_many, run, start, sweep, violations
from groups.test_plans import cost
from log.interleaving import Running, gapless, mutate
from psycopg import IsolationLevel, errors

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.broker.operations.claiming import Sweep
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import CancelScheduled, ListScheduled
from penstock.postgres.statements.call import call_for

from .steps import LATER, cancel, come_due, push, push_call, schedule, start_cancel, values, waiting

SWEEP = Sweep()
HIGHER = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def test_what_is_due_goes_to_the_log_in_order_of_due_time_and_then_of_pushing(sql: Connection) -> None:
    run(sql, push_call("third", delay=30.0))
    run(sql, push_call("first", delay=10.0))
    run(sql, push_call("second, one", "second, two", delay=20.0))
    run(sql, push_call("fourth", delay=30.0))
    sql.execute(
        "UPDATE penstock.scheduled SET due_at = date_trunc('minute', due_at) + interval '1 minute'"
        " WHERE scheduled_id IN (SELECT s.scheduled_id FROM penstock.scheduled s ORDER BY s.due_at DESC LIMIT 2)"
    )
    come_due(sql)
    sweep(sql)
    assert values(sql) == ["first", "second, one", "second, two", "third", "fourth"]
    assert gapless(sql)


def two_sweeps(connections: Connections, sql: Connection) -> list[str]:
    """One sweep has published and not committed when another comes; return what is in the log in the end."""
    schedule(sql, "x")
    come_due(sql)
    first = connections.open()
    sweep(first)
    second = start(connections.open(autocommit=True), SWEEP)
    waited = second.waits(sql)
    first.commit()
    second.rows()
    sweep(sql)
    return ["waited", *values(sql)] if waited else values(sql)


def test_of_two_sweeps_at_once_one_publishes_and_the_other_does_not_wait(
    connections: Connections, sql: Connection
) -> None:
    assert two_sweeps(connections, sql) == ["x"]


def test_without_the_sweeps_own_lock_the_rows_locks_still_let_one_publish(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "sweep", ("LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;", "NULL;"))
    assert two_sweeps(fresh, sql) == ["x"]


def test_without_any_of_these_locks_a_message_is_published_twice(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "sweep", ("LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;", "NULL;"))
    mutate(
        sql,
        "publish_scheduled",
        ("            FOR NO KEY UPDATE SKIP LOCKED\n", ""),
        ("            FOR UPDATE SKIP LOCKED\n", ""),
        (
            "DELETE FROM penstock.scheduled s\n            WHERE",
            "SELECT s.* FROM penstock.scheduled s\n            WHERE",
        ),
        ("            RETURNING s.*\n", ""),
        ("FROM gone g;", "FROM gone g; DELETE FROM penstock.scheduled s WHERE s.scheduled_id = ANY (taken.ids);"),
    )
    assert two_sweeps(fresh, sql) == ["waited", "x", "x"]


def test_a_sweep_that_crashes_has_published_nothing_and_lost_nothing(connections: Connections, sql: Connection) -> None:
    waits = schedule(sql, "x")
    come_due(sql)
    crashing = connections.open()
    sweep(crashing)
    sql.execute("SELECT pg_terminate_backend(%s, 10000)", (crashing.info.backend_pid,))
    assert waiting(sql) == [waits]
    sweep(sql)
    assert values(sql) == ["x"]
    assert waiting(sql) == []


def cancel_while_sweeping(connections: Connections, sql: Connection, commit: bool) -> list[int]:
    """A sweep has published and not committed when somebody cancels; return what was cancelled."""
    wanted = schedule(sql, "x")
    come_due(sql)
    sweeper = connections.open()
    sweep(sweeper)
    cancelling = start_cancel(connections.open(autocommit=True), wanted)
    assert cancelling.waits(sql)
    if commit:
        sweeper.commit()
    else:
        sweeper.rollback()
    cancelled: list[int] = cancelling.value()
    return cancelled


def test_a_cancel_that_meets_the_sweep_is_too_late(connections: Connections, sql: Connection) -> None:
    assert cancel_while_sweeping(connections, sql, commit=True) == []
    assert values(sql) == ["x"]


def test_a_cancel_that_meets_a_sweep_that_fails_is_in_time(connections: Connections, sql: Connection) -> None:
    assert len(cancel_while_sweeping(connections, sql, commit=False)) == 1
    sweep(sql)
    assert values(sql) == []


def sweep_while_cancelling(connections: Connections, sql: Connection) -> tuple[bool, list[str]]:
    """Somebody has cancelled and not committed when a sweep comes; return whether it waits, and what is published."""
    wanted = schedule(sql, "x")
    schedule(sql, "y")
    come_due(sql)
    canceller = connections.open()
    assert cancel(canceller, wanted) == [wanted]
    sweeping = start(connections.open(autocommit=True), SWEEP)
    waited = sweeping.waits(sql)
    if not waited:
        assert values(sql) == ["y"]
    canceller.commit()
    sweeping.rows()
    sweep(sql)
    return waited, values(sql)


def test_a_sweep_that_meets_a_cancel_passes_it_over_and_does_not_wait(
    connections: Connections, sql: Connection
) -> None:
    assert sweep_while_cancelling(connections, sql) == (False, ["y"])
    assert violations(sql) == {}


def test_without_skip_locked_the_sweep_waits_for_a_cancel(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "publish_scheduled", ("            FOR UPDATE SKIP LOCKED\n", "            FOR UPDATE\n"))
    assert sweep_while_cancelling(fresh, sql)[0] is True


def test_a_cancel_that_rolls_back_leaves_the_message_to_the_sweep(connections: Connections, sql: Connection) -> None:
    wanted = schedule(sql, "x")
    canceller = connections.open()
    assert cancel(canceller, wanted) == [wanted]
    canceller.rollback()
    come_due(sql)
    sweep(sql)
    assert values(sql) == ["x"]


def test_of_two_who_cancel_one_is_in_time(connections: Connections, sql: Connection) -> None:
    wanted = schedule(sql, "x")
    first = connections.open()
    assert cancel(first, wanted) == [wanted]
    second = start_cancel(connections.open(autocommit=True), wanted)
    assert second.waits(sql)
    first.commit()
    assert second.value() == []


def publish_beside_a_push(connections: Connections, sql: Connection) -> bool:
    """A push to the partition is open, and something is due there and elsewhere; return whether the sweep waits."""
    push(sql, "old")
    schedule(sql, "x")
    schedule(sql, "y", partition="elsewhere")
    come_due(sql)
    pusher = connections.open()
    push(pusher, "new")
    sweeping = start(connections.open(autocommit=True), SWEEP)
    waited = sweeping.waits(sql)
    pusher.commit()
    sweeping.rows()
    return waited


def test_a_locked_partition_is_tried_again_and_holds_up_no_other(connections: Connections, sql: Connection) -> None:
    assert publish_beside_a_push(connections, sql) is False
    assert (values(sql), values(sql, "elsewhere")) == (["old", "new"], ["y"])
    sweep(sql)
    assert values(sql) == ["old", "new", "x"]
    assert gapless(sql)


def test_without_skip_locked_the_sweep_waits_for_a_push(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "publish_scheduled", ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"))
    assert publish_beside_a_push(fresh, sql) is True


def test_partitions_that_are_locked_altogether_do_not_hide_those_after_them(
    connections: Connections, sql: Connection
) -> None:
    for number in range(6):
        schedule(sql, number, partition=f"n{number}")
    come_due(sql)
    holder = connections.open()
    holder.execute("SELECT 1 FROM penstock.partitions WHERE name < 'n5' FOR NO KEY UPDATE")
    sql.execute("SELECT penstock.sweep(2)")
    assert values(sql, "n5") == [5]
    holder.rollback()


def test_a_group_that_is_being_created_gets_what_becomes_due_meanwhile(
    connections: Connections, sql: Connection
) -> None:
    schedule(sql, "x")
    come_due(sql)
    creator = connections.open()
    create_group(creator)
    sweeping = start(connections.open(autocommit=True), SWEEP)
    assert not sweeping.waits(sql)
    creator.commit()
    assert offsets(drain(sql)) == [0]
    assert violations(sql) == {}


def test_a_group_gets_what_a_sweep_publishes_that_does_not_know_of_it(
    connections: Connections, sql: Connection
) -> None:
    schedule(sql, "x")
    come_due(sql)
    sweeper = connections.open()
    # Not the whole sweep, which would keep others from sweeping.
    sweeper.execute("SELECT penstock.publish_scheduled(10, '-infinity', '-infinity')")
    create_group(sql)
    sweep(sql)
    sweep(sql)
    sweeper.commit()
    assert offsets(drain(sql)) == [0]
    assert violations(sql) == {}


def test_groups_are_woken_by_what_is_published(sql: Connection) -> None:
    create_group(sql)
    create_group(sql, "s", "shared")
    push(sql, "old")
    drain(sql), drain(sql, "s")
    schedule(sql, "x")
    assert pop(sql) is None
    come_due(sql)
    sweep(sql)
    assert [must_pop(sql).start, must_pop(sql, "s").start] == [1, 1]
    assert violations(sql) == {}


def test_a_delayed_push_that_is_open_holds_up_no_push_to_its_partition(
    connections: Connections, sql: Connection
) -> None:
    push(sql, "old")
    delaying = connections.open()
    schedule(delaying, "x")
    pushing = start(connections.open(autocommit=True), push_call("new"))
    assert not pushing.waits(sql)
    delaying.commit()
    assert values(sql) == ["old", "new"]


def delete_while_delaying(connections: Connections, sql: Connection, what: str) -> Running:
    """A delayed push is open when its partition or queue is deleted."""
    push(sql, "old")
    delaying = connections.open()
    schedule(delaying, "x")
    deleting = Running(connections.open(autocommit=True), what)
    deleting.waits(sql)
    delaying.commit()
    deleting.rows()
    return deleting


DELETIONS = ["SELECT penstock.delete_partition('q', 'p')", "SELECT penstock.delete_queue('q')"]


@pytest.mark.parametrize("what", DELETIONS)
def test_a_deletion_takes_what_is_scheduled_with_it(connections: Connections, sql: Connection, what: str) -> None:
    schedule(sql, "y")
    delete_while_delaying(connections, sql, what)
    assert waiting(sql) == []
    assert violations(sql) == {}


def test_without_the_lock_a_deletion_leaves_an_orphan(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "lock_partitions", ("            FOR KEY SHARE;", ";"))
    delete_while_delaying(fresh, sql, DELETIONS[0])
    assert violations(sql) == {"orphan_schedules": 1}


def test_a_message_is_not_measured_again_when_it_is_due(sql: Connection) -> None:
    schedule(sql, "x" * 100)
    sql.execute("SELECT penstock.configure_queue('q', '{\"max_message_bytes\": 10}')")
    come_due(sql)
    sweep(sql)
    assert values(sql) == ["x" * 100]


def test_a_sweep_publishes_no_more_than_it_is_told_and_goes_on_later(sql: Connection) -> None:
    for number in range(10):
        schedule(sql, number)
    come_due(sql)
    for published in (4, 8, 10):
        sql.execute("SELECT penstock.sweep(4)")
        assert values(sql) == list(range(published))


def test_a_sweep_publishes_a_bounded_number_of_bytes(sql: Connection) -> None:
    for _ in range(20):
        schedule(sql, b'"' + b"x" * 1_000_000 + b'"')
    come_due(sql)
    sweep(sql)
    assert 15 <= 20 - len(waiting(sql)) < 20
    sweep(sql)
    assert waiting(sql) == []


def test_a_sweep_holds_no_more_than_that_at_once_but_always_one_push(sql: Connection) -> None:
    sql.execute("SELECT penstock.create_queue('q', '{\"max_message_bytes\": 20000000}')")
    for size in (9_000_000, 9_000_000, 17_000_000, 1):
        sql.execute("SELECT penstock.push('q', ARRAY[repeat('x', %s)::bytea], 'p', delay => 0)", (size,))
    published = []
    for _ in range(4):
        swept = sweep(sql)
        assert swept is not None
        published.append((swept.woken, swept.swept_to is None))
    assert published == [(1, True), (1, True), (1, True), (1, False)]


def test_retention_counts_from_when_it_got_its_offset(sql: Connection) -> None:
    sql.execute('SELECT penstock.create_queue(\'q\', \'{"retention_time": 3600, "retention_rule": "drop_and_count"}\')')
    schedule(sql, "x")
    sql.execute("UPDATE penstock.scheduled SET created_at = created_at - interval '1 day'")
    sql.execute("SELECT penstock.maintain()")
    come_due(sql)
    sweep(sql)
    sql.execute("SELECT penstock.maintain()")
    assert values(sql) == ["x"]


def test_the_next_timer_is_that_of_what_is_scheduled(sql: Connection) -> None:
    run(sql, push_call("x", delay=9.0))
    swept = sweep(sql)
    assert swept is not None
    ((due_at,),) = sql.execute("SELECT due_at FROM penstock.scheduled").fetchall()
    assert swept.next_due == due_at
    create_group(sql)
    push(sql, "y")
    must_pop(sql, lease=1.0)
    swept = sweep(sql)
    assert swept is not None
    assert swept.next_due is not None
    assert swept.next_due < due_at


def test_a_sweep_that_left_something_does_not_say_that_the_next_may_begin_after_it(
    connections: Connections, sql: Connection
) -> None:
    schedule(sql, "x")
    come_due(sql)
    holder = connections.open()
    holder.execute("SELECT 1 FROM penstock.partitions FOR NO KEY UPDATE")
    first = sweep(sql)
    holder.rollback()
    second = sweep(sql)
    assert first is not None
    assert second is not None
    assert (first.woken, first.swept_to, second.woken) == (0, None, 1)
    assert second.swept_to is not None


def test_a_sweep_with_nothing_due_writes_nothing(sql: Connection) -> None:
    schedule(sql, "x")
    before = sql.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    ((transactions,),) = sql.execute("SELECT txid_snapshot_xmax(txid_current_snapshot())").fetchall()
    sweep(sql)
    ((after,),) = sql.execute("SELECT txid_snapshot_xmax(txid_current_snapshot())").fetchall()
    assert before
    assert after == transactions


@pytest.mark.parametrize("level", HIGHER, ids=lambda level: level.name)
def test_a_delayed_push_works_at_every_isolation_level(
    connections: Connections, sql: Connection, level: IsolationLevel
) -> None:
    push(sql, "old")
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    push(sql, "new")
    schedule(caller, "x")
    caller.commit()
    come_due(sql)
    sweep(sql)
    assert values(sql) == ["old", "new", "x"]


@pytest.mark.parametrize("level", HIGHER, ids=lambda level: level.name)
def test_a_delayed_push_to_a_partition_that_is_gone_is_refused_at_a_higher_level(
    connections: Connections, client: Client, sql: Connection, level: IsolationLevel
) -> None:
    push(sql, "old")
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    sql.execute("SELECT penstock.delete_partition('q', 'p')")
    with pytest.raises(Retryable), client.transaction(caller) as tx:
        tx.push("q", "x", partition="p", delay=LATER)
    assert violations(sql) == {}


def test_many_who_push_sweep_and_cancel_lose_and_double_nothing(dsn: str, sql: Connection) -> None:
    pushed: list[int] = []
    cancelled: list[int] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Client(dsn, pool_size=1) as client:
                for turn in range(40):
                    value = number * 1000 + turn
                    result = client.push("q", value, partition=f"p{turn % 3}", delay=0.001 * (turn % 4))
                    pushed.append(value)
                    assert result.scheduled is not None
                    if turn % 2 and client.cancel(*result.scheduled.ids):
                        cancelled.append(value)
                    client.sweep()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    come_due(sql)
    sweep(sql)
    found = [value for partition in ("p0", "p1", "p2") for value in values(sql, partition)]
    assert sorted(found) == sorted(set(pushed) - set(cancelled))
    assert gapless(sql)
    assert violations(sql) == {}


def test_after_a_restore_that_forgot_the_sequence_resync_keeps_ids_apart(sql: Connection) -> None:
    schedule(sql, "x")
    sql.execute("UPDATE penstock.scheduled SET scheduled_id = 1000000")
    sql.execute("SELECT setval('penstock.scheduled_seq', 999999)")
    with pytest.raises(errors.UniqueViolation):
        schedule(sql, "y")
    sql.execute("SELECT setval('penstock.scheduled_seq', 999990)")
    sql.execute("SELECT penstock.resync()")
    assert schedule(sql, "y") == 1000001


def grow(sql: Connection, rows: int) -> None:
    """Schedule so many messages for each partition, all for tomorrow, and leave the statistics as they are."""
    sql.execute(
        "INSERT INTO penstock.scheduled"
        " (scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes, body, ends)"
        " SELECT nextval('penstock.scheduled_seq'), p.queue_id, p.partition_id,"
        " clock_timestamp() + interval '1 day' + n * interval '1 second', clock_timestamp(), 1, 1, 'x', '\\x01000000'"
        " FROM penstock.partitions p, generate_series(1, %s) n",
        (rows,),
    )


def test_listing_cancelling_and_sweeping_cost_the_same_however_much_is_scheduled(sql: Connection) -> None:
    push_to_many(sql, 10)
    grow(sql, 10)
    wanted: list[Operation[Any]] = [SWEEP, ListScheduled("q", limit=10), CancelScheduled([waiting(sql)[0]])]
    hot = [call_for(operation) for operation in wanted]

    def costs() -> list[int]:
        return [cost(sql, call.sql, call.parameters) for call in hot]

    for _ in range(6):
        small = costs()
    grow(sql, 10_000)
    # The first ones may plan anew.
    large = [min(found) for found in zip(costs(), costs(), costs(), strict=True)]
    assert [now <= before + 50 for before, now in zip(small, large, strict=True)] == [True, True, True], (small, large)
