"""Retention and groups: it waits for the slowest of them, or passes it and counts what it missed."""

from datetime import UTC, datetime, timedelta

import pytest
from log.interleaving import push

from databases import Connection
from penstock import Client

from .steps import MODES, ack, create_group, drain, must_pop, offsets, pass_time, pop, push_some, sweep, violations


def age(sql: Connection) -> None:
    """Make what is stored older than any retention."""
    sql.execute("UPDATE penstock.segments SET created_at = created_at - interval '1 year', run_times = NULL")


def floor(client: Client, partition: str = "p") -> int:
    """Look after the queue and return what is the first offset then."""
    for _ in client.maintain(min_segments=10_000):
        pass
    (info,) = client.partitions("q", partition)
    return info.floor


@pytest.fixture
def keeping(client: Client) -> Client:
    """A client with a queue that keeps messages until all have read them."""
    client.create("q", retention_time=3600)
    return client


def push_segments(sql: Connection, count: int) -> None:
    """Push messages that retention can drop one by one."""
    for _ in range(count):
        push(sql)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_slowest_group_has_not_read_is_kept(keeping: Client, sql: Connection, mode: str) -> None:
    create_group(sql, "fast")
    create_group(sql, mode=mode)
    push_segments(sql, 10)
    age(sql)
    drain(sql, "fast")
    assert floor(keeping) == 0
    ack(sql, must_pop(sql, most=3))
    held = must_pop(sql, most=3)
    assert floor(keeping) == 3
    ack(sql, held)
    assert floor(keeping) == 6
    drain(sql)
    assert floor(keeping) == 10


def test_of_a_shared_group_the_first_message_that_is_not_done_is_kept(keeping: Client, sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_segments(sql, 10)
    age(sql)
    first, second = must_pop(sql, most=2), must_pop(sql, most=2)
    ack(sql, second)
    assert floor(keeping) == 0
    pass_time(sql)
    sweep(sql)
    assert floor(keeping) == 0
    ack(sql, must_pop(sql, most=1, partition="p"))
    assert (floor(keeping), first.start) == (1, 0)
    came = offsets(drain(sql, most=2))
    assert sorted(came) == [1, 4, 5, 6, 7, 8, 9]


def test_what_a_group_that_is_being_enrolled_wants_is_kept(keeping: Client, sql: Connection) -> None:
    push_segments(sql, 3)
    age(sql)
    create_group(sql)
    sql.execute("DELETE FROM penstock.journal"), sql.execute("DELETE FROM penstock.ready")
    sql.execute("UPDATE penstock.consumer_groups SET enrolled_to = 0")
    assert floor(keeping) == 0
    assert offsets(drain(sql)) == [0, 1, 2]
    assert floor(keeping) == 3


def test_a_group_from_now_on_keeps_nothing_of_before(keeping: Client, sql: Connection) -> None:
    push_segments(sql, 3)
    age(sql)
    keeping.create_group("q", "g", subscription="new")
    assert floor(keeping) == 3


def test_a_group_from_now_on_keeps_what_came_since_though_it_was_not_told_yet(keeping: Client, sql: Connection) -> None:
    push_segments(sql, 3)
    keeping.create_group("q", "g", subscription="new")
    while keeping.groups("q")[0].enrolling:
        sweep(sql)
    # Who cannot see the state of groups leaves it to the sweep to wake them.
    with sql.transaction():
        sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        push(sql)
    age(sql)
    sql.execute("UPDATE penstock.consumer_groups SET created_at = created_at - interval '1 year'")
    assert keeping.lag("q", "g") == 1
    assert floor(keeping) == 3
    assert offsets(drain(sql)) == [3]
    assert floor(keeping) == 4


def test_a_group_from_a_time_keeps_nothing_of_before_it(keeping: Client, sql: Connection) -> None:
    push_segments(sql, 3)
    age(sql)
    keeping.create_group("q", "g", subscription=datetime.now(UTC) - timedelta(days=100))
    assert floor(keeping) == 3
    push_segments(sql, 1)
    assert offsets(drain(sql)) == [3]


def test_a_group_from_a_time_keeps_what_is_after_it(keeping: Client, sql: Connection) -> None:
    push_segments(sql, 3)
    age(sql)
    keeping.create_group("q", "g", subscription=datetime.now(UTC) - timedelta(days=1000))
    assert floor(keeping) == 0
    assert offsets(drain(sql)) == [0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_where_the_queue_says_so_messages_go_and_the_group_counts_what_it_missed(
    client: Client, sql: Connection, mode: str
) -> None:
    client.create("q", retention_time=3600, retention_rule="drop_and_count")
    create_group(sql, mode=mode)
    push_segments(sql, 10)
    age(sql)
    push_some(sql, 2)
    assert floor(client) == 10
    assert offsets(drain(sql)) == [10, 11]
    (newest, *_) = client.history("q", "g", "p")
    assert (newest.committed, newest.skipped) == (12, 10)
    counted = "SELECT skipped, acked_count FROM penstock.partition_consumers WHERE consumer_group = 'g'"
    assert sql.execute(counted).fetchall() == [(10, 2)]
    assert violations(sql) == {}


def test_a_claim_whose_messages_are_dropped_can_be_settled_and_is_not_counted_as_missed(
    client: Client, sql: Connection
) -> None:
    client.create("q", retention_time=3600, retention_rule="drop_and_count")
    create_group(sql)
    push_segments(sql, 10)
    claim = must_pop(sql, most=4)
    age(sql)
    push(sql)
    assert floor(client) == 10
    ack(sql, claim)
    assert offsets(drain(sql)) == [10]
    assert client.history("q", "g", "p")[0].skipped == 6


@pytest.mark.parametrize("how", ["handed out", "ready", "failed"])
def test_ranges_of_a_shared_group_that_are_dropped_do_not_come_as_empty_claims(
    client: Client, sql: Connection, how: str
) -> None:
    client.create("q", retention_time=3600, retention_rule="drop_and_count")
    create_group(sql, mode="shared")
    push_segments(sql, 10)
    claim = must_pop(sql, most=2)
    if how == "failed":
        pass_time(sql)
        sweep(sql)
    age(sql)
    push(sql)
    assert floor(client) == 10
    if how == "handed out":
        ack(sql, claim)
    assert offsets(drain(sql)) == [10]
    pass_time(sql)
    sweep(sql)
    assert pop(sql) is None
    assert sql.execute("SELECT count(*) FROM penstock.claims").fetchall() == [(0,)]
    assert client.lag("q", "g") == 0
    assert violations(sql) == {}


def test_a_shared_group_counts_what_was_dropped_of_ranges_that_it_had_set_aside(
    client: Client, sql: Connection
) -> None:
    client.create("q", retention_time=3600, retention_rule="drop_and_count")
    create_group(sql, mode="shared")
    push_segments(sql, 10)
    claim = must_pop(sql, most=4)
    age(sql)
    push(sql)
    assert floor(client) == 10
    ack(sql, claim)
    assert offsets(drain(sql)) == [10]
    counted = "SELECT skipped, acked_count FROM penstock.partition_consumers WHERE consumer_group = 'g'"
    assert sql.execute(counted).fetchall() == [(6, 5)]
    assert violations(sql) == {}
    client.delete("q")
    assert sql.execute("SELECT count(*) FROM penstock.skips").fetchall() == [(0,)]
