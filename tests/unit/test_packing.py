"""Packing and unpacking are inverse, whatever the messages, the segments' caps and the slices."""

import struct
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import InvalidInput, Message, StoredMessage
from penstock.broker import packing
from penstock.broker.packing import Segment, Slice, ends_of, pack, unpack
from penstock.broker.runs import stamp_of

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=20),
    key=st.none() | texts.filter(bool),
    headers=st.none() | st.dictionaries(texts, texts, max_size=2),
)
some_messages = st.lists(messages, min_size=1, max_size=12)


def stored(segment: Segment, base_offset: int = 0) -> Slice:
    columns = (segment.body, segment.ends, 0, segment.keys, segment.key_ends, 0, segment.headers, segment.header_ends)
    return Slice(base_offset, segment.count, EPOCH, 0, None, None, 0, *columns)


def sent(kind: int, size: int, numbers: list[int]) -> bytes:
    """Write an array as the server sends it."""
    entries = (size.to_bytes(4, "big") + number.to_bytes(size, "big", signed=True) for number in numbers)
    return struct.pack(">iiiii", 1, 0, kind, len(numbers), 1) + b"".join(entries)


def content(message: Message | StoredMessage) -> tuple[bytes | None, Any, dict[str, str] | None]:
    return message.value, message.key, dict(message.headers) if message.headers else None


@given(some_messages)
def test_unpacking_gives_back_what_was_packed(given_messages: list[Message]) -> None:
    (segment,) = pack(given_messages)
    found = unpack("q", "p", 3, stored(segment, base_offset=40))
    assert [content(message) for message in found] == [content(message) for message in given_messages]
    assert [message.offset for message in found] == list(range(40, 40 + len(given_messages)))


@given(some_messages, st.integers(1, 15))
def test_the_first_of_a_slice_are_the_first_of_its_messages(given_messages: list[Message], count: int) -> None:
    (segment,) = pack(given_messages)
    found = unpack("q", "p", 3, stored(segment).first(count))
    assert [content(message) for message in found] == [content(message) for message in given_messages[:count]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_each_message_of_merged_runs_keeps_its_time(runs: list[int], data: st.DataObject) -> None:
    total = sum(runs)
    low = data.draw(st.integers(0, total - 1))
    high = data.draw(st.integers(low + 1, total))
    times = [EPOCH + timedelta(seconds=index) for index, count in enumerate(runs) for _ in range(count)]
    (segment,) = pack([Message(b"x")] * (high - low))
    columns = (segment.body, segment.ends, 0, None, None, 0, None, None)
    run_times = [stamp_of(EPOCH + timedelta(seconds=index)) for index in range(len(runs))]
    part = Slice(low, high - low, times[-1], low, sent(23, 4, runs), sent(1184, 8, run_times), 0, *columns)
    assert list(part.times()) == times[low:high]
    assert [message.timestamp for message in unpack("q", "p", 1, part)] == times[low:high]


@given(some_messages, st.integers(1, 40), st.integers(1, 6))
def test_segments_respect_both_caps(given_messages: list[Message], most_bytes: int, most_messages: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MAX_SEGMENT_BYTES", most_bytes)
        patch.setattr(packing, "MAX_SEGMENT_MESSAGES", most_messages)
        segments = pack(given_messages)
    for segment in segments:
        assert segment.count <= most_messages
        assert len(segment.body) <= most_bytes or segment.count == 1
    bases = accumulate((segment.count for segment in segments), initial=0)
    found = [
        message
        for base, segment in zip(bases, segments, strict=False)
        for message in unpack("q", "p", 1, stored(segment, base))
    ]
    assert [content(message) for message in found] == [content(message) for message in given_messages]
    assert [message.offset for message in found] == list(range(len(given_messages)))


def test_a_message_over_the_cap_gets_a_segment_of_its_own() -> None:
    big = bytes(packing.MAX_SEGMENT_BYTES + 1)
    segments = pack([Message(b"a"), Message(big), Message(b"b")])
    assert [segment.count for segment in segments] == [1, 1, 1]


def test_ten_thousand_and_one_messages_are_two_segments() -> None:
    segments = pack([Message(b"")] * 10_001)
    assert [segment.count for segment in segments] == [10_000, 1]


def test_unused_columns_are_not_stored() -> None:
    (segment,) = pack([Message(b"a"), Message(b"b", headers={})])
    assert (segment.keys, segment.key_ends, segment.headers, segment.header_ends) == (None,) * 4


def test_ends_are_little_endian_int32() -> None:
    (segment,) = pack([Message(b"ab"), Message(b""), Message(b"c")])
    assert segment.ends == bytes.fromhex("02000000 02000000 03000000")
    assert list(ends_of(segment.ends)) == [2, 2, 3]


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", 7, b"bytes"])
def test_a_key_that_is_no_text_of_postgresql_is_refused(key: object) -> None:
    with pytest.raises(InvalidInput):
        pack([Message(b"x", key=key)])  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [{"a": "\0"}, {"\0": "a"}, {"a": 1}, {1: "a"}, {"a": "\ud800"}, ["a"], "text"])
def test_headers_that_are_no_texts_of_postgresql_are_refused(headers: object) -> None:
    with pytest.raises(InvalidInput):
        pack([Message(b"x", headers=headers)])  # type: ignore[arg-type]
