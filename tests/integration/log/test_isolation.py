"""Callers above READ COMMITTED either succeed, or get an error that says to run the transaction again; never a gap."""

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from databases import Connection, Connections
from penstock import Client, Retryable
from penstock.postgres.failures import translate

from .interleaving import PUSHES, Running, gapless, offsets, push

pytestmark = [
    pytest.mark.parametrize(
        "level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=lambda v: v.name
    ),
    pytest.mark.parametrize("statement", PUSHES, ids=["one segment", "many segments"]),
]


def with_snapshot(connections: Connections, level: IsolationLevel) -> Connection:
    """Open a transaction at this level whose snapshot is taken now."""
    connection = connections.open()
    connection.isolation_level = level
    connection.execute("SELECT 1 FROM penstock.queues")
    return connection


def refused(connection: Connection, statement: str) -> None:
    """See that the push is refused, for a reason that goes away by running the transaction again."""
    with pytest.raises(psycopg.Error) as caught:
        push(connection, statement=statement)
    assert caught.value.sqlstate == "40001"
    assert isinstance(translate(caught.value), Retryable)
    connection.rollback()
    push(connection, statement=statement)
    connection.commit()


def test_a_push_after_others_have_committed_succeeds(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    push(sql)
    caller = with_snapshot(connections, level)
    assert push(caller, statement=statement) == 1
    assert push(caller, statement=statement) == 2
    caller.commit()
    assert push(sql) == 3
    assert offsets(sql) == [0, 1, 2, 3]
    assert gapless(sql)


def test_a_push_from_a_snapshot_older_than_anothers_push_is_refused(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    push(sql)
    caller = with_snapshot(connections, level)
    push(sql)
    refused(caller, statement)
    assert offsets(sql) == [0, 1, 2]
    assert gapless(sql)


def test_a_new_partition_made_by_another_after_the_snapshot_is_refused(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    caller = with_snapshot(connections, level)
    push(sql)
    refused(caller, statement)
    assert offsets(sql) == [0, 1]


@pytest.mark.parametrize("committed", [True, False])
def test_a_push_that_waited_for_another_is_refused_only_if_that_one_committed(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str, committed: bool
) -> None:
    push(sql)
    other = connections.open()
    push(other)
    caller = with_snapshot(connections, level)
    waiting = Running(caller, statement, "p")
    assert waiting.waits(sql)
    if committed:
        other.commit()
        with pytest.raises(errors.SerializationFailure):
            waiting.rows()
        caller.rollback()
    else:
        other.rollback()
        assert waiting.value() == 1
        caller.commit()
    assert offsets(sql) == [0, 1]
    assert gapless(sql)


def test_a_snapshot_from_before_a_merge_makes_no_overlap(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    for _ in range(3):
        push(sql)
    caller = with_snapshot(connections, level)
    for _ in range(3):
        push(sql)
    sql.execute("SELECT penstock.maintain(min_segments => 2)")
    refused(caller, statement)
    assert offsets(sql) == list(range(7))
    assert gapless(sql)


def test_a_snapshot_from_before_a_purge_makes_no_overlap(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    push(sql)
    caller = with_snapshot(connections, level)
    push(sql), push(sql)
    sql.execute("SELECT penstock.purge('q')")
    refused(caller, statement)
    assert offsets(sql) == [3]
    assert gapless(sql)


def test_a_snapshot_of_an_empty_partition_that_was_filled_and_purged_takes_no_offset_again(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    sql.execute("SELECT penstock.create_partition('q', 'p')")
    caller = with_snapshot(connections, level)
    push(sql), push(sql)
    sql.execute("SELECT penstock.purge('q')")
    refused(caller, statement)
    assert offsets(sql) == [2]
    assert gapless(sql)


def test_a_snapshot_from_before_a_queue_was_deleted_makes_no_orphan(
    connections: Connections, sql: Connection, level: IsolationLevel, statement: str
) -> None:
    push(sql, "other")
    caller = with_snapshot(connections, level)
    sql.execute("SELECT penstock.delete_queue('q')")
    refused(caller, statement)
    orphans = "SELECT count(*) FROM penstock.partitions p WHERE queue_id NOT IN (SELECT queue_id FROM penstock.queues)"
    assert sql.execute(orphans).fetchall() == [(0,)]
    assert offsets(sql) == [0]


def test_the_client_says_to_run_the_transaction_again(
    connections: Connections, client: Client, level: IsolationLevel, statement: str
) -> None:
    client.push("q", 1, partition="p")
    caller = with_snapshot(connections, level)
    client.push("q", 2, partition="p")
    with pytest.raises(Retryable, match="Run the whole transaction again"), client.transaction(caller) as tx:
        tx.push("q", 3, partition="p")
    caller.rollback()
    with client.transaction(caller) as tx:
        pending = tx.push("q", 3, partition="p")
    caller.commit()
    assert pending.result.first_offset == 2
