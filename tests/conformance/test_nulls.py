"""A null value, which Kafka calls a tombstone, is stored and read as such: it is neither empty nor JSON's null."""

from typing import Any

import psycopg
import pytest

from penstock import Message

# As they come: some are null, some are empty, and one is the text of JSON's null.
MIXED = [b"a", None, b"", b"null", None]

pytestmark = pytest.mark.usefixtures("sound")


def come_due(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE penstock.scheduled SET due_at = due_at - interval '1 day'")


def values(messages: Any) -> list[bytes | None]:
    return [message.value for message in messages]


@pytest.fixture
def mixed(api: Any) -> Any:
    """Partition p of queue q holds all of MIXED, pushed as 3 and 2, with a key for every other message."""
    for low, high in ((0, 3), (3, 5)):
        messages = [Message(value, key=f"k{n}" if n % 2 else None) for n, value in enumerate(MIXED[low:high], low)]
        api.push("q", messages, partition="p")
    return api


def test_none_is_stored_as_a_null_value(api: Any) -> None:
    api.push("q", None, key="ann")
    (message,) = api.read("q", "0")
    assert (message.value, message.key, message.json()) == (None, "ann", None)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_batch_may_be_of_null_values_only(api: Any, count: int) -> None:
    assert api.push("q", [None] * count).count == count
    assert values(api.read("q", "0")) == [None] * count


@pytest.mark.parametrize("times", [1, 40])
def test_null_values_lie_among_others(api: Any, times: int) -> None:
    api.push("q", MIXED * times)
    assert values(api.read("q", "0")) == MIXED * times


def test_json_s_null_is_a_value_of_four_bytes(api: Any) -> None:
    api.push("q", b"null")
    (message,) = api.read("q", "0")
    assert (message.value, message.json()) == (b"null", None)


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 2), (1, 4), (2, 5), (4, 5), (0, 1)])
def test_every_range_has_its_null_values(mixed: Any, start: int, stop: int) -> None:
    expected = MIXED[start:stop]
    assert values(mixed.read("q", "p", start, stop)) == expected
    assert values(mixed.scan("q", "p", start, stop)) == expected
    assert mixed.read_arrow("q", "p", start, stop)["value"].to_pylist() == expected


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_limit_keeps_null_values(mixed: Any, limit: int) -> None:
    assert values(mixed.read("q", "p", limit=limit)) == MIXED[:limit]
    assert values(mixed.read("q", "p", 1, limit=limit)) == MIXED[1 : 1 + limit]


def test_an_id_finds_a_null_value(mixed: Any) -> None:
    for message in mixed.read("q", "p"):
        assert mixed.get(message.id) == message


def test_a_tail_shows_null_values(mixed: Any) -> None:
    assert values(mixed.tail("q", last=5, follow=False)) == MIXED


def test_push_many_takes_null_values(api: Any) -> None:
    api.push_many("q", [("a", None), ("b", 1), Message(None, key="k", partition="a")])
    assert [(message.value, message.key) for message in api.read("q", "a")] == [(None, None), (None, "k")]
    assert values(api.read("q", "b")) == [b"1"]


def test_a_null_value_can_be_pushed_on_to_another_queue(mixed: Any) -> None:
    mixed.push("to", mixed.read("q", "p"), partition="p")
    assert [(m.value, m.key) for m in mixed.read("to", "p")] == [(m.value, m.key) for m in mixed.read("q", "p")]


def test_a_transaction_pushes_null_values(api: Any) -> None:
    with api.transaction() as tx:
        tx.push("q", MIXED, partition="p")
        tx.push("q", None, partition="p", key="k")
    assert values(api.read("q", "p")) == [*MIXED, None]


def test_a_delayed_null_value_comes_when_it_is_due(api: Any, dsn: str) -> None:
    api.push("q", [None, b"x"], partition="p", delay=3600)
    assert [info.preview for info in api.scheduled("q")] == [None]
    come_due(dsn)
    api.sweep()
    assert values(api.read("q", "p")) == [None, b"x"]


def test_a_null_value_counts_once_by_its_dedupe_id(api: Any) -> None:
    api.create("q", dedupe_window=3600)
    given = [Message(value, dedupe_id=name) for value, name in zip([*MIXED, None], "abcdeb", strict=True)]
    api.push("q", given, partition="p")
    again = [Message(None, dedupe_id="b"), Message(None, dedupe_id="new"), Message(b"y", dedupe_id="newer")]
    assert [duplicate.offset for duplicate in api.push("q", again, partition="p").duplicates] == [1]
    assert values(api.read("q", "p")) == [*MIXED, None, b"y"]
