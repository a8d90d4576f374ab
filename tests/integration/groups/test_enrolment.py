"""A group that comes into being beside live pushes holds up none and misses nothing: it takes up what they add."""

import threading
from collections import Counter

import psycopg
import pytest
from log.interleaving import PUSH_ONE, PUSHES, Running, mutate, push, without_shared_lock
from psycopg.conninfo import make_conninfo

from databases import Connection, Connections
from penstock import Client
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.groups import CreateGroup

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
    push_to_many,
    run,
    start,
    sweep,
    violations,
)

CREATE = CreateGroup("q", "g", "ordered", "all")
LOCKS = ("ensure_partitions", "push_segment", "lock_partitions")
LAST = "n999"  # of n1 to n1001 the last to be made: what the first chunk of a thousand leaves for the next


def group_born_during_a_push(connections: Connections, sql: Connection, statement: str) -> list[int]:
    """A push to a new partition has not committed when a group is created; return what the group gets."""
    push(sql, "other")
    pusher = connections.open()
    push(pusher, statement=statement)
    assert not start(connections.open(autocommit=True), CREATE).waits(sql)
    sweep(sql)
    sweep(sql)
    pusher.commit()
    return offsets(drain(sql))


@pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])
def test_a_group_gets_what_a_push_adds_that_does_not_know_of_it(
    connections: Connections, sql: Connection, statement: str
) -> None:
    assert group_born_during_a_push(connections, sql, statement) == [0]
    assert sql.execute("SELECT enrolled_to, awaited FROM penstock.consumer_groups").fetchall() == [(None, [])]
    assert violations(sql) == {}


@pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])
def test_without_the_shared_lock_of_pushes_it_misses_the_message(fresh: Connections, statement: str) -> None:
    sql = fresh.open(autocommit=True)
    for function in LOCKS:
        without_shared_lock(sql, function)
    assert group_born_during_a_push(fresh, sql, statement) == []
    assert violations(sql) == {"work_not_taken_up": 1}


def test_without_awaiting_those_who_hold_it_it_misses_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql, "enrol_partitions", ("FROM pg_locks l\n            WHERE", "FROM pg_locks l\n            WHERE false AND")
    )
    assert group_born_during_a_push(fresh, sql, PUSH_ONE) == []
    assert violations(sql) == {"work_not_taken_up": 1}


def group_swept_by_its_own_transaction(connections: Connections, sql: Connection) -> list[tuple[str, int]]:
    """A transaction creates a group and sweeps; a push that begins meanwhile ends later; return what the group gets."""
    push(sql, "other")
    creator, pusher = connections.open(), connections.open()
    run(creator, CREATE)
    sweep(creator)
    assert not Running(pusher, PUSH_ONE, "p").waits(sql)
    creator.commit()
    sweep(sql)
    sweep(sql)
    pusher.commit()
    return sorted(drain(sql))


def test_a_push_does_not_wait_for_a_group_that_is_being_created(connections: Connections, sql: Connection) -> None:
    assert group_swept_by_its_own_transaction(connections, sql) == [("other", 0), ("p", 0)]
    assert violations(sql) == {}


def test_without_leaving_its_own_group_alone_the_sweep_makes_it_miss_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "enrol_partitions", ("creating OR g.created_in IS DISTINCT", "true OR g.created_in IS DISTINCT"))
    assert group_swept_by_its_own_transaction(fresh, sql) == [("other", 0)]
    assert violations(sql) == {"work_not_taken_up": 1}


def test_a_transaction_that_pops_for_a_new_group_holds_up_no_push(dsn: str, client: Client, sql: Connection) -> None:
    push(sql)
    with Client(make_conninfo(dsn, options="-c penstock.lock_timeout=1s")) as other, client.transaction() as tx:
        batch = tx.pop("q", "g")
        assert batch is not None
        other.push("q", "while it is open", partition="p")
        other.push("q", "while it is open", partition="new")
        tx.ack(batch)
    assert sorted(drain(sql)) == [("new", 0), ("p", 1)]
    assert violations(sql) == {}


def test_sql_that_pops_for_a_new_group_holds_up_no_push(connections: Connections, sql: Connection) -> None:
    push(sql)
    caller = connections.open()
    ((lease,),) = caller.execute("SELECT lease_id FROM penstock.pop('q', 'g')").fetchall()
    pushing = [Running(connections.open(autocommit=True), PUSH_ONE, name) for name in ("p", "new")]
    assert [one.waits(sql) for one in pushing] == [False, False]
    caller.execute("SELECT penstock.ack('q', 'g', 'p', %s)", (lease,))
    caller.commit()
    assert sorted(drain(sql)) == [("new", 0), ("p", 1)]
    assert violations(sql) == {}


def test_a_group_is_created_beside_a_push_that_stays_open(connections: Connections, sql: Connection) -> None:
    push(sql, "other")
    pusher = connections.open()
    push(pusher)
    run(sql, CREATE)
    assert drain(sql) == [("other", 0)]
    push(sql, "other"), push(sql, "new")
    assert sorted(drain(sql)) == [("new", 0), ("other", 1)]
    pusher.commit()
    assert drain(sql) == [("p", 0)]
    assert violations(sql) == {}


def test_what_one_unknowing_push_adds_does_not_wait_for_another_one(connections: Connections, sql: Connection) -> None:
    push(sql, "other")
    slow, quick = connections.open(), connections.open()
    push(slow, "slow")
    push(quick, "quick")
    run(sql, CREATE)
    assert drain(sql) == [("other", 0)]
    quick.commit()
    assert drain(sql) == [("quick", 0)]
    slow.commit()
    assert drain(sql) == [("slow", 0)]
    assert violations(sql) == {}


def test_a_group_of_new_messages_misses_none_from_its_creation_on(connections: Connections, sql: Connection) -> None:
    push(sql), push(sql, "old")
    creator = connections.open()
    run(creator, CreateGroup("q", "g", "ordered", "new"))
    push(sql), push(sql, "made meanwhile")
    creator.commit()
    push(sql)
    assert sorted(drain(sql)) == [("made meanwhile", 0), ("p", 1), ("p", 2)]
    assert violations(sql) == {}


def test_a_queue_that_is_deleted_while_a_group_is_created_is_made_anew(
    connections: Connections, sql: Connection
) -> None:
    push(sql)
    deleter = connections.open()
    deleter.execute("SELECT penstock.delete_queue('q')")
    creating = start(connections.open(autocommit=True), CREATE)
    assert creating.waits(sql)
    deleter.commit()
    creating.rows()
    push(sql)
    assert drain(sql) == [("p", 0)]
    assert violations(sql) == {}


def test_two_who_create_a_group_at_once_by_popping_get_the_same_one(connections: Connections, sql: Connection) -> None:
    push(sql)
    first = connections.open()
    pop = Pop("q", "g", None, 10, 1 << 20, 1, None, "c", False)
    claims = run(first, pop)
    popping = start(connections.open(autocommit=True), pop)
    assert popping.waits(sql)
    first.commit()
    assert popping.rows() == []
    assert [message.offset for message in claims[0].messages] == [0]
    assert sql.execute("SELECT count(*) FROM penstock.consumer_groups").fetchall() == [(1,)]


def first_pop_beside_a_sweep(connections: Connections, sql: Connection) -> bool:
    """A sweep holds the partition for another group; return whether the first pop of a new one gets its message."""
    push(sql)
    create_group(sql, "other")
    ack(sql, must_pop(sql, "other"))
    assert pop(sql, "other") is None
    pass_time(sql, "p")
    sweeper = connections.open()
    sweep(sweeper)
    claim = pop(sql)
    sweeper.commit()
    return claim is not None


def test_the_first_pop_of_a_group_gets_what_is_there_beside_a_sweep(connections: Connections, sql: Connection) -> None:
    assert first_pop_beside_a_sweep(connections, sql)
    assert violations(sql) == {}


def test_with_the_lock_of_a_push_it_comes_away_empty(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "enrol_partitions", ("FOR KEY SHARE SKIP LOCKED", "FOR NO KEY UPDATE SKIP LOCKED"))
    assert not first_pop_beside_a_sweep(fresh, sql)


def test_a_group_that_comes_into_being_beside_the_deletion_of_a_partition_leaves_it_alone(
    connections: Connections, sql: Connection
) -> None:
    push(sql)
    push(sql, "other")
    deleter = connections.open()
    deleter.execute("SELECT penstock.delete_partition('q', 'p')")
    creating = start(connections.open(autocommit=True), CREATE)
    creating.waits(sql)
    deleter.commit()
    creating.rows()
    assert drain(sql) == [("other", 0)]
    assert violations(sql) == {}


def test_partitions_are_taken_up_oldest_first_wherever_their_rows_lie(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    push(sql, "gone")
    push(sql, "a")
    sql.execute("SELECT penstock.delete_partition('q', 'gone')")
    sql.execute("VACUUM penstock.partitions")
    push(sql, "b")
    assert sql.execute("SELECT name FROM penstock.partitions ORDER BY ctid").fetchall() == [("b",), ("a",)]
    sql.execute("SET enable_indexscan = off")
    run(sql, CREATE)
    sql.execute("RESET enable_indexscan")
    assert drain(sql) == [("a", 0), ("b", 0)]


def push_rolls_back_during_enrolment(connections: Connections, sql: Connection) -> list[int]:
    """The partition is locked when its turn comes, by a push that then comes to nothing."""
    push_to_many(sql, 1001)
    run(sql, CREATE)
    assert newest(sql, partition=LAST) == ()
    pusher = connections.open()
    push(pusher, LAST)
    for _ in range(2):
        swept = sweep(sql)
        assert swept is not None
        assert swept.enrolled == 0
    pusher.rollback()
    return offsets(drain(sql, partitions=200), LAST)


def test_a_partition_that_was_locked_is_taken_up_in_a_later_round(connections: Connections, sql: Connection) -> None:
    assert push_rolls_back_during_enrolment(connections, sql) == [0]
    assert sql.execute("SELECT enrolled_to, enrol_again FROM penstock.consumer_groups").fetchall() == [(None, False)]
    assert violations(sql) == {}


def test_without_a_later_round_it_is_missed(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "enrol_partitions",
        ("WHEN passed OR waited_for <> '{}' THEN 0", "WHEN false THEN 0"),
    )
    assert push_rolls_back_during_enrolment(fresh, sql) == []
    assert violations(sql) == {"work_not_taken_up": 1}


def test_a_push_that_commits_during_enrolment_takes_the_partition_up_itself_and_only_once(
    connections: Connections, sql: Connection
) -> None:
    push_to_many(sql, 1001)
    run(sql, CREATE)
    pusher = connections.open()
    push(pusher, LAST)
    sweep(sql)
    pusher.commit()
    assert newest(sql, partition=LAST)[:3] == (1, "r", 0)
    assert offsets(drain(sql, partitions=200), LAST) == [0, 1]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_three_thousand_partitions_are_taken_up_while_two_threads_push_each_message_delivered_once(
    dsn: str, sql: Connection, mode: str
) -> None:
    push_to_many(sql, 3000)
    failures: list[BaseException] = []

    def produce(client: Client, first: int) -> None:
        try:
            for number in range(first, 3200, 40):
                client.push_many("q", [(f"n{number + step}", b"y") for step in range(0, 20, 2)])
        except BaseException as error:
            failures.append(error)

    came: Counter[tuple[str, int]] = Counter()
    with Client(dsn) as client:
        threads = [threading.Thread(target=produce, args=(client, first)) for first in (1, 11)]
        for thread in threads:
            thread.start()
        create_group(sql, mode=mode)
        while any(thread.is_alive() for thread in threads):
            batch = client.pop("q", "g", max_partitions=100)
            if batch is not None:
                came.update((message.partition, message.offset) for message in batch.messages)
                batch.ack()
    assert failures == []
    came.update(drain(sql, partitions=200))
    stored = sql.execute(
        "SELECT partition_name, message_offset FROM penstock.messages WHERE queue_name = 'q'"
    ).fetchall()
    assert came == Counter(tuple(row) for row in stored)
    assert violations(sql) == {}


@pytest.mark.parametrize("name", ["mode", "subscription"])
def test_a_group_of_a_null_mode_or_subscription_is_refused_by_name(sql: Connection, name: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"{name} is null but must be"):
        sql.execute(f"SELECT penstock.create_group('q', 'g', {name} => NULL)")
    assert sql.execute("SELECT count(*) FROM penstock.queues").fetchall() == [(0,)]
