"""The tests of order can fail: take away what keeps the order, and the very same interleaving breaks it."""

import psycopg
import pytest
from psycopg import errors

from databases import Connection, Connections

from .interleaving import PUSH_MANY, PUSH_ONE, Running, gapless, mutate, push, without_shared_lock
from .test_order import pushes_in_opposite_order

LOCKS = {
    "push_segment": ("            FOR NO KEY UPDATE\n", ""),
    "lock_partitions": ("            FOR NO KEY UPDATE;", ";"),
}
STATEMENTS = {"push_segment": PUSH_ONE, "lock_partitions": PUSH_MANY}


@pytest.fixture
def fresh(penstock_dsn: str) -> Connections:
    """Connections to a database of its own, whose functions may be changed."""
    return Connections(penstock_dsn)


def second_push_gets_the_next_offset(connections: Connections, sql: Connection, statement: str) -> bool:
    """The interleaving of test_order: a push while another one is under way, which then commits."""
    first, second = connections.open(), connections.open(autocommit=True)
    push(sql)
    push(first, statement=statement)
    running = Running(second, statement, "p")
    running.waits(sql)
    first.commit()
    try:
        return bool(running.value() == 2)
    except errors.UniqueViolation:
        return False


@pytest.mark.parametrize("function", LOCKS)
def test_without_the_lock_a_second_push_takes_the_same_offset(fresh: Connections, function: str) -> None:
    with fresh:
        sql = fresh.open(autocommit=True)
        assert second_push_gets_the_next_offset(fresh, sql, STATEMENTS[function])
        sql.execute("SELECT penstock.delete_queue('q')")
        mutate(sql, function, LOCKS[function])
        assert not second_push_gets_the_next_offset(fresh, sql, STATEMENTS[function])


def test_without_a_new_snapshot_a_second_push_takes_the_same_offset(fresh: Connections) -> None:
    head = "s.base_offset + s.count, "
    too_early = (
        "    seen := (SELECT max(s.base_offset + s.count) FROM penstock.segments s WHERE s.partition_id ="
        " (SELECT p.partition_id FROM penstock.partitions p JOIN penstock.queues q ON q.queue_id = p.queue_id"
        " WHERE q.name = queue_name AND p.name = partition_name));\n    LOOP\n"
    )
    declared = "    checked    text;\n"
    with fresh:
        sql = fresh.open(autocommit=True)
        changes = [(head, "seen, "), ("    LOOP\n", too_early), (declared, f"{declared}    seen bigint;\n")]
        mutate(sql, "push_segment", *changes)
        assert not second_push_gets_the_next_offset(fresh, sql, PUSH_ONE)


def test_without_the_sorted_order_of_locks_opposite_pushes_deadlock(fresh: Connections) -> None:
    with fresh:
        sql = fresh.open(autocommit=True)
        mutate(
            sql,
            "lock_partitions",
            (
                "            ORDER BY p.partition_id\n            FOR NO KEY",
                "            ORDER BY array_position(targets, p.partition_id)\n            FOR NO KEY",
            ),
        )
        with pytest.raises(errors.DeadlockDetected):
            pushes_in_opposite_order(fresh, sql)


@pytest.mark.parametrize(
    ("function", "statement", "change"),
    [
        ("push_segment", PUSH_ONE, ("greatest(clock_timestamp(), s.created_at)", "clock_timestamp()")),
        ("append_segments", PUSH_MANY, ("greatest(now_here, newest.created_at)", "now_here")),
    ],
)
def test_without_a_comparison_times_go_back(
    fresh: Connections, function: str, statement: str, change: tuple[str, str]
) -> None:
    with fresh:
        sql = fresh.open(autocommit=True)
        push(sql)
        sql.execute("UPDATE penstock.segments SET created_at = created_at + interval '1 hour'")
        mutate(sql, function, change)
        push(sql, statement=statement)
        assert not gapless(sql)


def test_without_the_shared_lock_a_queue_vanishes_under_a_new_partition(fresh: Connections) -> None:
    with fresh:
        sql = fresh.open(autocommit=True)
        sql.execute("SELECT penstock.create_queue('q')")
        for function in ("ensure_partitions", "push_segment"):
            without_shared_lock(sql, function)
        pusher, remover = fresh.open(), fresh.open(autocommit=True)
        push(pusher)
        removal = Running(remover, "SELECT penstock.delete_queue('q')")
        assert not removal.waits(sql)
        pusher.commit()
        orphans = (
            "SELECT count(*) FROM penstock.partitions p WHERE queue_id NOT IN (SELECT queue_id FROM penstock.queues)"
        )
        assert sql.execute(orphans).fetchall() == [(1,)]


def test_a_mutation_that_no_longer_applies_is_noticed(sql: psycopg.Connection[object]) -> None:
    with pytest.raises(AssertionError, match="adapt the mutation"):
        mutate(sql, "push_segment", ("no such text", ""))
