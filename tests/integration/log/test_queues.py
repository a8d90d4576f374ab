"""Settings and constraints as SQL has them, compression, and what a deletion leaves: nothing."""

import os

import pytest
from psycopg import errors

from databases import Connection
from penstock import Client


def test_the_settings_are_described_in_one_place(sql: Connection) -> None:
    rows = sql.execute("SELECT name, default_value FROM penstock.settings() ORDER BY name").fetchall()
    assert dict(rows) == {
        "backoff_factor": 2,
        "backoff_initial": 1,
        "backoff_max": 300,
        "breaker_errors": 50,
        "breaker_pause": 30,
        "breaker_pause_max": 600,
        "breaker_rate": 0,
        "breaker_window": 60,
        "compression": "auto",
        "concurrency_by": "partition",
        "in_memory_bytes": 64 << 20,
        "in_memory_queue_size": 5000,
        "warm": False,
        "warm_again_at": 0.8,
        "warm_refill_below": 0.9,
        "concurrency_limit": None,
        "conflate": False,
        "keep_until_archived": "auto",
        "dedupe_window": 0,
        "delay": 0,
        "durable_acks": True,
        "lease_time": 300,
        "max_attempts": 5,
        "max_message_bytes": 1 << 20,
        "metrics_retention": 604800,
        "paused": False,
        "push_paused": False,
        "push_rate_burst": None,
        "push_rate_limit": None,
        "push_rate_period": 1,
        "quiet_period": 0,
        "rate_burst": None,
        "rate_by": "partition",
        "rate_limit": None,
        "rate_period": 1,
        "retention_bytes": None,
        "retention_rule": "keep_until_consumed",
        "retention_time": None,
        "spread": 1,
    }


def test_every_setting_has_a_meaning_and_accepts_its_own_default(sql: Connection) -> None:
    rows = sql.execute(
        "SELECT name, meaning <> '', penstock.scoped_settings_problem(jsonb_build_object(name, default_value), scope)"
        " FROM (SELECT s.name, s.default_value, s.meaning,"
        " unnest(CASE s.scope WHEN 'both' THEN '{queue,group}' ELSE ARRAY[s.scope] END) AS scope"
        " FROM penstock.settings() s) s"
    ).fetchall()
    assert {(explained, problem) for _, explained, problem in rows} == {(True, None)}


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("""UPDATE penstock.queues SET config = '{"colour": "red"}'""", "queues_config_is_valid"),
        ("""UPDATE penstock.queues SET config = '{"spread": 0}'""", "queues_config_is_valid"),
        ("""UPDATE penstock.queues SET config = '[]'""", "queues_config_is_valid"),
        ("UPDATE penstock.queues SET name = '*'", "queues_name_is_valid"),
        ("INSERT INTO penstock.queues (name) VALUES ('q')", "queues_name_is_unique"),
        ("UPDATE penstock.partitions SET name = ''", "partitions_name_is_valid"),
        (
            "INSERT INTO penstock.partitions (queue_id, name) SELECT queue_id, '0' FROM penstock.queues",
            "partitions_name_is_unique",
        ),
    ],
)
def test_the_tables_themselves_refuse_what_is_wrong(
    client: Client, sql: Connection, statement: str, constraint: str
) -> None:
    client.push("q", 1)
    with pytest.raises(errors.IntegrityError) as caught:
        sql.execute(statement.encode())
    assert caught.value.diag.constraint_name == constraint


def test_effective_settings_follow_the_configuration(client: Client, sql: Connection) -> None:
    client.create("q")
    sql.execute("""UPDATE penstock.queues SET config = '{"spread": 3}'""")
    assert client.describe("q").settings["spread"] == 3


def rows_by_table(sql: Connection) -> dict[str, int]:
    # Answers to pushes are of a client, and of no queue.
    tables = sql.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'"
        " AND tablename NOT IN ('migrations', 'maintenance', 'producers')"
    ).fetchall()
    return {
        table: sql.execute(f"SELECT count(*) FROM penstock.{table}".encode()).fetchall()[0][0] for (table,) in tables
    }


@pytest.mark.parametrize("partition", [None, "b"])
def test_a_deletion_leaves_no_row_anywhere(client: Client, sql: Connection, partition: str | None) -> None:
    client.push("kept", 1)
    if partition is not None:
        client.push("q", 1, partition="a")
    before = rows_by_table(sql)
    client.push_many("q", [("b", 1), ("b", 2)])
    client.push("q", [3], partition="b")
    client.purge("q", partition="b")
    client.push("q", [4], partition="b")
    client.delete("q", partition=partition)
    assert rows_by_table(sql) == before


def columns_used(sql: Connection) -> list[tuple[bool, bool]]:
    query = "SELECT body IS NOT NULL, body_compressed IS NOT NULL FROM penstock.segments ORDER BY base_offset"
    return [(bool(plain), bool(compressed)) for plain, compressed in sql.execute(query).fetchall()]


def has_lz4(sql: Connection) -> bool:
    query = "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    return bool(sql.execute(query).fetchall()[0][0])


@pytest.mark.parametrize("choice", ["on", "off", "auto"])
def test_the_choice_of_compression_picks_the_column(client: Client, sql: Connection, choice: str) -> None:
    client.create("q", compression=choice)
    client.push("q", {"a": 1})
    client.push_many("q", [("0", 1), ("1", 2)])
    compressed = choice == "on" or (choice == "auto" and has_lz4(sql))
    assert set(columns_used(sql)) == {(not compressed, compressed)}
    assert [message.json() for message in client.read("q", "0")] == [{"a": 1}, 1]


def test_compressible_values_take_less_room_and_lz4_is_used_where_there_is_one(client: Client, sql: Connection) -> None:
    client.create("on", compression="on")
    client.create("off", compression="off")
    for queue in ("on", "off"):
        client.push(queue, [b"the same again " * 100] * 50)
    query = (
        "SELECT pg_column_size(coalesce(body, body_compressed)), pg_column_compression(body_compressed)"
        " FROM penstock.segments ORDER BY body IS NULL"
    )
    (plain, none), (small, method) = sql.execute(query).fetchall()
    assert plain >= 75_000
    assert small < plain / 5
    assert none is None
    assert method == ("lz4" if has_lz4(sql) else "pglz")


def test_values_that_do_not_compress_are_stored_as_they_are(client: Client) -> None:
    client.create("q", compression="on")
    value = os.urandom(100_000)
    client.push("q", value)
    assert client.read("q", "0")[0].value == value


def test_a_change_of_compression_holds_for_new_segments_only(client: Client, sql: Connection) -> None:
    client.create("q", compression="off")
    client.push("q", [1])
    client.configure("q", compression="on")
    client.push("q", [2])
    assert columns_used(sql) == [(True, False), (False, True)]
    client.push("q", [3])
    list(client.maintain(min_segments=2))
    assert [message.json() for message in client.read("q", "0")] == [1, 2, 3]


def test_a_push_never_updates_a_row(client: Client, sql: Connection) -> None:
    client.push("q", 1, partition="p")
    query = "SELECT ctid::text, xmin::text FROM penstock.{} ORDER BY 1"
    before = [sql.execute(query.format(table).encode()).fetchall() for table in ("queues", "partitions")]
    for number in range(5):
        client.push("q", number, partition="p")
    assert [sql.execute(query.format(table).encode()).fetchall() for table in ("queues", "partitions")] == before
