"""A group that comes into being beside live pushes misses nothing: it waits for those and takes up what there was."""

import threading
from collections import Counter

import pytest
from log.interleaving import PUSH_ONE, PUSHES, Running, mutate, push, without_shared_lock
from psycopg.conninfo import make_conninfo

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.engine import group_calls

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

CREATE = group_calls.create_group("q", "g", "ordered", "all", {})
LOCKS = ("ensure_partitions", "push_segment", "lock_partitions")
LAST = "n999"  # of n1 to n1001 the last to be made: what the first chunk of a thousand leaves for the next


def group_born_during_a_push(connections: Connections, sql: Connection, statement: str) -> list[int]:
    """A push to a new partition has not committed when a group is created; return what the group gets."""
    push(sql, "other")
    pusher = connections.open()
    push(pusher, statement=statement)
    creating = start(connections.open(autocommit=True), CREATE)
    creating.waits(sql)
    pusher.commit()
    creating.rows()
    return offsets(drain(sql))


@pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])
def test_a_group_waits_for_a_push_that_does_not_know_of_it(
    connections: Connections, sql: Connection, statement: str
) -> None:
    assert group_born_during_a_push(connections, sql, statement) == [0]
    assert violations(sql) == {}


@pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])
def test_without_the_shared_lock_of_pushes_it_misses_the_message(fresh: Connections, statement: str) -> None:
    sql = fresh.open(autocommit=True)
    for function in LOCKS:
        without_shared_lock(sql, function)
    assert group_born_during_a_push(fresh, sql, statement) == []
    assert violations(sql) == {"work_not_taken_up": 1}


def test_without_its_exclusive_lock_it_misses_the_message(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "create_group", ("PERFORM penstock.lock_queue(queue);", ""))
    assert group_born_during_a_push(fresh, sql, PUSH_ONE) == []
    assert violations(sql) == {"work_not_taken_up": 1}


def test_a_push_that_waits_for_a_new_group_wakes_it(connections: Connections, sql: Connection) -> None:
    push(sql)
    creator, pusher = connections.open(), connections.open(autocommit=True)
    run(creator, CREATE)
    pushing = Running(pusher, PUSH_ONE, "other")
    assert pushing.waits(sql)
    creator.commit()
    pushing.rows()
    assert sorted(drain(sql)) == [("other", 0), ("p", 0)]
    assert violations(sql) == {}


def test_a_group_that_cannot_be_created_in_time_says_to_try_again(connections: Connections, dsn: str) -> None:
    pusher = connections.open()
    push(pusher)
    with Client(make_conninfo(dsn, options="-c penstock.lock_timeout=200ms")) as client:
        with pytest.raises(Retryable, match="penstock doctor"):
            client.create_group("q", "g")
        with pytest.raises(Retryable, match="penstock doctor"):
            client.pop("q", "g")
        pusher.commit()
        client.create_group("q", "g")
        batch = client.pop("q", "g")
    assert batch is not None


def test_a_push_goes_on_while_a_group_waits_for_another_push(connections: Connections, sql: Connection) -> None:
    push(sql, "other")
    pusher = connections.open()
    push(pusher)
    creating = start(connections.open(autocommit=True), CREATE)
    assert creating.waits(sql)
    assert push(sql, "other") == 1
    pusher.commit()
    creating.rows()
    assert sorted(drain(sql)) == [("other", 0), ("other", 1), ("p", 0)]


def test_two_who_create_a_group_at_once_by_popping_get_the_same_one(connections: Connections, sql: Connection) -> None:
    push(sql)
    first = connections.open()
    pop = group_calls.pop("q", "g", None, 10, 1 << 20, 1, None, "c", False, None)
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


def test_without_being_alone_it_comes_away_empty(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "create_group", ("alone => true", "alone => false"))
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
        ("WHEN enrolling.enrol_again OR cardinality(locked) < cardinality(visited) THEN 0", "WHEN false THEN 0"),
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
