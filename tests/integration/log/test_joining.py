"""Messages that were pushed one at a time come as one slice, and are the same messages."""

from typing import Any

import pytest

from databases import Connection
from penstock import Client, Message

VALUES: list[Any] = [b"one", b"", b"three " * 5000, b"four", b"x" * 70000, b"six"]


def slices(sql: Connection, function: str = "read_segments('q', 'p')") -> list[int]:
    """Return how many messages each row holds."""
    return [count for (count,) in sql.execute(f"SELECT count FROM penstock.{function}".encode()).fetchall()]


def push_singly(client: Client, values: list[Any]) -> None:
    """Push messages one at a time."""
    for value in values:
        client.push("q", value, partition="p")


def rows_of(sql: Connection) -> list[tuple[int, Any, Any]]:
    """Return offset, time and value of each stored message, as the tables have them."""
    return sql.execute(
        "SELECT base_offset, created_at, coalesce(body, body_compressed) FROM penstock.segments ORDER BY 1"
    ).fetchall()


def test_a_read_gets_one_slice_with_every_value_offset_and_time(client: Client, sql: Connection) -> None:
    push_singly(client, VALUES)
    assert slices(sql) == [6]
    read = client.read("q", "p")
    assert [(m.offset, m.timestamp, m.value) for m in read] == rows_of(sql)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_pop_gets_one_slice_with_every_value_offset_and_time(client: Client, sql: Connection, mode: str) -> None:
    client.create_group("q", "g", mode=mode)
    client.create_group("q", "same", mode=mode)
    push_singly(client, VALUES)
    # The first range of a shared group is given out by whoever carves the others.
    skipped = 2 if mode == "shared" else 0
    for group in ("g", "same")[: skipped and 2]:
        first = client.pop("q", group, max_messages=2)
        assert first is not None
        first.ack()
    batch = client.pop("q", "g", max_messages=6)
    assert batch is not None
    got = [(m.offset, m.timestamp, m.value) for m in batch]
    assert got == rows_of(sql)[skipped : skipped + len(got)]
    assert slices(sql, "pop_claims('q', 'same', max_messages => 6)") == [len(got)]


def test_a_part_of_them_is_one_slice(client: Client, sql: Connection) -> None:
    push_singly(client, VALUES)
    assert slices(sql, "read_segments('q', 'p', 1, 5)") == [4]
    assert [m.value for m in client.read("q", "p", start=1, stop=5)] == VALUES[1:5]


@pytest.mark.parametrize(
    "other", [Message("k", key="k"), Message("h", headers={"a": "b"}), None], ids=["key", "headers", "null"]
)
def test_beside_a_key_headers_or_a_null_value_they_come_as_they_are_stored(
    client: Client, sql: Connection, other: Any
) -> None:
    client.create_group("q", "g")
    push_singly(client, [b"a", other, b"b"])
    assert slices(sql) == slices(sql, "pop_claims('q', 'g')") == [1, 1, 1]
    assert [m.offset for m in client.read("q", "p")] == [0, 1, 2]


def test_beside_a_batch_they_come_as_they_are_stored(client: Client, sql: Connection) -> None:
    push_singly(client, [b"a", b"b"])
    client.push("q", [b"c", b"d"], partition="p")
    push_singly(client, [b"e"])
    assert slices(sql) == [1, 1, 2, 1]
    assert slices(sql, "read_segments('q', 'p', 3)") == [1, 1]
    assert [m.value for m in client.read("q", "p")] == [b"a", b"b", b"c", b"d", b"e"]
