"""A unique key counts exactly, whoever pushes, pops, sweeps, cancels, cleans up or is killed at that moment."""

import random
import threading
from typing import Any

import pytest
from groups.steps import run, start, sweep, violations
from groups.test_plans import cost
from log.interleaving import Running, gapless, mutate
from psycopg import IsolationLevel, errors

from databases import Connection, Connections
from penstock import Client, PushResult, Retryable
from penstock.broker.operations.claiming import Pop, Release
from penstock.broker.operations.pushing import Push
from penstock.broker.places import Place
from penstock.broker.pushing import Producer, PushBatch, Stamp, due, uniqueness
from penstock.client import pushes
from penstock.postgres.statements.call import call_for

from .steps import LATER, cancel, come_due, start_cancel, values

HIGHER = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def push_call(
    value: Any,
    key: str = "k",
    partition: str = "p",
    delay: float | None = None,
    stamp: Stamp | None = None,
    replace: bool = False,
    seconds: float | None = None,
    until: str | None = "done",
) -> Push:
    messages = pushes.gather([value], partition, None, None, None, key)
    until = None if seconds is not None else until
    unique = uniqueness(messages, seconds, until, replace)
    return Push([PushBatch.of(Place("q", partition), messages, due(delay, None), unique)], stamp)


def push(connection: Connection, value: Any, **options: Any) -> PushResult:
    return run(connection, push_call(value, **options))[0]


def two_pushes(connections: Connections, sql: Connection, commit: bool, partition: str) -> tuple[bool, list[Any]]:
    """A push with a key is open when another one with the same key comes: does it wait, and what is stored?"""
    push(sql, "old", key="other"), push(sql, "old", key="another", partition=partition)
    first = connections.open()
    push(first, "first")
    second = start(connections.open(autocommit=True), push_call("second", partition=partition))
    waited = second.waits(sql)
    if commit:
        first.commit()
    else:
        first.rollback()
    second.rows()
    found = values(sql, "p") + (values(sql, partition) if partition != "p" else [])
    return waited, [value for value in found if value != "old"]


@pytest.mark.parametrize("partition", ["p", "elsewhere"])
def test_of_two_pushes_of_a_key_at_once_one_is_stored(
    connections: Connections, sql: Connection, partition: str
) -> None:
    assert two_pushes(connections, sql, True, partition) == (True, ["first"])
    assert violations(sql) == {}


@pytest.mark.parametrize("partition", ["p", "elsewhere"])
def test_the_second_is_stored_if_the_first_rolls_back(
    connections: Connections, sql: Connection, partition: str
) -> None:
    assert two_pushes(connections, sql, False, partition) == (True, ["second"])


def test_the_second_is_stored_if_the_first_is_killed(connections: Connections, sql: Connection) -> None:
    push(sql, "old", key="other", partition="elsewhere")
    first = connections.open()
    push(first, "first")
    second = start(connections.open(autocommit=True), push_call("second", partition="elsewhere"))
    assert second.waits(sql)
    sql.execute("SELECT pg_terminate_backend(%s, 5000)", (first.info.backend_pid,))
    second.rows()
    assert values(sql, "elsewhere") == ["old", "second"]


def test_without_the_lock_of_the_key_both_are_stored(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    push(sql, "seed")
    sql.execute("DELETE FROM penstock.unique_keys")
    mutate(
        sql,
        "lock_unique",
        (
            "    FROM unnest(queues, keys) w (queue_id, unique_key)\n",
            "    FROM (SELECT 0, '' WHERE false) w (queue_id, unique_key)\n",
        ),
    )
    waited, stored = two_pushes(fresh, sql, True, "elsewhere")
    assert (waited, stored) == (False, ["seed", "first", "second"])


@pytest.mark.parametrize("level", HIGHER, ids=lambda level: level.name)
def test_a_key_that_was_pushed_after_the_snapshot_is_refused_at_a_higher_level(
    connections: Connections, client: Client, sql: Connection, level: IsolationLevel
) -> None:
    push(sql, "old", key="other", partition="elsewhere")
    caller = connections.open()
    caller.isolation_level = level
    caller.execute("SELECT 1 FROM penstock.queues")
    push(sql, "first", seconds=LATER)
    with pytest.raises(Retryable), client.transaction(caller) as tx:
        tx.push("q", "second", partition="elsewhere", unique_key="k", unique_for=LATER)
    caller.rollback()
    with client.transaction(caller) as tx:
        pending = tx.push("q", "second", partition="elsewhere", unique_key="k", unique_for=LATER)
    caller.commit()
    assert (pending.result.count, len(pending.result.duplicates)) == (0, 1)
    # Whether it is taken or done a snapshot cannot tell.
    with pytest.raises(errors.ActiveSqlTransaction):
        push(caller, "third")


def test_a_repeated_push_gets_the_first_answer(connections: Connections, sql: Connection) -> None:
    producer = Producer()
    stamp = producer.stamp()
    first = push(sql, "first", stamp=stamp)
    assert push(sql, "first", stamp=stamp) == first
    other = producer.stamp()
    second = push(sql, "second", stamp=other)
    assert push(sql, "second", stamp=other) == second
    assert (first.count, second.count, values(sql)) == (1, 0, ["first"])
    # Frozen in some buffer, the first attempt arrives while its repetition is under way.
    open_one, stamp = connections.open(), producer.stamp()
    pushed = push(open_one, "third", key="new", stamp=stamp)
    again = start(connections.open(autocommit=True), push_call("third", key="new", stamp=stamp))
    assert again.waits(sql)
    open_one.commit()
    (answer,) = call_for(push_call("third", key="new", stamp=stamp)).parse(again.rows())
    assert answer == pushed
    assert values(sql) == ["first", "third"]


def test_a_push_does_not_wait_for_a_sweep_nor_a_sweep_for_a_push(connections: Connections, sql: Connection) -> None:
    push(sql, "first", delay=LATER)
    come_due(sql)
    # Somebody has the key, from another partition, and the sweep publishes all the same.
    holder = connections.open()
    assert push(holder, "second", partition="elsewhere").duplicates[0].scheduled_id is not None
    assert sweep(sql) is not None
    assert values(sql) == ["first"]
    holder.commit()
    assert push(sql, "third").duplicates[0].offset == 0


def test_a_replacement_waits_for_a_sweep_that_publishes_and_finds_it_in_the_log(
    connections: Connections, sql: Connection
) -> None:
    push(sql, "first", delay=LATER)
    come_due(sql)
    sweeper = connections.open()
    sweep(sweeper)
    replacing = start(
        connections.open(autocommit=True), push_call("second", partition="elsewhere", delay=LATER, replace=True)
    )
    assert replacing.waits(sql)
    sweeper.commit()
    replacing.rows()
    assert violations(sql) == {}
    assert "first" in values(sql)


def test_a_cancel_and_a_replacement_of_the_same_message_end_with_one_or_the_other(
    connections: Connections, sql: Connection
) -> None:
    first = push(sql, "first", delay=LATER)
    assert first.scheduled is not None
    replacer = connections.open()
    assert push(replacer, "second", delay=LATER, replace=True).replaced
    cancelling = start_cancel(connections.open(autocommit=True), *first.scheduled.ids)
    assert cancelling.waits(sql)
    replacer.commit()
    assert cancelling.value() == list(first.scheduled.ids)
    assert push(sql, "third").count == 1
    # And the other way round.
    later = push(sql, "x", key="x", delay=LATER)
    assert later.scheduled is not None
    canceller = connections.open()
    cancel(canceller, *later.scheduled.ids)
    replacing = start(connections.open(autocommit=True), push_call("y", key="x", delay=LATER, replace=True))
    assert replacing.waits(sql)
    canceller.commit()
    replacing.rows()
    come_due(sql)
    sweep(sql)
    assert sorted(values(sql)) == ["third", "y"]


def test_trimming_waits_for_nobody_and_leaves_what_is_pushed(connections: Connections, sql: Connection) -> None:
    sql.execute("SELECT penstock.create_group('q', 'g')")
    push(sql, "first")
    sql.execute("SELECT * FROM penstock.pop_claims('q', 'g', auto_ack => true)")
    pusher = connections.open()
    assert push(pusher, "second").count == 1
    trimming = Running(connections.open(autocommit=True), "SELECT penstock.maintain()")
    assert not trimming.waits(sql)
    pusher.commit()
    assert push(sql, "third").count == 0
    # A key that is trimmed while it is pushed is new.
    sql.execute("SELECT * FROM penstock.pop_claims('q', 'g', auto_ack => true)")
    trimmer = connections.open()
    trimmer.execute("SELECT penstock.maintain()")
    pushing = start(connections.open(autocommit=True), push_call("fourth", partition="elsewhere"))
    assert pushing.waits(sql)
    trimmer.commit()
    pushing.rows()
    assert push(sql, "fifth").count == 0
    assert values(sql, "elsewhere") == ["fourth"]


def test_many_keys_in_opposite_order_do_not_deadlock(dsn: str, sql: Connection) -> None:
    failures: list[BaseException] = []
    go = threading.Barrier(2)

    def work(order: int) -> None:
        try:
            with Client(dsn, pool_size=1) as client:
                for turn in range(20):
                    keys = [f"{turn} {n}" for n in range(8)][::order]
                    go.wait()
                    with client.transaction() as tx:
                        for key in keys:
                            tx.push("q", key, partition=key[-1], unique_key=key, unique_until="done")
        except BaseException as error:
            go.abort()
            failures.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(value for n in range(8) for value in values(sql, str(n))) == sorted(
        f"{turn} {n}" for turn in range(20) for n in range(8)
    )
    assert violations(sql) == {}


def test_a_key_is_looked_up_by_the_index_however_many_there_are(connections: Connections, sql: Connection) -> None:
    for table in ("unique_keys", "unique_moves", "scheduled"):
        sql.execute(f"ALTER TABLE penstock.{table} SET (autovacuum_enabled = false)".encode())
    try:
        sql.execute("SELECT penstock.create_group('q', 'g')")
        push(sql, "x")
        call = call_for(push_call("x"))
        sql.execute("VACUUM ANALYZE penstock.unique_keys")
        producer = connections.open(autocommit=True)
        for _ in range(6):
            small = cost(producer, call.sql, call.parameters)
        sql.execute(
            "INSERT INTO penstock.unique_keys (queue_id, unique_key, partition_id, message_offset, seen_at)"
            " SELECT queue_id, n::text, partition_id, n, clock_timestamp() FROM penstock.partitions,"
            " generate_series(1, 30000) n"
        )
        sql.execute(
            "INSERT INTO penstock.unique_moves (scheduled_id, partition_id, message_offset, created_at)"
            " SELECT n, 0, n, clock_timestamp() FROM generate_series(1, 30000) n"
        )
        sql.execute(
            "INSERT INTO penstock.scheduled (scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes,"
            " body, ends) SELECT n, 0, 0, 'infinity', 'infinity', 1, 0, '', '' FROM generate_series(1, 30000) n"
        )
        # The first one may plan anew.
        assert min(cost(producer, call.sql, call.parameters) for _ in range(3)) <= small + 50
    finally:
        for table in ("unique_keys", "unique_moves", "scheduled"):
            sql.execute(f"ALTER TABLE penstock.{table} RESET (autovacuum_enabled)".encode())


class Model:
    """What is to become of pushes with unique keys, told by the values that groups have taken and are done with."""

    def __init__(self, groups: list[str]) -> None:
        self.newest: dict[str, int] = {}
        # By the id under which it waits.
        self.scheduled: dict[int, int] = {}
        self.held: list[tuple[str, set[int]]] = []
        self.done: dict[str, set[int]] = {group: set() for group in groups}
        self.cancelled: set[int] = set()

    def outcome(self, key: str, until: str, replace: bool) -> str:
        """Return what becomes of a push."""
        value = self.newest.get(key)
        if value is None or value in self.cancelled or all(value in done for done in self.done.values()):
            return "stored"
        taken = any(value in values for _, values in self.held) or any(value in done for done in self.done.values())
        if taken and until == "taken":
            return "stored"
        return "replaced" if replace and not taken else "duplicate"

    def push(self, key: str, until: str, number: int, result: PushResult, expected: str) -> None:
        """Take note of what a push did, which must be as expected."""
        earlier = self.newest.get(key)
        found = "replaced" if result.replaced else "duplicate" if result.duplicates else "stored"
        assert found == expected, (number, key, until)
        if found == "duplicate":
            return
        self.newest[key] = number
        if found == "replaced" and earlier is not None:
            self.cancelled.add(earlier)
            self.scheduled = {waits: value for waits, value in self.scheduled.items() if value != earlier}
        if result.scheduled is not None:
            self.scheduled[result.scheduled.ids[0]] = number


@pytest.mark.parametrize("seed", range(6))
def test_random_pushes_pops_and_settlings_agree_with_a_model(dsn: str, sql: Connection, seed: int) -> None:
    generator = random.Random(seed)
    model = Model(["ordered", "shared"])
    batches: list[Any] = []
    with Client(dsn, pool_size=2) as client:
        for mode in model.done:
            client.create_group("q", mode, mode=mode, backoff_initial=0, max_attempts=50)
        for number in range(200):
            step = generator.random()
            if step < 0.45:
                key, until = generator.choice("abcd"), generator.choice(["taken", "done"])
                replace = generator.random() < 0.4
                delay = LATER if generator.random() < 0.2 else None
                expected = model.outcome(key, until, replace)
                options: dict[str, Any] = {"unique_until": until, "replace": replace, "delay": delay}
                result = client.push("q", number, partition=key, unique_key=key, **options)
                model.push(key, until, number, result, expected)
            elif step < 0.65:
                group = generator.choice(list(model.done))
                batch = client.pop("q", group, max_messages=generator.randint(1, 3))
                if batch is not None:
                    found = {message.json() for message in batch.messages}
                    assert found.isdisjoint(model.cancelled)
                    batches.append(batch)
                    model.held.append((group, found))
            elif step < 0.85 and batches:
                which = generator.randrange(len(batches))
                batch, (group, found) = batches.pop(which), model.held.pop(which)
                if generator.random() < 0.7:
                    batch.ack()
                    model.done[group] |= found
                else:
                    batch.release()
            elif step < 0.93:
                come_due(sql)
                sweep(sql)
                model.scheduled.clear()
            elif model.scheduled:
                waits, value = model.scheduled.popitem()
                assert client.cancel(waits) == [waits]
                model.cancelled.add(value)
            if number % 50 == 49:
                list(client.maintain())
    assert gapless(sql)
    assert violations(sql) == {}


def test_one_that_is_taken_while_it_is_replaced_is_cancelled_in_flight(
    connections: Connections, client: Client, sql: Connection
) -> None:
    client.create_group("q", "g")
    push(sql, "old")
    popper = connections.open()
    (claim,) = run(popper, Pop("q", "g"))
    # Nobody can see yet that it was taken.
    assert push(sql, "new", replace=True).replaced
    popper.commit()
    assert [message.state for message in client.state(push(sql, "again").ids[0])] == ["waiting"]
    # It is not delivered again, and the new one is.
    run(sql, Release(claim.lease))
    batch = client.pop("q", "g")
    assert batch is not None
    assert [message.json() for message in batch.messages] == ["new"]
    batch.ack()
    assert client.pop("q", "g") is None
    assert violations(sql) == {}


def put_off_while_it_is_published(connections: Connections, sql: Connection) -> list[Any]:
    """A replacement has put off a message that is due when the sweep comes; return what is in the log."""
    push(sql, "first", delay=LATER)
    come_due(sql)
    replacer = connections.open()
    assert push(replacer, "second", delay=LATER, partition="elsewhere", replace=True).replaced
    assert sweep(sql) is not None
    replacer.commit()
    sweep(sql)
    return values(sql)


def test_what_is_put_off_is_not_published(connections: Connections, sql: Connection) -> None:
    assert put_off_while_it_is_published(connections, sql) == []
    come_due(sql)
    sweep(sql)
    assert values(sql, "elsewhere") == ["second"]
    assert push(sql, "third").duplicates[0].offset == 0


def test_without_the_cancellation_both_would_be_delivered(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "push_unique_segments", ("    WHERE e.outcome = 'replaced' AND e.appended\n", "    WHERE false\n"))
    sql.execute("SELECT penstock.create_group('q', 'g')")
    push(sql, "old")
    assert push(sql, "new", replace=True).replaced
    (claim,) = run(sql, Pop("q", "g"))
    assert claim.stop - claim.start == 2
