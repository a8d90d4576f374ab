"""A dedupe id counts once within its window, exactly, whoever pushes, sweeps, cancels or cleans up at that moment."""

import threading
from datetime import timedelta

import pytest
from groups.steps import run, start, sweep, violations
from groups.test_plans import cost
from log.interleaving import Running, gapless, mutate
from psycopg import IsolationLevel, errors

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.broker.operations.claiming import Sweep
from penstock.postgres.statements.call import call_for

from .steps import age_ids, cancel, come_due, mark, push, push_call, schedule, start_cancel, values

HIGHER = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
WINDOW = timedelta(hours=1)


@pytest.fixture(autouse=True)
def queue(request: pytest.FixtureRequest) -> None:
    if "sql" in request.fixturenames:
        create(request.getfixturevalue("sql"))


def create(sql: Connection) -> None:
    sql.execute("SELECT penstock.configure_queue('q', '{\"dedupe_window\": 3600}')")


def two_pushes(connections: Connections, sql: Connection, commit: bool = True) -> list[str]:
    """A push with an id is open when another one with the same id comes; return what is in the log in the end."""
    push(sql, "old")
    first = connections.open()
    push(first, mark("x", "first"))
    second = start(connections.open(autocommit=True), push_call(mark("x", "second")))
    second.waits(sql)
    if commit:
        first.commit()
    else:
        first.rollback()
    second.rows()
    return values(sql)


def test_of_two_pushes_of_an_id_at_once_the_first_is_stored(connections: Connections, sql: Connection) -> None:
    assert two_pushes(connections, sql) == ["old", "first"]


def test_the_second_is_stored_if_the_first_rolls_back(connections: Connections, sql: Connection) -> None:
    assert two_pushes(connections, sql, commit=False) == ["old", "second"]


def test_without_the_look_under_the_lock_both_are_stored(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create(sql)
    mutate(sql, "push_with_options", ("nth = 1 AND k.seen_at IS NULL", "nth = 1"))
    assert two_pushes(fresh, sql) == ["old", "first", "second"]


def test_without_the_lock_the_ids_key_alone_refuses_the_second(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create(sql)
    mutate(sql, "lock_partitions", ("            FOR NO KEY UPDATE;", ";"))
    with pytest.raises(errors.UniqueViolation):
        two_pushes(fresh, sql)


def test_many_who_push_the_same_ids_store_each_once(dsn: str, sql: Connection) -> None:
    failures: list[BaseException] = []
    stored: list[int] = []

    def work() -> None:
        try:
            with Client(dsn, pool_size=1) as client:
                for number in range(60):
                    messages = [mark(str(n), n) for n in (number, number + 1, (number * 7) % 60)]
                    delay = 0.0 if number % 5 == 0 else None
                    stored.append(client.push("q", messages, partition="p", delay=delay).count)
                    if number % 3 == 0:
                        client.sweep()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    sweep(sql)
    assert sorted(values(sql)) == list(range(61))
    assert sum(stored) == 61
    assert gapless(sql)
    assert violations(sql) == {}


def push_while_trimming(connections: Connections, sql: Connection) -> list[str]:
    """Maintenance has deleted an id that outlived its window, and not committed, when the same id is pushed twice."""
    push(sql, mark("x", "first"))
    age_ids(sql, 2 * WINDOW)
    trimmer = connections.open()
    trimmer.execute("SELECT penstock.maintain()")
    pushing = start(connections.open(autocommit=True), push_call(mark("x", "second")))
    pushing.waits(sql)
    trimmer.commit()
    pushing.rows()
    push(sql, mark("x", "third"))
    return values(sql)


def test_an_id_that_is_trimmed_while_it_is_pushed_again_counts_again(connections: Connections, sql: Connection) -> None:
    assert push_while_trimming(connections, sql) == ["first", "second"]


def test_trimming_does_not_wait_for_a_push_and_leaves_its_id(connections: Connections, sql: Connection) -> None:
    push(sql, mark("x", "first"))
    age_ids(sql, 2 * WINDOW)
    pusher = connections.open()
    push(pusher, mark("x", "second"))
    trimming = Running(connections.open(autocommit=True), "SELECT penstock.maintain()")
    assert not trimming.waits(sql)
    pusher.commit()
    assert push(sql, mark("x", "third")).count == 0


def test_without_skip_locked_trimming_fails_beside_a_push(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create(sql)
    mutate(sql, "trim_dedupe_ids", ("FOR UPDATE SKIP LOCKED", "FOR UPDATE"))
    push(sql, mark("x", "first"))
    age_ids(sql, 2 * WINDOW)
    pusher = fresh.open()
    push(pusher, mark("x", "second"))
    with pytest.raises(errors.LockNotAvailable):
        sql.execute("SELECT penstock.maintain()")


def test_maintenance_comes_again_while_there_is_more_to_trim(client: Client, sql: Connection) -> None:
    push(sql, "old")
    sql.execute(
        "INSERT INTO penstock.dedupe_ids (partition_id, dedupe_id, queue_id, seen_at, message_offset)"
        " SELECT partition_id, n::text, queue_id, clock_timestamp() - interval '1 day', 0"
        " FROM penstock.partitions, generate_series(1, 25000) n"
    )
    assert len(list(client.maintain())) == 3
    assert sql.execute("SELECT count(*) FROM penstock.dedupe_ids").fetchall() == [(0,)]


def test_an_id_is_looked_up_by_the_index_however_many_there_are(connections: Connections, sql: Connection) -> None:
    # Planned for a table with one row, and for as long as nobody analyses it again.
    sql.execute("ALTER TABLE penstock.dedupe_ids SET (autovacuum_enabled = false)")
    try:
        run(sql, push_call(mark("x")))
        call = call_for(push_call(mark("x")))
        sql.execute("VACUUM ANALYZE penstock.dedupe_ids")
        producer = connections.open(autocommit=True)
        for _ in range(6):
            small = cost(producer, call.sql, call.parameters)
        sql.execute(
            "INSERT INTO penstock.dedupe_ids (partition_id, dedupe_id, queue_id, seen_at, message_offset)"
            " SELECT partition_id, n::text, queue_id, clock_timestamp(), 0"
            " FROM penstock.partitions, generate_series(1, 50000) n"
        )
        # The first one may plan anew.
        assert min(cost(producer, call.sql, call.parameters) for _ in range(3)) <= small + 50
    finally:
        sql.execute("ALTER TABLE penstock.dedupe_ids RESET (autovacuum_enabled)")


def push_while_cancelling(connections: Connections, sql: Connection) -> tuple[bool, list[str]]:
    """Somebody has cancelled a message and not committed when its id is pushed: does it wait, and is it stored?"""
    wanted = schedule(sql, mark("x", "first"))
    canceller = connections.open()
    cancel(canceller, wanted)
    pushing = start(connections.open(autocommit=True), push_call(mark("x", "second")))
    waited = pushing.waits(sql)
    canceller.commit()
    pushing.rows()
    return waited, values(sql)


def test_a_push_waits_for_a_cancel_and_then_has_the_id(connections: Connections, sql: Connection) -> None:
    assert push_while_cancelling(connections, sql) == (True, ["second"])
    assert violations(sql) == {}


def test_without_the_partitions_lock_the_push_is_taken_for_a_duplicate_of_nothing(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create(sql)
    mutate(sql, "cancel", ("    ORDER BY p.partition_id\n    FOR NO KEY UPDATE;", ";"))
    assert push_while_cancelling(fresh, sql)[1] == []


def test_a_cancel_waits_for_a_sweep_that_publishes_and_leaves_the_id(connections: Connections, sql: Connection) -> None:
    wanted = schedule(sql, mark("x", "first"))
    come_due(sql)
    sweeper = connections.open()
    sweep(sweeper)
    cancelling = start_cancel(connections.open(autocommit=True), wanted)
    assert cancelling.waits(sql)
    sweeper.commit()
    assert cancelling.value() == []
    assert push(sql, mark("x", "second")).duplicates[0].offset == 0
    assert violations(sql) == {}


def test_the_sweep_does_not_wait_for_a_purge_that_forgets_ids(connections: Connections, sql: Connection) -> None:
    schedule(sql, mark("x"))
    come_due(sql)
    purger = connections.open()
    purger.execute("SELECT penstock.purge('q')")
    sweeping = start(connections.open(autocommit=True), Sweep())
    assert not sweeping.waits(sql)
    purger.rollback()
    sweep(sql)
    assert push(sql, mark("x")).duplicates[0].offset == 0
    assert violations(sql) == {}


@pytest.mark.parametrize("level", HIGHER, ids=lambda level: level.name)
@pytest.mark.parametrize("delay", [None, 3600.0])
def test_an_id_that_was_pushed_after_the_snapshot_is_refused_at_a_higher_level(
    connections: Connections, client: Client, sql: Connection, level: IsolationLevel, delay: float | None
) -> None:
    push(sql, "old")
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    push(sql, mark("x", "first"), delay=delay)
    with pytest.raises(Retryable), client.transaction(caller) as tx:
        tx.push("q", "second", partition="p", dedupe_id="x", delay=delay)
    caller.rollback()
    with client.transaction(caller) as tx:
        pending = tx.push("q", "second", partition="p", dedupe_id="x", delay=delay)
    caller.commit()
    assert pending.result.count == 0
    assert violations(sql) == {}


def from_a_snapshot_before_the_cancel(connections: Connections, sql: Connection, level: IsolationLevel) -> int:
    """A snapshot shows a scheduled message that was cancelled since; return how many are stored under its id."""
    wanted = schedule(sql, mark("x", "first"))
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    cancel(sql, wanted)
    count = run(caller, push_call(mark("x", "second")))[0].count
    caller.commit()
    return count


@pytest.mark.parametrize("level", HIGHER, ids=lambda level: level.name)
def test_a_snapshot_from_before_a_cancel_takes_no_message_for_its_duplicate(
    connections: Connections, sql: Connection, level: IsolationLevel
) -> None:
    with pytest.raises(errors.SerializationFailure):
        from_a_snapshot_before_the_cancel(connections, sql, level)


def test_without_its_lock_it_would(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create(sql)
    mutate(sql, "push_with_options", ("                FOR KEY SHARE\n", ""))
    assert from_a_snapshot_before_the_cancel(fresh, sql, IsolationLevel.REPEATABLE_READ) == 0


def test_transactions_that_push_marked_and_plain_messages_in_opposite_order_do_not_deadlock(
    connections: Connections, client: Client, sql: Connection
) -> None:
    push(sql, "old", partition="a"), push(sql, "old", partition="b")
    first, second = connections.open(), connections.open()
    failures: list[BaseException] = []
    go = threading.Barrier(2)

    def work(connection: Connection, marked: str, plain: str) -> None:
        try:
            for _ in range(20):
                go.wait()
                with client.transaction(connection) as tx:
                    tx.push("q", 1, partition=plain)
                    tx.push("q", 1, partition=marked, dedupe_id="x")
                    tx.push("q", 1, partition=plain, delay=3600)
                connection.commit()
        except BaseException as error:
            go.abort()
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(first, "a", "b")),
        threading.Thread(target=work, args=(second, "b", "a")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert violations(sql) == {}
