"""Offsets are gapless and in commit order, whatever two transactions do to each other."""

import threading
import time

import pytest
from psycopg import errors

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.postgres.failures import translate

from .interleaving import PUSH_BOTH, PUSH_ONE, PUSHES, Running, gapless, offsets, push

pushes = pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"])


@pushes
def test_a_second_push_waits_for_the_first_to_commit(connections: Connections, sql: Connection, statement: str) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    push(sql)
    assert push(first, statement=statement) == 1
    waiting = Running(second, statement, "p")
    assert waiting.waits(sql)
    assert offsets(sql) == [0]
    first.commit()
    assert waiting.value() == 2
    assert offsets(sql) == [0, 1, 2]


@pushes
def test_a_push_that_began_earlier_cannot_slip_in_behind_a_reader(
    connections: Connections, sql: Connection, statement: str
) -> None:
    early, late = connections.open(), connections.open(autocommit=True)
    push(sql)
    early.execute("SELECT 1")
    assert push(late, statement=statement) == 1
    seen = offsets(sql)
    assert push(early, statement=statement) == 2
    assert offsets(sql) == seen
    early.commit()
    assert offsets(sql) == [*seen, 2]


@pushes
def test_after_a_rollback_the_next_push_gets_the_same_offset(
    connections: Connections, sql: Connection, statement: str
) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    push(sql)
    assert push(first, statement=statement) == 1
    waiting = Running(second, statement, "p")
    assert waiting.waits(sql)
    first.rollback()
    assert waiting.value() == 1
    assert offsets(sql) == [0, 1]


@pushes
def test_a_rollback_to_a_savepoint_leaves_no_gap(connections: Connections, sql: Connection, statement: str) -> None:
    first = connections.open()
    assert push(first, statement=statement) == 0
    first.execute("SAVEPOINT here")
    assert push(first, statement=statement) == 1
    first.execute("ROLLBACK TO here")
    assert push(first, statement=statement) == 1
    first.commit()
    assert push(sql, statement=statement) == 2
    assert gapless(sql)


@pushes
def test_times_never_go_back_when_the_earlier_pusher_takes_its_turn_later(
    connections: Connections, sql: Connection, statement: str
) -> None:
    early, late = connections.open(), connections.open()
    push(sql)
    early.execute("SELECT now()")
    push(late, statement=statement)
    waiting = Running(early, statement, "p")
    assert waiting.waits(sql)
    late.commit()
    waiting.rows()
    early.commit()
    times = [time for (time,) in sql.execute("SELECT created_at FROM penstock.read('q', 'p')").fetchall()]
    assert times == sorted(times)
    assert len(times) == 3


@pushes
def test_times_never_go_back_when_the_servers_clock_does(sql: Connection, statement: str) -> None:
    push(sql)
    sql.execute("UPDATE penstock.segments SET created_at = created_at + interval '1 hour'")
    ((_, pushed_at),) = sql.execute(statement.encode(), ("p",)).fetchall()
    ((newest,),) = sql.execute("SELECT max(created_at) FROM penstock.segments").fetchall()
    assert pushed_at == newest
    assert gapless(sql)


@pytest.mark.parametrize("committed", [True, False])
@pushes
def test_two_creators_of_the_same_new_queue_take_turns(
    connections: Connections, sql: Connection, statement: str, committed: bool
) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    assert push(first, statement=statement) == 0
    waiting = Running(second, statement, "p")
    assert waiting.waits(sql)
    first.commit() if committed else first.rollback()
    assert waiting.value() == (1 if committed else 0)
    assert sql.execute("SELECT count(*) FROM penstock.partitions").fetchall() == [(1,)]
    assert gapless(sql)


def test_two_creators_of_the_same_new_partition_take_turns(connections: Connections, sql: Connection) -> None:
    push(sql, "other")
    first, second = connections.open(), connections.open(autocommit=True)
    assert push(first) == 0
    waiting = Running(second, PUSH_ONE, "p")
    assert waiting.waits(sql)
    first.commit()
    assert waiting.value() == 1


def test_creators_of_two_partitions_in_opposite_order_do_not_deadlock(
    connections: Connections, sql: Connection
) -> None:
    sql.execute("SELECT penstock.create_queue('q')")
    blocker, one, other = connections.open(), *(connections.open(autocommit=True) for _ in range(2))
    push(blocker, "b")
    first = Running(other, PUSH_BOTH, "b", "a")
    assert first.waits(sql)
    second = Running(one, PUSH_BOTH, "a", "b")
    assert second.waits(sql)
    blocker.commit()
    first.rows(), second.rows()
    assert offsets(sql, "a") == [0, 1]
    assert offsets(sql, "b") == [0, 1, 2]


def pushes_in_opposite_order(connections: Connections, sql: Connection) -> None:
    """One pushes A, B and another B, A, each in one call, while somebody holds B."""
    push(sql, "a"), push(sql, "b")
    blocker = connections.open()
    one, other = (connections.open(autocommit=True) for _ in range(2))
    for connection in (one, other):
        connection.execute("SET deadlock_timeout = '50ms'")
    push(blocker, "b")
    backward = Running(other, PUSH_BOTH, "b", "a")
    assert backward.waits(sql)
    forward = Running(one, PUSH_BOTH, "a", "b")
    assert forward.waits(sql)
    blocker.commit()
    backward.rows(), forward.rows()


def test_pushes_to_two_partitions_in_opposite_order_do_not_deadlock(connections: Connections, sql: Connection) -> None:
    pushes_in_opposite_order(connections, sql)
    assert offsets(sql, "a") == [0, 1, 2]
    assert offsets(sql, "b") == [0, 1, 2, 3]


@pytest.mark.parametrize("by", ["push_many", "transaction"])
def test_clients_that_push_in_opposite_order_do_not_deadlock(
    connections: Connections, sql: Connection, dsn: str, by: str
) -> None:
    def act(client: Client, *partitions: str) -> None:
        if by == "push_many":
            client.push_many("q", [(partition, b"x") for partition in partitions])
            return
        with client.transaction() as tx:
            for partition in partitions:
                tx.push("q", b"x", partition=partition)

    push(sql, "a"), push(sql, "b")
    blocker = connections.open()
    push(blocker, "b")
    with Client(dsn) as one, Client(dsn) as other:
        threads = [
            threading.Thread(target=act, args=(one, "a", "b"), daemon=True),
            threading.Thread(target=act, args=(other, "b", "a"), daemon=True),
        ]
        for thread in threads:
            thread.start()
        both_wait(sql)
        blocker.commit()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert offsets(sql, "a") == [0, 1, 2]
    assert offsets(sql, "b") == [0, 1, 2, 3]


def both_wait(observer: Connection) -> None:
    deadline = time.monotonic() + 20
    query = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    while observer.execute(query).fetchall() != [(2,)]:
        assert time.monotonic() < deadline, "the two pushes did not wait"


def test_raw_transactions_that_deadlock_get_an_error_that_may_be_tried_again(
    connections: Connections, sql: Connection
) -> None:
    push(sql, "a"), push(sql, "b")
    one, other = connections.open(), connections.open()
    for connection in (one, other):
        connection.execute("SET deadlock_timeout = '50ms'")
    push(one, "a"), push(other, "b")
    first = Running(one, PUSH_ONE, "b")
    assert first.waits(sql)
    with pytest.raises(errors.DeadlockDetected) as caught:
        push(other, "a"), first.rows()
    assert isinstance(translate(caught.value), Retryable)
    other.rollback()
    one.rollback()
    assert offsets(sql, "a") == offsets(sql, "b") == [0]


@pushes
def test_a_lock_that_cannot_be_had_in_time_changes_nothing(
    connections: Connections, sql: Connection, statement: str
) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    push(sql)
    push(first)
    second.execute("SET penstock.lock_timeout = '200ms'")
    with pytest.raises(errors.LockNotAvailable) as caught:
        push(second, statement=statement)
    assert isinstance(translate(caught.value), Retryable)
    assert "penstock.lock_timeout" in str(translate(caught.value))
    first.rollback()
    assert offsets(sql) == [0]
    assert second.execute("SHOW lock_timeout").fetchall() == [("0",)]


@pytest.mark.parametrize(
    "removal",
    ["SELECT penstock.delete_partition('q', 'p')", "SELECT penstock.delete_queue('q')"],
)
@pushes
def test_a_removal_waits_for_a_push_under_way_and_takes_its_messages_along(
    connections: Connections, sql: Connection, statement: str, removal: str
) -> None:
    pusher, remover = connections.open(), connections.open(autocommit=True)
    push(sql)
    push(pusher, statement=statement)
    waiting = Running(remover, removal)
    assert waiting.waits(sql)
    pusher.commit()
    assert waiting.value() == 2
    assert sql.execute("SELECT count(*) FROM penstock.segments").fetchall() == [(0,)]
    assert push(sql, statement=statement) == 0


@pytest.mark.parametrize(
    "removal",
    ["SELECT penstock.delete_partition('q', 'p')", "SELECT penstock.delete_queue('q')"],
)
@pushes
def test_a_push_that_waited_for_a_removal_begins_anew(
    connections: Connections, sql: Connection, statement: str, removal: str
) -> None:
    remover, pusher = connections.open(), connections.open(autocommit=True)
    push(sql), push(sql)
    remover.execute(removal.encode())
    waiting = Running(pusher, statement, "p")
    assert waiting.waits(sql)
    remover.commit()
    assert waiting.value() == 0
    assert offsets(sql) == [0]


def test_a_queue_cannot_vanish_under_a_partition_that_is_being_made(connections: Connections, sql: Connection) -> None:
    push(sql, "old")
    pusher, remover = connections.open(), connections.open(autocommit=True)
    push(pusher, "new")
    waiting = Running(remover, "SELECT penstock.delete_queue('q')")
    assert waiting.waits(sql)
    pusher.commit()
    assert waiting.value() == 2
    assert sql.execute("SELECT count(*) FROM penstock.partitions").fetchall() == [(0,)]


@pytest.mark.parametrize(
    "removal",
    ["SELECT penstock.delete_partition('q', 'p')", "SELECT penstock.delete_queue('q')"],
)
def test_a_removal_gives_up_after_the_lock_timeout(connections: Connections, sql: Connection, removal: str) -> None:
    pusher, remover = connections.open(), connections.open(autocommit=True)
    push(pusher)
    pusher.commit()
    push(pusher)
    remover.execute("SET penstock.lock_timeout = '100ms'")
    remover.execute("SET statement_timeout = '5s'")
    with pytest.raises(errors.LockNotAvailable):
        remover.execute(removal.encode())
    pusher.commit()
    assert offsets(sql) == [0, 1]


def test_a_purge_does_not_wait_for_a_push_and_leaves_its_messages(connections: Connections, sql: Connection) -> None:
    pusher = connections.open()
    push(sql), push(sql)
    assert push(pusher) == 2
    assert sql.execute("SELECT penstock.purge('q')").fetchall() == [(2,)]
    pusher.commit()
    assert offsets(sql) == [2]
    assert push(sql) == 3
    assert gapless(sql)


def test_a_push_does_not_wait_for_a_purge(connections: Connections, sql: Connection) -> None:
    purger = connections.open()
    push(sql), push(sql)
    assert purger.execute("SELECT penstock.purge('q')").fetchall() == [(2,)]
    assert push(sql) == 2
    purger.commit()
    assert offsets(sql) == [2]


def test_a_push_in_another_partition_never_waits(connections: Connections, sql: Connection) -> None:
    first = connections.open()
    push(sql, "a"), push(sql, "b")
    push(first, "a")
    sql.execute("SET penstock.lock_timeout = '1s'")
    assert push(sql, "b") == 1


@pushes
def test_a_partition_that_has_no_offsets_left_refuses_a_push(sql: Connection, statement: str) -> None:
    push(sql)
    sql.execute("UPDATE penstock.segments SET base_offset = penstock.offset_limit() - 2")
    assert push(sql, statement=statement) == (1 << 42) - 1
    with pytest.raises(errors.ProgramLimitExceeded, match="another partition"):
        push(sql, statement=statement)
    assert offsets(sql)[-1] == (1 << 42) - 1
