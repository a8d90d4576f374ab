"""Messages to packed columns and back.

A segment is an Arrow column at rest: values end to end in one buffer, and where each ends as little-endian int32.
Packing and unpacking work on whole buffers; what is done per message is one slice and one object.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain, pairwise, repeat

import msgspec

from penstock.engine.messages import Message, StoredMessage
from penstock.errors import InvalidInput

# A segment holds at most this much, so that a reader of one message never fetches more, and so that a message over
# a queue's limit (1 MiB unless changed) is found without looking at each one.
MAX_SEGMENT_BYTES = 1 << 20
MAX_SEGMENT_MESSAGES = 10_000

_headers_decoder = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of messages of one partition, packed."""

    count: int
    body: bytes
    ends: bytes
    keys: bytes | None
    key_ends: bytes | None
    headers: bytes | None
    header_ends: bytes | None


# A struct, because a frozen dataclass of so many fields takes 5 µs to make.
class Slice(msgspec.Struct, frozen=True, gc=False):
    """A range of a stored segment, as the function `segment_slices` returns it."""

    base_offset: int
    count: int
    created_at: datetime
    run_skip: int
    run_counts: list[int] | None
    run_times: list[datetime] | None
    body_start: int
    body: bytes
    ends: bytes
    key_start: int
    keys: bytes | None
    key_ends: bytes | None
    header_start: int
    headers: bytes | None
    header_ends: bytes | None

    def first(self, count: int) -> "Slice":
        """Return its first messages, or all if it has no more."""
        if count >= self.count:
            return self
        packed = 4 * count
        return msgspec.structs.replace(
            self,
            count=count,
            ends=self.ends[:packed],
            key_ends=self.key_ends and self.key_ends[:packed],
            header_ends=self.header_ends and self.header_ends[:packed],
        )

    def runs(self) -> Iterable[tuple[datetime, int]]:
        """Return each time, and how many messages have it."""
        if self.run_counts is None or self.run_times is None:
            return [(self.created_at, self.count)]
        return self._runs(self.run_counts, self.run_times)

    def times(self) -> Iterator[datetime]:
        """Yield the time of each message."""
        return chain.from_iterable(repeat(moment, count) for moment, count in self.runs())

    def _runs(self, counts: list[int], times: list[datetime]) -> Iterator[tuple[datetime, int]]:
        skip, left = self.run_skip, self.count
        for count, moment in zip(counts, times, strict=True):
            taken = min(max(count - skip, 0), left)
            skip = max(skip - count, 0)
            left -= taken
            yield moment, taken


def pack(messages: Sequence[Message]) -> list[Segment]:
    """Pack messages of one partition, whose values are bytes, into as few segments as the caps allow."""
    values: list[bytes] = [message.value for message in messages]
    if len(values) <= MAX_SEGMENT_MESSAGES and sum(map(len, values)) <= MAX_SEGMENT_BYTES:
        return [_segment(messages, values)]
    return [_segment(messages[low:high], values[low:high]) for low, high in _cuts(values)]


def pack_values(values: list[bytes], key: str | None, headers: Mapping[str, str] | None) -> list[Segment]:
    """Pack values that share their key and headers: what is done per message is its length."""
    if len(values) <= MAX_SEGMENT_MESSAGES and sum(map(len, values)) <= MAX_SEGMENT_BYTES:
        return [_alike(values, key, headers)]
    return [_alike(values[low:high], key, headers) for low, high in _cuts(values)]


def unpack(queue: str, partition: str, partition_id: int, part: Slice, attempt: int = 0) -> list[StoredMessage]:
    """Turn a slice into messages."""
    values = _split(part.body, part.ends, part.body_start)
    offsets = range(part.base_offset, part.base_offset + part.count)
    if part.keys is None and part.headers is None and part.run_counts is None:
        moment = part.created_at
        return [
            StoredMessage(value, offset, moment, queue, partition, partition_id, None, None, attempt)
            for offset, value in zip(offsets, values, strict=True)
        ]
    keys: Iterator[str | None] = repeat(None, part.count)
    if part.keys is not None and part.key_ends is not None:
        keys = (key.decode() or None for key in _split(part.keys, part.key_ends, part.key_start))
    headers: Iterator[dict[str, str] | None] = repeat(None, part.count)
    if part.headers is not None and part.header_ends is not None:
        headers = (
            _headers_decoder.decode(text) if text else None
            for text in _split(part.headers, part.header_ends, part.header_start)
        )
    return [
        StoredMessage(value, offset, moment, queue, partition, partition_id, key, header, attempt)
        for value, offset, moment, key, header in zip(values, offsets, part.times(), keys, headers, strict=True)
    ]


def ends_of(packed: bytes) -> "array[int]":
    """Read packed ends into an array of ints."""
    ends = array("i")
    ends.frombytes(packed)
    if sys.byteorder == "big":
        ends.byteswap()
    return ends


def _split(column: bytes, packed_ends: bytes, start: int) -> list[bytes]:
    ends = ends_of(packed_ends)
    if start:
        return [column[low - start : high - start] for low, high in pairwise(chain((start,), ends))]
    return [column[low:high] for low, high in pairwise(chain((0,), ends))]


def _segment(messages: Sequence[Message], values: list[bytes]) -> Segment:
    keys = key_ends = headers = header_ends = None
    if any(message.key is not None for message in messages):
        keys, key_ends = _join([_key(message.key) for message in messages])
    if any(message.headers for message in messages):
        headers, header_ends = _join([_headers(message.headers) for message in messages])
    body, ends = _join(values)
    return Segment(len(values), body, ends, keys, key_ends, headers, header_ends)


def _alike(values: list[bytes], key: str | None, headers: Mapping[str, str] | None) -> Segment:
    keys = key_ends = packed_headers = header_ends = None
    if key is not None:
        keys, key_ends = _join([_key(key)] * len(values))
    if headers:
        packed_headers, header_ends = _join([_headers(headers)] * len(values))
    body, ends = _join(values)
    return Segment(len(values), body, ends, keys, key_ends, packed_headers, header_ends)


def _join(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    return b"".join(values), struct.pack(f"<{len(values)}i", *accumulate(map(len, values)))


def _cuts(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    low = size = 0
    for index, value in enumerate(values):
        full = index - low == MAX_SEGMENT_MESSAGES or size + len(value) > MAX_SEGMENT_BYTES
        if full and index > low:
            yield low, index
            low, size = index, 0
        size += len(value)
    yield low, len(values)


def _key(key: str | None) -> bytes:
    if key is None:
        return b""
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"a key must be a text of at least one character, and {key!r} is not")
    return _utf8(key)


def _headers(headers: Mapping[str, str] | None) -> bytes:
    if not headers:
        return b""
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    ):
        raise InvalidInput(f"headers must be a mapping of text to text, and {headers!r} is not")
    for text in chain.from_iterable(headers.items()):
        _utf8(text)
    return msgspec.json.encode(headers)


def _utf8(text: str) -> bytes:
    """Encode what SQL must be able to show as text: PostgreSQL's has no NUL and no lone surrogates."""
    if "\0" in text:
        raise InvalidInput(f"{text!r} has a NUL character, which PostgreSQL's text cannot hold")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{text!r} cannot be written as UTF-8") from None
