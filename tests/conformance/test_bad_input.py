"""Whatever cannot be taken is refused with a typed error, and nothing has changed."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from penstock import AlreadyExists, InvalidInput, Message, MessageTooLarge, NotFound, PenstockError

from .conftest import everything

NAIVE = datetime(2026, 1, 1)
Unchanged = Callable[[], AbstractContextManager[None]]
Act = Callable[[Any], Any]


def each(items: Any) -> list[Any]:
    return list(items)


BAD_PUSHES: dict[str, tuple[Act, type[PenstockError], str]] = {
    "an empty batch": (lambda a: a.push("new", []), InvalidInput, "empty push"),
    "an empty push_many": (lambda a: a.push_many("new", []), InvalidInput, "empty push"),
    "a payload over the limit": (lambda a: a.push("old", b"x" * 101), MessageTooLarge, "max_message_bytes"),
    "one of many over the limit": (
        lambda a: a.push_many("old", [("0", b"x"), ("1", b"y"), ("0", b"x" * 101)]),
        MessageTooLarge,
        "101 bytes",
    ),
    "a NUL in the queue": (lambda a: a.push("a\0b", 1), InvalidInput, "control characters"),
    "a NUL in the partition": (lambda a: a.push("new", 1, partition="\0"), InvalidInput, "control characters"),
    "a newline in a name": (lambda a: a.push("new", 1, partition="a\nb"), InvalidInput, "control characters"),
    "a NUL in the key": (lambda a: a.push("new", 1, partition="p", key="a\0"), InvalidInput, "NUL"),
    "a NUL in a header": (lambda a: a.push("new", 1, headers={"a": "\0"}), InvalidInput, "NUL"),
    "a lone surrogate": (lambda a: a.push("new", 1, partition="\ud800"), InvalidInput, "UTF-8"),
    "an empty key": (lambda a: a.push("new", 1, key=""), InvalidInput, "key"),
    "an empty queue name": (lambda a: a.push("", 1), InvalidInput, "queue is empty"),
    "an empty partition name": (lambda a: a.push("new", 1, partition=""), InvalidInput, "partition is empty"),
    "an empty partition name of a delayed push": (
        lambda a: a.push("new", 1, partition="", delay=9),
        InvalidInput,
        "partition is empty",
    ),
    "an empty partition name of many": (
        lambda a: a.push_many("new", [("a", 1), ("", 2)]),
        InvalidInput,
        "partition is empty",
    ),
    "too long a name": (lambda a: a.push("ü" * 128, 1), InvalidInput, "1 to 255 bytes"),
    "any as a partition": (lambda a: a.push("new", 1, partition="*"), InvalidInput, "any partition"),
    "any among many": (lambda a: a.push_many("new", [("a", 1), ("*", 2)]), InvalidInput, "any partition"),
    "a number as a queue": (lambda a: a.push(7, 1), InvalidInput, "must be a text"),
    "bytes as a partition": (lambda a: a.push("new", 1, partition=b"7"), InvalidInput, "partition must be a text"),
    "a fraction as a key": (lambda a: a.push("new", 1, key=7.5), InvalidInput, "key"),
    "a number as headers": (lambda a: a.push("new", 1, headers=7), InvalidInput, "headers"),
    "a header that is no text": (lambda a: a.push("new", 1, headers={"a": 1}), InvalidInput, "headers"),
    "a value that is no JSON": (lambda a: a.push("new", object()), InvalidInput, "JSON"),
    "a number that JSON has not": (lambda a: a.push("new", {"a": [1.5, float("nan")]}), InvalidInput, "NaN"),
    "an infinity": (lambda a: a.push("new", [None, (float("-inf"),)]), InvalidInput, "infinity"),
    "one bad value of many": (lambda a: a.push("new", [1, object()]), InvalidInput, "JSON"),
    "a pair that is none": (lambda a: a.push_many("new", [("a", 1), "b"]), InvalidInput, "pairs"),
    "pairs that cannot be iterated": (lambda a: a.push_many("new", 7), InvalidInput, "pairs"),
    "keys that pick several partitions": (
        lambda a: a.push("spread", [Message(1, key=f"k{n}") for n in range(9)]),
        InvalidInput,
        "push_many",
    ),
    "messages of two partitions": (
        lambda a: a.push("old", [Message(1, partition="a"), Message(2, partition="b")]),
        InvalidInput,
        "push_many",
    ),
}

BAD_READS: dict[str, tuple[Act, type[PenstockError], str]] = {
    "an unknown queue": (lambda a: a.read("none", "0"), NotFound, 'no queue "none"'),
    "an unknown partition": (lambda a: a.read("old", "none"), NotFound, 'no partition "none"'),
    "an unknown partition of a scan": (lambda a: each(a.scan("old", "none")), NotFound, 'no partition "none"'),
    "an unknown partition of a table": (lambda a: a.read_arrow("old", "none"), NotFound, 'no partition "none"'),
    "an unknown queue of a tail": (lambda a: each(a.tail("none", follow=False)), NotFound, "no queue"),
    "a negative start": (lambda a: a.read("old", "0", -1), InvalidInput, "offsets start at 0"),
    "a negative stop": (lambda a: a.read("old", "0", 0, -1), InvalidInput, "offsets start at 0"),
    "an offset over 63 bits": (lambda a: a.read("old", "0", 1 << 63), InvalidInput, "offsets start at 0"),
    "an offset that is text": (lambda a: a.read("old", "0", "1"), InvalidInput, "offset"),
    "an offset between two": (lambda a: a.read("old", "0", 0.5), InvalidInput, "offset"),
    "a time without a zone": (lambda a: a.read("old", "0", start_time=NAIVE), InvalidInput, "time zone"),
    "a stop time without a zone": (lambda a: a.read("old", "0", stop_time=NAIVE), InvalidInput, "time zone"),
    "a time that is text": (lambda a: a.read("old", "0", start_time="2026"), InvalidInput, "datetime"),
    "a negative limit": (lambda a: a.read("old", "0", limit=-1), InvalidInput, "limit"),
    "a limit that is text": (lambda a: a.read("old", "0", limit="1"), InvalidInput, "limit"),
    "a negative tail": (lambda a: each(a.tail("old", last=-1, follow=False)), InvalidInput, "last"),
    "a tail of text": (lambda a: each(a.tail("old", last="1", follow=False)), InvalidInput, "last"),
    "a number as a name": (lambda a: a.read(7, "0"), InvalidInput, "must be a text"),
    "an id that is none": (lambda a: a.get("nonsense"), InvalidInput, "not a message id"),
    "an id that is a number": (lambda a: a.get(7), InvalidInput, "not a message id"),
    "an id of another kind": (lambda a: a.get(uuid4()), InvalidInput, "version 8"),
    "an id of nothing": (lambda a: a.get("0198a7f0-0000-8000-8000-000000000000"), NotFound, "no message"),
    "an unknown queue described": (lambda a: a.describe("none"), NotFound, "no queue"),
    "the partitions of an unknown queue": (lambda a: a.partitions("none"), NotFound, "no queue"),
    "an unknown partition described": (lambda a: a.partitions("old", "none"), NotFound, "no partition"),
}

BAD_CHANGES: dict[str, tuple[Act, type[PenstockError], str]] = {
    "an unknown setting": (lambda a: a.create("new", colour="red"), InvalidInput, "known ones are lease_time, max_"),
    "an unknown setting changed": (lambda a: a.configure("old", colour="red"), InvalidInput, "known ones are lease_"),
    "an unknown setting reset": (lambda a: a.configure("new", colour=None), InvalidInput, "known ones are lease_"),
    "text for a number": (lambda a: a.create("new", lease_time="long"), InvalidInput, "must be a number"),
    "a number for a choice": (lambda a: a.create("new", compression=1), InvalidInput, "one of auto, on, off"),
    "an unknown choice": (lambda a: a.configure("old", compression="zip"), InvalidInput, "one of auto, on, off"),
    "too small a number": (lambda a: a.configure("old", max_attempts=0), InvalidInput, "from 1 to 32767"),
    "too large a number": (lambda a: a.configure("old", spread=70000), InvalidInput, "from 1 to 65536"),
    "a fraction of a count": (lambda a: a.create("new", spread=1.5), InvalidInput, "whole number"),
    "a truth for a number": (lambda a: a.create("new", spread=True), InvalidInput, "must be a number"),
    "a setting that is no JSON": (lambda a: a.create("new", spread=object()), InvalidInput, "JSON values"),
    "a setting and its alias": (
        lambda a: a.create("new", quiet_period=1, window_buffer=1),
        InvalidInput,
        "another name of quiet_period",
    ),
    "a good and a bad setting": (
        lambda a: a.configure("old", lease_time=9, spread=0),
        InvalidInput,
        "setting spread",
    ),
    "a queue that exists": (lambda a: a.create("old"), AlreadyExists, "exists already"),
    "a partition that exists": (lambda a: a.create("old", partition="0"), AlreadyExists, "exists already"),
    "a queue with a bad name": (lambda a: a.create("a\0b"), InvalidInput, "control characters"),
    "a partition named any": (lambda a: a.create("new", partition="*"), InvalidInput, "any partition"),
    "too high a priority": (lambda a: a.create("new", partition="p", priority=1 << 15), InvalidInput, "-32768"),
    "a priority over 32 bits": (lambda a: a.create("new", partition="p", priority=1 << 40), InvalidInput, "range"),
    "a priority of text": (lambda a: a.configure("old", partition="0", priority="x"), InvalidInput, "whole number"),
    "a priority of a queue": (lambda a: a.configure("old", priority=3), InvalidInput, "partition"),
    "a new queue's priority": (lambda a: a.create("new", priority=3), InvalidInput, "partition"),
    "a setting of a partition": (lambda a: a.create("new", partition="p", spread=2), InvalidInput, "belongs to the"),
    "a partition's description": (
        lambda a: a.configure("old", partition="0", description="x"),
        InvalidInput,
        "belongs to the queue",
    ),
    "a NUL in a description": (lambda a: a.create("new", description="a\0b"), InvalidInput, "NUL"),
    "purging an unknown queue": (lambda a: a.purge("none"), NotFound, "no queue"),
    "purging an unknown partition": (lambda a: a.purge("old", partition="none"), NotFound, "no partition"),
    "deleting an unknown queue": (lambda a: a.delete("none"), NotFound, "no queue"),
    "deleting an unknown partition": (lambda a: a.delete("old", partition="none"), NotFound, "no partition"),
}

ALL = {**BAD_PUSHES, **BAD_READS, **BAD_CHANGES}


@pytest.fixture
def filled(api: Any) -> Any:
    api.create("old", max_message_bytes=100)
    api.create("spread", spread=8)
    api.push("old", [b"one", b"two"], partition="0")
    return api


def raised(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def test_bad_input_is_refused_and_changes_nothing(filled: Any) -> None:
    before = everything(filled)
    for what, (act, kind, says) in ALL.items():
        error = raised(partial(act, filled))
        assert isinstance(error, kind), f"{what}: {error!r}"
        assert says in str(error), what
        assert everything(filled) == before, what


def test_bad_input_in_a_transaction_takes_the_whole_block_back(filled: Any, unchanged: Unchanged) -> None:
    with unchanged(), pytest.raises(MessageTooLarge), filled.transaction() as tx:
        tx.push("new", 1)
        tx.push("old", b"x" * 101)


@pytest.mark.parametrize(
    ("queue", "given", "says"),
    [
        ("", {}, "queue is empty"),
        ("a\nb", {}, "queue must have no control characters"),
        ("q", {"partition": ""}, "partition is empty"),
        ("q", {"partition": "*"}, "partition is '\\*'"),
        ("q", {"partition": "~a"}, "partition is '~a'"),
        ("q", {"partition": "ü" * 128}, "partition must have 1 to 255 bytes, .* has 256"),
        ("q", {"partition": "a\x9f"}, "partition must have no control characters"),
        ("q", {"partition": b"7"}, "partition must be a text"),
        ("q", {"partition": ["p"]}, "partition must be a text"),
        ("q", {"key": ""}, "a key must be a text of at least one character"),
    ],
)
def test_a_transaction_refuses_a_bad_name_where_it_is_given(api: Any, queue: str, given: Any, says: str) -> None:
    with api.transaction() as tx:
        tx.push("good", 1)
        with pytest.raises(InvalidInput, match=says):
            tx.push(queue, 2, **given)
        with pytest.raises(InvalidInput, match=says):
            tx.push_many(queue, [Message(2, **given)])
    assert [queue.name for queue in api.queues()] == ["good"]


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b'"\xff"', b"[" * 100_000, b"1 2"])
def test_a_value_that_is_no_json_says_so(api: Any, value: bytes) -> None:
    api.push("q", value)
    with pytest.raises(InvalidInput, match=r"is not JSON .* its bytes are in \.value"):
        api.read("q", "0")[0].json()


def test_a_forged_id_finds_nothing(api: Any) -> None:
    api.push("q", 1)
    (message,) = api.read("q", "0")
    moved = type(message.id)(int=message.id.int + (1 << 80))
    with pytest.raises(NotFound):
        api.get(moved)
    assert api.get(message.id) == message


def test_times_with_any_zone_are_taken(api: Any) -> None:
    api.push("q", 1)
    assert api.read("q", "0", stop_time=datetime(2020, 1, 1, tzinfo=UTC)) == []
