"""Plain SQL does it all too, and the views have the columns that operators know."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from penstock import Batch, Client

from .groups import MODES

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    """A connection to the fresh penstock, as psql has one; afterwards, state and log must agree."""
    with psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        yield connection
        found = connection.execute("SELECT * FROM penstock.verify() WHERE violations > 0").fetchall()
        assert found == []


def push(sql: Connection, partition: str, *values: Any) -> None:
    payloads = [json.dumps(value).encode() for value in values]
    sql.execute("SELECT penstock.push('q', %s::bytea[], %s)", (payloads, partition))


def pop(sql: Connection, partition: str | None = None, **options: Any) -> list[dict[str, Any]]:
    given = "".join(f", {name} => {value}" for name, value in options.items())
    query = f"SELECT * FROM penstock.pop('q', 'g', %s{given})"
    return sql.execute(query.encode(), (partition,)).fetchall()


def one(sql: Connection, query: str, *parameters: Any) -> dict[str, Any]:
    (row,) = sql.execute(query.encode(), parameters).fetchall()
    return row


def claim(client: Client, group: str = "g", **options: Any) -> Batch:
    batch = client.pop("q", group, **options)
    assert batch is not None
    return batch


def view(sql: Connection, name: str) -> dict[str, Any]:
    return one(sql, f"SELECT * FROM penstock.{name} WHERE partition_name = 'p'")


def test_pop_gives_a_row_per_message_and_ack_ends_the_claim(sql: Connection) -> None:
    push(sql, "p", 1, 2, 3)
    rows = pop(sql, max_messages=2, consumer="'psql'", lease_time=60)
    assert [(row["popped_from"], row["message_offset"], bytes(row["payload"])) for row in rows] == [
        ("p", 0, b"1"),
        ("p", 1, b"2"),
    ]
    assert {(row["attempt"], row["lease_id"]) for row in rows} == {(1, rows[0]["lease_id"])}
    assert one(sql, "SELECT payload FROM penstock.get(%s)", rows[1]["id"])["payload"] == b"2"
    assert pop(sql) == []
    sql.execute("SELECT penstock.ack('q', 'g', 'p', %s, 1)", (rows[0]["lease_id"],))
    assert one(sql, "SELECT penstock.lag('q', 'g')")["lag"] == 2
    sql.execute("SELECT penstock.ack('q', 'g', 'p', %s)", (rows[0]["lease_id"],))
    assert [row["message_offset"] for row in pop(sql, "p")] == [2]


def test_nack_retries_and_finally_buries(sql: Connection) -> None:
    sql.execute("SELECT penstock.create_group('q', 'g', '{\"max_attempts\": 2}')")
    push(sql, "p", "bad", "good")
    for outcome in ("retry", "dead letter"):
        lease = pop(sql)[0]["lease_id"]
        said = one(sql, "SELECT penstock.nack('q', 'g', 'p', %s, 0, 'broken', 0)", lease)
        assert said["nack"] == outcome
    (letter,) = sql.execute("SELECT * FROM penstock.list_dead_letters('q')").fetchall()
    assert (letter["payload"], letter["reason"], letter["attempts"]) == (b'"bad"', "broken", 2)
    assert [bytes(row["payload"]) for row in pop(sql)] == [b'"good"']


def test_renew_gives_a_new_deadline(sql: Connection) -> None:
    push(sql, "p", 1)
    (row,) = pop(sql, lease_time=10)
    until = one(sql, "SELECT penstock.renew('q', 'g', 'p', %s, 1000)", row["lease_id"])["renew"]
    assert (until - row["lease_until"]).total_seconds() > 900


def test_a_lease_that_is_not_live_is_refused_and_nothing_changes(sql: Connection) -> None:
    push(sql, "p", 1)
    (row,) = pop(sql)
    for call in ("ack", "nack", "renew"):
        for lease in (uuid4(), None):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="nothing was changed"):
                sql.execute(f"SELECT penstock.{call}('q', 'g', 'p', %s)".encode(), (lease,))
    assert view(sql, "partition_consumers")["state"] == "claimed"
    sql.execute("SELECT penstock.ack('q', 'g', 'p', %s)", (row["lease_id"],))


@pytest.mark.parametrize("call", ["ack", "nack", "renew"])
def test_plain_calls_settle_shared_groups_too(sql: Connection, call: str) -> None:
    sql.execute("SELECT penstock.create_group('q', 'g', mode => 'shared')")
    push(sql, "p", 1, 2)
    rows = pop(sql)
    sql.execute(f"SELECT penstock.{call}('q', 'g', 'p', %s)".encode(), (rows[0]["lease_id"],))
    lag = one(sql, "SELECT penstock.lag('q', 'g')")["lag"]
    assert lag == (0 if call == "ack" else 2)


def test_a_transaction_of_ones_own_holds_pop_and_ack_together(sql: Connection, dsn: str) -> None:
    push(sql, "p", 1)
    with psycopg.connect(dsn) as own:
        lease = own.execute("SELECT lease_id FROM penstock.pop('q', 'g')").fetchone()
        assert lease is not None
        own.execute("SELECT penstock.ack('q', 'g', 'p', %s)", lease)
        own.rollback()
    assert [bytes(row["payload"]) for row in pop(sql)] == [b"1"]


def test_consuming_needs_read_committed_and_says_so(sql: Connection, dsn: str) -> None:
    push(sql, "p", 1)
    with psycopg.connect(dsn) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error, match="READ COMMITTED"):
            own.execute("SELECT * FROM penstock.pop('q', 'g')")


def test_partition_consumers_tells_who_is_where(sql: Connection, dsn: str) -> None:
    with Client(dsn) as client:
        pushed = client.push("q", [1, 2, 3, 4], partition="p")
        client.configure_group("q", "g", backoff_initial=0)
        claim(client, max_messages=2).ack()
        done = view(sql, "partition_consumers")
        assert (done["queue_name"], done["partition_id"], done["consumer_group"]) == ("q", pushed.partition_id, "g")
        assert (done["last_consumed_id"], done["last_consumed_created_at"]) == (pushed.ids[1], pushed.timestamp)
        assert (done["acked_count"], done["batch_size"], done["batch_retry_count"]) == (2, 0, 0)
        assert (done["lease_acquired_at"], done["lease_expires_at"], done["worker_id"]) == (None, None, None)
        assert done["last_consumed_at"] >= pushed.timestamp
        claim(client).nack()
        claim(client, lease=100)
        held = view(sql, "partition_consumers")
        assert (held["worker_id"], held["batch_size"], held["batch_retry_count"]) == (client.consumer_id, 1, 1)
        assert (held["lease_expires_at"] - held["lease_acquired_at"]).total_seconds() == pytest.approx(100, abs=1)
        assert (held["last_consumed_id"], held["acked_count"]) == (pushed.ids[1], 2)


@pytest.mark.parametrize("mode", MODES)
def test_the_views_tell_how_much_is_acknowledged(sql: Connection, dsn: str, mode: str) -> None:
    with Client(dsn) as client:
        client.push("q", list(range(10)), partition="p")
        client.create_group("q", "g", mode=mode)
        batch = claim(client, max_messages=4)
        offsets = view(sql, "consumer_offsets")
        assert (offsets["group_id"], offsets["queue_name"], offsets["next_offset"]) == ("g", "q", 0)
        assert view(sql, "partition_consumers")["acked_count"] == 0
        batch.ack()
        assert view(sql, "consumer_offsets")["next_offset"] == 4
        assert view(sql, "partition_consumers")["acked_count"] == 4
        assert offsets["topic_id"] == batch.claims[0].partition_id


def test_consumer_offsets_has_the_next_offset_of_each_group(sql: Connection, dsn: str) -> None:
    with Client(dsn) as client:
        client.push_many("q", [("p", 1), ("p", 2), ("r", 3)])
        claim(client, "one", partition="p").ack()
        claim(client, "two", partition="r")
        rows = sql.execute("SELECT * FROM penstock.consumer_offsets").fetchall()
    found = {(row["group_id"], row["partition_name"]): row["next_offset"] for row in rows}
    assert found == {("one", "p"): 2, ("one", "r"): 0, ("two", "p"): 0, ("two", "r"): 0}
