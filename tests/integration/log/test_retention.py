"""Retention drops whole segments, oldest first, counts them, and never stands in a push's way."""

from datetime import timedelta

import pytest

from databases import Connection, Connections
from penstock import Client

from .interleaving import Running, gapless, push


def age(sql: Connection, below: int, by: timedelta = timedelta(hours=2)) -> None:
    """Make the segments that begin below an offset older."""
    sql.execute("UPDATE penstock.segments SET created_at = created_at - %s WHERE base_offset < %s", (by, below))


def maintain(client: Client, min_segments: int = 1000) -> tuple[int, int]:
    """Run one pass; return how many segments and messages were dropped."""
    done = list(client.maintain(min_segments=min_segments))
    return sum(part.dropped_segments for part in done), sum(part.dropped_messages for part in done)


def test_without_retention_nothing_is_dropped(client: Client, sql: Connection) -> None:
    client.push("q", [1, 2])
    age(sql, 10, timedelta(days=3650))
    assert maintain(client) == (0, 0)
    assert client.describe("q").messages == 2


def test_old_segments_are_dropped_whole_and_counted(client: Client, sql: Connection) -> None:
    client.create("q", retention_time=3600)
    for batch in ([0, 1, 2], [3, 4], [5], [6]):
        client.push("q", batch)
    age(sql, 5)
    assert maintain(client) == (2, 5)
    assert [message.json() for message in client.read("q", "0")] == [5, 6]
    info = client.describe("q")
    assert (info.messages, info.dropped) == (2, 5)
    assert (client.partitions("q")[0].floor, client.partitions("q")[0].head) == (5, 7)
    assert maintain(client) == (0, 0)


def test_the_newest_segment_is_left_as_a_stub_so_the_head_is_not_forgotten(client: Client, sql: Connection) -> None:
    client.create("q", retention_time=3600)
    client.push("q", [0, 1])
    client.push("q", [2, 3, 4])
    age(sql, 10)
    assert maintain(client) == (2, 5)
    stored = sql.execute(
        "SELECT base_offset, count, bytes, coalesce(body, body_compressed), ends FROM penstock.segments"
    )
    assert stored.fetchall() == [(2, 3, 0, None, None)]
    assert (client.describe("q").messages, client.describe("q").dropped) == (0, 5)
    assert maintain(client) == (0, 0)
    assert client.push("q", 5).first_offset == 5
    assert [message.offset for message in client.read("q", "0")] == [5]
    assert client.describe("q").dropped == 5
    assert maintain(client) == (0, 0)


def test_segments_over_the_size_are_dropped_oldest_first(client: Client, sql: Connection) -> None:
    client.create("q", retention_bytes=250)
    for number in range(5):
        client.push("q", bytes([number]) * 100)
    assert maintain(client) == (3, 3)
    assert [message.value for message in client.read("q", "0")] == [bytes([3]) * 100, bytes([4]) * 100]
    assert maintain(client) == (0, 0)


def test_the_size_counts_keys_and_headers(client: Client) -> None:
    client.create("q", retention_bytes=250)
    for _ in range(2):
        client.push("q", b"x" * 50, key="k" * 50, headers={"h": "v" * 50})
    assert maintain(client) == (1, 1)


def test_a_single_segment_over_the_size_becomes_a_stub(client: Client) -> None:
    client.create("q", retention_bytes=10)
    client.push("q", b"x" * 100)
    assert maintain(client) == (1, 1)
    assert client.push("q", b"y").first_offset == 1


def test_a_pass_that_may_not_drop_everything_leaves_no_hole(client: Client, sql: Connection) -> None:
    client.create("q", retention_bytes=1)
    for number in range(6):
        client.push("q", b"x" * (number + 10))
    sql.execute("SELECT penstock.drop_below(id, 6, 3) FROM penstock.log_counter")
    assert [message.offset for message in client.read("q", "0")] == [3, 4, 5]
    assert (client.describe("q").messages, client.describe("q").dropped) == (3, 3)
    sql.execute("SELECT penstock.drop_below(id, 6, 3) FROM penstock.log_counter")
    assert client.describe("q").messages == 0
    assert client.push("q", 1).first_offset == 6


def push_small_segments(sql: Connection, count: int) -> None:
    """Store segments of one message each, as so many pushes would have."""
    push(sql)
    sql.execute(
        "INSERT INTO penstock.segments"
        " (partition_id, base_offset, created_at, count, bytes, body, body_compressed, ends)"
        " SELECT partition_id, n, created_at, count, bytes, body, body_compressed, ends"
        " FROM penstock.segments, generate_series(1, %s - 1) n WHERE base_offset = 0",
        (count,),
    )


@pytest.mark.parametrize("limit", ["age", "size"])
def test_one_pass_drops_all_that_is_over_the_limit_however_much_it_is(
    client: Client, sql: Connection, limit: str
) -> None:
    client.create("q")
    push_small_segments(sql, 5_000)
    if limit == "age":
        client.configure("q", retention_time=3600)
        age(sql, 4_990)
    else:
        client.configure("q", retention_bytes=10)
    assert maintain(client, min_segments=10_000) == (4_990, 4_990)
    assert [message.offset for message in client.read("q", "p")] == list(range(4_990, 5_000))


def test_a_pass_that_has_much_to_drop_does_so_in_several_transactions(client: Client, sql: Connection) -> None:
    client.create("q", retention_time=3600)
    push_small_segments(sql, 2_000)
    push(sql, "other")
    age(sql, 2_000)
    dropped: list[int] = []
    after: int | None = 0
    while after is not None:
        statement = "SELECT dropped_segments, next_partition FROM penstock.maintain(%s, max_seconds => 0)"
        ((segments, after),) = sql.execute(statement, (after,)).fetchall()
        dropped.append(segments)
    assert sum(dropped) == 2_001
    assert max(dropped) <= 500
    assert client.describe("q").messages == 0


def test_a_queue_without_retention_is_left_alone_beside_one_with(client: Client, sql: Connection) -> None:
    client.create("short", retention_time=3600)
    client.push("short", 1)
    client.push("long", 1)
    age(sql, 10)
    assert maintain(client) == (1, 1)
    assert client.describe("long").messages == 1


def test_a_partition_without_messages_is_left_alone(client: Client) -> None:
    client.create("q", retention_time=1, retention_bytes=1)
    client.create("q", partition="p")
    assert maintain(client) == (0, 0)


def test_a_push_under_way_does_not_stop_maintenance(client: Client, connections: Connections, sql: Connection) -> None:
    client.create("q", retention_time=3600)
    for _ in range(6):
        push(sql)
    age(sql, 3)
    pusher = connections.open()
    push(pusher)
    sql.execute("SET statement_timeout = '5s'")
    ((visited, dropped, _, merged, _),) = sql.execute("SELECT * FROM penstock.maintain(min_segments => 2)").fetchall()
    assert (visited, dropped, merged) == (1, 3, 2)
    pusher.commit()
    assert gapless(sql)


def test_maintenance_under_way_does_not_stop_a_push(client: Client, connections: Connections, sql: Connection) -> None:
    client.create("q", retention_time=3600)
    for _ in range(6):
        push(sql)
    age(sql, 3)
    maintainer = connections.open()
    maintainer.execute("SELECT * FROM penstock.maintain(min_segments => 2)")
    sql.execute("SET penstock.lock_timeout = '5s'")
    assert push(sql) == 6
    maintainer.commit()
    assert [message.offset for message in client.read("q", "p")] == [3, 4, 5, 6]


def test_a_stub_being_made_does_not_stop_a_push(client: Client, connections: Connections, sql: Connection) -> None:
    push(sql), push(sql)
    purger = connections.open()
    purger.execute("SELECT penstock.purge('q')")
    sql.execute("SET penstock.lock_timeout = '5s'")
    assert push(sql) == 2
    purger.commit()
    assert [message.offset for message in client.read("q", "p")] == [2]


def test_of_two_maintainers_one_works_and_the_other_gets_nothing(
    client: Client, connections: Connections, sql: Connection
) -> None:
    client.push("q", 1)
    maintainer = connections.open()
    assert len(maintainer.execute("SELECT * FROM penstock.maintain()").fetchall()) == 1
    assert list(client.maintain()) == []
    maintainer.rollback()
    assert [done.visited for done in client.maintain()] == [1]


def test_a_pass_goes_on_where_the_last_chunk_ended(client: Client, sql: Connection) -> None:
    client.push_many("q", [(str(number), 1) for number in range(7)])
    after: int | None = 0
    visited: list[int] = []
    while after is not None:
        ((count, after),) = sql.execute(
            "SELECT visited, next_partition FROM penstock.maintain(%s, 3)", (after,)
        ).fetchall()
        visited.append(count)
    assert visited == [3, 3, 1]


def test_a_purge_and_maintenance_that_meet_do_not_deadlock(
    client: Client, connections: Connections, sql: Connection
) -> None:
    """Maintenance goes by partition id; a purge by name would take the two partitions the other way round."""
    for partition in ("b", "a"):
        for _ in range(4):
            push(sql, partition)
    first, second = (partition.partition_id for partition in reversed(client.partitions("q")))
    maintainer, purger = connections.open(), connections.open(autocommit=True)
    for connection in (maintainer, purger):
        connection.execute("SET deadlock_timeout = '50ms'")
    purger.execute("SET enable_seqscan = off")
    maintainer.execute("SELECT penstock.merge_segments(%s, 2)", (first,))
    purge = Running(purger, "SELECT penstock.purge('q')")
    assert purge.waits(sql)
    maintainer.execute("SELECT penstock.merge_segments(%s, 2)", (second,))
    maintainer.commit()
    assert purge.value() == 8
    assert client.describe("q").messages == 0


@pytest.mark.parametrize("messages", [1, 3])
def test_a_dropped_message_is_not_found_by_its_id(client: Client, sql: Connection, messages: int) -> None:
    client.create("q", retention_time=3600)
    ids = client.push("q", list(range(messages))).ids
    age(sql, 10)
    maintain(client)
    for message_id in ids:
        with pytest.raises(LookupError):
            client.get(message_id)
