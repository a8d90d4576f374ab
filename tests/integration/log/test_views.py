"""The views, and the functions for people with psql or another language."""

from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from databases import Connection
from penstock import Client, Message
from penstock.broker.ids import message_id
from penstock.client.pushes import partition_for_key

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MOST_MS = 253_402_300_799_999  # the end of the year 9999, as far as Python's datetimes go


def one(sql: Connection, query: str, *parameters: object) -> tuple[object, ...]:
    (row,) = sql.execute(query.encode(), parameters).fetchall()
    return tuple(row)


def test_partition_lookup_shows_the_newest_message_of_each_partition(client: Client, sql: Connection) -> None:
    pushed = client.push("q", [1, 2, 3], partition="p")
    cursor = sql.execute("SELECT * FROM penstock.partition_lookup")
    assert [column.name for column in cursor.description or ()] == [
        "id",
        "queue_name",
        "partition_id",
        "last_message_id",
        "last_message_created_at",
        "updated_at",
        "messages_count",
    ]
    ((row_id, queue, partition_id, last_id, last_at, updated_at, count),) = cursor.fetchall()
    assert isinstance(row_id, UUID)
    assert (queue, partition_id, last_id, last_at, updated_at, count) == (
        "q",
        pushed.partition_id,
        pushed.ids[-1],
        pushed.timestamp,
        pushed.timestamp,
        3,
    )


def test_empty_and_purged_partitions_are_not_in_partition_lookup(client: Client, sql: Connection) -> None:
    client.create("q", partition="never")
    client.push("q", 1, partition="purged")
    client.purge("q")
    assert sql.execute("SELECT * FROM penstock.partition_lookup").fetchall() == []
    client.push("q", 2, partition="purged")
    assert one(sql, "SELECT messages_count FROM penstock.partition_lookup") == (1,)


def test_log_counter_shows_the_next_offset_of_every_partition(client: Client, sql: Connection) -> None:
    client.create("q", partition="a")
    client.push("q", [1, 2], partition="b")
    client.push("q", [1, 2, 3], partition="c")
    client.purge("q", partition="c")
    rows = sql.execute("SELECT queue_name, partition_name, next_offset FROM penstock.log_counter ORDER BY 2").fetchall()
    assert rows == [("q", "a", 0), ("q", "b", 2), ("q", "c", 3)]


def test_messages_shows_every_message_as_a_row(client: Client, sql: Connection) -> None:
    client.push("q", [Message(b"", key="ü"), Message({"a": 1}, headers={"h": "1"})], partition="p")
    (first, second) = client.read("q", "p")
    rows = sql.execute(
        "SELECT id, queue_name, partition_id, partition_name, message_offset, key, payload, headers, created_at"
        " FROM penstock.messages ORDER BY message_offset"
    ).fetchall()
    assert rows == [
        (first.id, "q", first.partition_id, "p", 0, "ü", b"", None, first.timestamp),
        (second.id, "q", first.partition_id, "p", 1, None, b'{"a":1}', {"h": "1"}, second.timestamp),
    ]


def test_push_takes_plain_arrays(client: Client, sql: Connection) -> None:
    row = one(
        sql,
        "SELECT pushed_to, first_offset, message_count FROM penstock.push('q', ARRAY['a', '', 'c']::bytea[], 'p',"
        " ARRAY['k', NULL, 'ü'], ARRAY['{\"h\": \"1\"}', NULL, '{}']::jsonb[])",
    )
    assert row == ("p", 0, 3)
    assert [(m.value, m.key, m.headers) for m in client.read("q", "p")] == [
        (b"a", "k", {"h": "1"}),
        (b"", None, None),
        (b"c", "ü", None),
    ]


def test_push_places_messages_as_the_clients_do(client: Client, sql: Connection) -> None:
    client.create("q", spread=8)
    keys = [f"key {number}" for number in range(20)]
    sql.execute("SELECT * FROM penstock.push('q', %s::text[]::bytea[], NULL, %s)", (keys, keys))
    for partition in client.partitions("q"):
        expected = [key for key in keys if partition_for_key(key, 8) == partition.name]
        assert [message.key for message in client.read("q", partition.name)] == expected


def test_push_cuts_a_large_batch_into_segments(client: Client, sql: Connection) -> None:
    query = "SELECT sum(message_count), count(*) > 1 FROM penstock.push('q', array_fill('x'::bytea, ARRAY[25000]), 'p')"
    assert one(sql, query) == (25_000, True)
    assert client.partitions("q", "p")[0].head == 25_000


def test_push_json_returns_the_messages_id(client: Client, sql: Connection) -> None:
    query = """SELECT penstock.push_json('q', '{"id": 7}', 'p', 'k', '{"h": "1"}')"""
    ((found,),) = sql.execute(query.encode()).fetchall()
    message = client.get(found)
    assert (message.json(), message.key, message.headers, message.partition) == ({"id": 7}, "k", {"h": "1"}, "p")


def test_read_and_get_return_a_row_per_message(client: Client, sql: Connection) -> None:
    client.push("q", [1, 2, 3], partition="p", key="k")
    rows = sql.execute("SELECT id, message_offset, key, payload FROM penstock.read('q', 'p', 1, 3)").fetchall()
    assert [(offset, key, payload) for _, offset, key, payload in rows] == [(1, "k", b"2"), (2, "k", b"3")]
    got = sql.execute("SELECT queue_name, partition_name, payload FROM penstock.get(%s)", (rows[0][0],)).fetchall()
    assert got == [("q", "p", b"2")]
    assert sql.execute("SELECT * FROM penstock.get(gen_random_uuid())").fetchall() == []


@pytest.mark.parametrize(
    "query",
    [
        "SELECT penstock.push('q', '{}')",
        "SELECT penstock.push('q', NULL)",
        "SELECT penstock.push('q', ARRAY['a']::bytea[], 'p', ARRAY['k', 'k'])",
        "SELECT penstock.push('q', ARRAY['a']::bytea[], 'p', ARRAY[''])",
        "SELECT penstock.push('q', ARRAY['a']::bytea[], 'p', NULL, ARRAY['[]']::jsonb[])",
        "SELECT penstock.push('q', ARRAY['a']::bytea[], 'p', NULL, ARRAY['{\"a\": 1}']::jsonb[])",
        "SELECT penstock.push('q', ARRAY['a']::bytea[], '*')",
        "SELECT penstock.push(NULL, ARRAY['a']::bytea[])",
        "SELECT penstock.push_segment('q', 'p', 0, '', '')",
        "SELECT penstock.push_segment('q', 'p', 1, 'ab', '\\x01000000')",
        "SELECT penstock.push_segment('q', 'p', 2, 'ab', '\\x02000000')",
        "SELECT penstock.push_segment('q', 'p', 1, 'a', '\\x01000000', 'k')",
        "SELECT penstock.push_segment('q', 'p', 1, 'a', '\\x01000000', 'k', '\\x02000000')",
        "SELECT penstock.push_segment('q', 'p', 1, NULL, '\\x01000000')",
        "SELECT penstock.push_segments('{}', '{}', '{}', '{}', '{}')",
        "SELECT penstock.push_segments('{q}', '{p,r}', '{1}', ARRAY['a'::bytea], ARRAY['\\x01000000'::bytea])",
        "SELECT penstock.read('q', 'p', -1)",
    ],
)
def test_sql_callers_are_told_what_is_wrong_and_nothing_changes(client: Client, sql: Connection, query: str) -> None:
    client.push("q", "before", partition="p")
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute(query.encode())
    assert [message.json() for message in client.read("q", "p")] == ["before"]
    assert len(client.queues()) == len(client.partitions("q")) == 1


@relaxed
@given(st.integers(1, (1 << 32) - 1), st.integers(0, (1 << 42) - 1), st.integers(0, MOST_MS), st.integers(0, 999))
def test_ids_of_sql_and_python_are_equal(
    sql: Connection, partition_id: int, offset: int, created_ms: int, microseconds: int
) -> None:
    found, *address = one(
        sql,
        "SELECT i.id, a.partition_id, a.message_offset, a.created_ms FROM penstock.message_id(%s, %s,"
        # An interval is multiplied in floating point, which holds that many whole seconds, and not milliseconds.
        " timestamptz 'epoch' + %s * interval '1 s' + %s * interval '1 microsecond') i (id),"
        " penstock.message_address(i.id) a",
        partition_id,
        offset,
        created_ms // 1000,
        created_ms % 1000 * 1000 + microseconds,
    )
    assert found == message_id(partition_id, offset, created_ms)
    assert address == [partition_id, offset, created_ms]


@relaxed
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), st.integers(1, 65536))
def test_sql_and_python_pick_the_same_partition_for_a_key(sql: Connection, key: str, spread: int) -> None:
    assert one(sql, "SELECT penstock.partition_for_key(%s, %s)", key, spread) == (partition_for_key(key, spread),)


def test_an_id_that_is_none_has_no_address(sql: Connection) -> None:
    assert sql.execute("SELECT * FROM penstock.message_address(gen_random_uuid())").fetchall() == []
