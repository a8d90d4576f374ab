"""Deleting takes all that belongs to it, also what somebody is changing in that moment, and later acks say so."""

from collections.abc import Callable
from typing import Any

import pytest
from log.interleaving import PUSH_ONE, Running, mutate, push
from psycopg import errors

from databases import Connection, Connections
from penstock import Client, LeaseLost, NotFound
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Nack
from penstock.broker.operations.groups import Seek

from .steps import (
    MODES,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    nack,
    offsets,
    outcome,
    pass_time,
    pop,
    push_some,
    renew,
    run,
    sweep,
    violations,
)

DELETIONS = {
    "queue": "SELECT penstock.delete_queue('q')",
    "partition": "SELECT penstock.delete_partition('q', 'p')",
    "group": "SELECT penstock.delete_group('q', 'g')",
}


def rows_of(sql: Connection, column: str, value: int) -> dict[str, int]:
    """Return how many rows of each table name a queue, group or partition by its id."""
    tables = sql.execute(
        "SELECT table_name FROM information_schema.columns"
        " JOIN information_schema.tables USING (table_schema, table_name)"
        " WHERE table_schema = 'penstock' AND table_type = 'BASE TABLE' AND column_name = %s",
        (column,),
    ).fetchall()
    counts = {
        table: sql.execute(f"SELECT count(*) FROM penstock.{table} WHERE {column} = %s".encode(), (value,)).fetchall()[
            0
        ][0]
        for (table,) in tables
    }
    return {table: count for table, count in counts.items() if count}


def leftovers(sql: Connection, what: str, claim: Claim, queue: int) -> dict[str, int]:
    """Return the rows that should have gone."""
    if what == "partition":
        return rows_of(sql, "partition_id", claim.partition_id)
    found = rows_of(sql, "group_id", claim.group_id)
    if what == "queue":
        found |= rows_of(sql, "queue_id", queue) | rows_of(sql, "partition_id", claim.partition_id)
    return found


def queue_id(sql: Connection) -> int:
    """Return the id of queue q."""
    return int(sql.execute("SELECT queue_id FROM penstock.queues WHERE name = 'q'").fetchall()[0][0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", DELETIONS)
def test_an_ack_after_the_deletion_says_that_the_lease_is_lost(sql: Connection, what: str, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 30)
    claim = must_pop(sql, most=3)
    queue = queue_id(sql)
    sql.execute(DELETIONS[what].encode())
    for settle in (ack, renew, nack):
        assert outcome(lambda settle=settle: settle(sql, claim)) == "lost"  # type: ignore[misc]
    assert leftovers(sql, what, claim, queue) == {}
    assert violations(sql) == {}


def test_a_client_is_told_so_and_a_name_that_is_gone_is_not_found(client: Client) -> None:
    client.push("q", 1, partition="p")
    batch = client.pop("q", "g")
    assert batch is not None
    client.delete_group("q", "g")
    with pytest.raises(LeaseLost):
        batch.ack()
    client.delete("q")
    with pytest.raises(NotFound):
        client.lag("q", "g")


def acking(connection: Connection, claim: Claim) -> None:
    ack(connection, claim)


def acking_a_part(connection: Connection, claim: Claim) -> None:
    run(connection, ack_of([claim], claim.start + 1))


def nacking(connection: Connection, claim: Claim) -> None:
    nack(connection, claim)


def nacking_for_later(connection: Connection, claim: Claim) -> None:
    run(connection, Nack(claim.lease, None, "oops", None, 60.0))


def renewing(connection: Connection, claim: Claim) -> None:
    renew(connection, claim)


def popping(connection: Connection, _: Claim) -> None:
    pop(connection, most=3)


def popping_with_auto_ack(connection: Connection, _: Claim) -> None:
    pop(connection, most=3, auto_ack=True)


def sweeping(connection: Connection, _: Claim) -> None:
    pass_time(connection, "c")
    connection.commit()
    sweep(connection)


def sweeping_what_is_parked(connection: Connection, claim: Claim) -> None:
    ack(connection, claim)
    while (rest := pop(connection)) is not None:
        ack(connection, rest)
    pass_time(connection, "p")
    connection.commit()
    sweep(connection)


def seeking(connection: Connection, _: Claim) -> None:
    run(connection, Seek("q", "g", position="earliest"))


UNDER_WAY = [
    acking,
    acking_a_part,
    nacking,
    nacking_for_later,
    renewing,
    popping,
    popping_with_auto_ack,
    sweeping,
    sweeping_what_is_parked,
    seeking,
]


def delete_beside(
    connections: Connections, sql: Connection, what: str, mode: str, change: Callable[..., None]
) -> dict[str, Any]:
    """Delete while somebody's change is under way and commits after that; return what is left or wrong."""
    create_group(sql, mode=mode)
    sweep(sql)
    push_some(sql, 30)
    claim = must_pop(sql, most=3)
    if mode == "ordered" and change in (popping, popping_with_auto_ack):
        ack(sql, claim)
    queue = queue_id(sql)
    other = connections.open()
    change(other, claim)
    deleting = Running(connections.open(autocommit=True), DELETIONS[what])
    deleting.waits(sql)
    other.commit()
    deleting.rows()
    return leftovers(sql, what, claim, queue) | violations(sql)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", DELETIONS)
@pytest.mark.parametrize("change", UNDER_WAY, ids=lambda change: change.__name__)
def test_nothing_is_left_of_what_was_deleted_while_somebody_was(
    connections: Connections, sql: Connection, change: Callable[..., None], what: str, mode: str
) -> None:
    assert delete_beside(connections, sql, what, mode, change) == {}
    push(sql)
    pop(sql)
    assert offsets(drain(sql))[:1] in ([0], [])
    assert violations(sql) == {}


@pytest.mark.parametrize(
    ("change", "mode"), [(acking, "ordered"), (popping_with_auto_ack, "ordered"), (acking_a_part, "shared")]
)
def test_without_looking_again_something_is_left(fresh: Connections, change: Callable[..., None], mode: str) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "delete_positions", ("EXIT WHEN NOT EXISTS (", "EXIT; EXIT WHEN NOT EXISTS ("))
    assert delete_beside(fresh, sql, "queue", mode, change) != {}


def test_without_holding_off_the_sweep_a_deleted_group_leaves_something(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "delete_group", ("LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE;", ""))
    assert delete_beside(fresh, sql, "group", "ordered", sweeping_what_is_parked) != {}


def delete_between_two_pushes(connections: Connections, sql: Connection) -> None:
    """Delete a queue while one push is under way and another one begins."""
    push(sql, "a"), push(sql, "b")
    first, remover, second = connections.open(), connections.open(autocommit=True), connections.open(autocommit=True)
    push(first, "a")
    deleting = Running(remover, DELETIONS["queue"])
    assert deleting.waits(sql)
    pushing = Running(second, PUSH_ONE, "b")
    pushing.waits(sql)
    first.commit()
    deleting.rows()
    pushing.rows()


def test_a_queue_can_be_deleted_while_pushes_to_it_go_on(connections: Connections, sql: Connection) -> None:
    delete_between_two_pushes(connections, sql)
    assert violations(sql) == {}


def test_with_the_locks_in_another_order_than_a_push_takes_them_they_deadlock(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "delete_queue",
        ("    -- Partitions first, in the order of a push", "    PERFORM penstock.lock_queue(queue); --"),
    )
    with pytest.raises(errors.DeadlockDetected):
        delete_between_two_pushes(fresh, sql)


@pytest.mark.parametrize("held", ["an ack", "a sweep"])
def test_pushes_go_on_while_the_deletion_of_a_group_waits(connections: Connections, sql: Connection, held: str) -> None:
    create_group(sql)
    sweep(sql)
    push(sql)
    claim = must_pop(sql)
    holder = connections.open()
    if held == "an ack":
        ack(holder, claim)
    else:
        sweep(holder)
    remover = connections.open(autocommit=True)
    deleting = Running(remover, "SELECT penstock.delete_group('q', 'g')")
    assert deleting.waits(sql)
    for partition in ("p", "new"):
        pusher = connections.open(autocommit=True)
        pusher.execute("SET penstock.lock_timeout = '2s'")
        push(pusher, partition)
    holder.commit()
    deleting.rows()
    assert violations(sql) == {}
    assert sql.execute("SELECT count(*) FROM penstock.journal").fetchall() == [(0,)]
