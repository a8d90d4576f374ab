"""Messages to packed columns and back.

A segment is an Arrow column at rest: values end to end in one buffer, and where each ends as little-endian int32. Where
some values are null, a byte per message follows the ends: 1 for null. Their length tells, so that segments without null
values pay nothing for it.
Packing and unpacking work on whole buffers; what is done per message is one slice and one object.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple

import msgspec

from penstock.broker.decoding import decode_headers, decode_key, headers_problem
from penstock.broker.messages import Message, StoredMessage
from penstock.broker.runs import moments, read_runs, stamp_of
from penstock.errors import InvalidInput

# A segment holds at most this much, so that a reader of one message never fetches more, and so that a message over
# a queue's limit (1 MiB unless changed) is found without looking at each one.
MAX_SEGMENT_BYTES = 1 << 20
MAX_SEGMENT_MESSAGES = 10_000
# Bytes of one end.
_END = 4
# A segment of so many messages is left as it is: joining others to it would gain nothing.
_LARGE = 100


class _Column(NamedTuple):
    """Values end to end, and where each ends."""

    data: bytes
    ends: bytes


class _Nothing(NamedTuple):
    """A column that is not used."""

    data: None = None
    ends: None = None


_NONE = _Nothing()
_headers_decoder = msgspec.json.Decoder(dict[str, str])


# Structs, because a frozen dataclass of so many fields takes 5 µs to make.
class Segment(msgspec.Struct, frozen=True, gc=False):
    """A run of messages of one partition, packed."""

    count: int
    body: bytes
    ends: bytes
    keys: bytes | None
    key_ends: bytes | None
    headers: bytes | None
    header_ends: bytes | None


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A range of a stored segment, as the function `segment_slices` returns it."""

    base_offset: int
    count: int
    created_at: datetime
    run_skip: int
    run_counts: bytes | None
    run_times: bytes | None
    body_start: int
    body: bytes
    ends: bytes
    # None where there are no keys, or no headers.
    key_start: int | None
    keys: bytes | None
    key_ends: bytes | None
    header_start: int | None
    headers: bytes | None
    header_ends: bytes | None

    def first(self, count: int) -> "Slice":
        """Return its first messages, or all if it has no more."""
        if count >= self.count:
            return self
        packed, nulls = _END * count, _END * self.count
        return msgspec.structs.replace(
            self,
            count=count,
            # Columns end where their last value does: readers count on that.
            body=_first_of(self.body, self.ends, self.body_start, packed),
            ends=self.ends[:packed] + self.ends[nulls : nulls + count],
            keys=self.keys and _first_of(self.keys, self.key_ends or b"", self.key_start or 0, packed),
            key_ends=self.key_ends and self.key_ends[:packed],
            headers=self.headers and _first_of(self.headers, self.header_ends or b"", self.header_start or 0, packed),
            header_ends=self.header_ends and self.header_ends[:packed],
        )

    def runs(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return how many of its messages in a row share a time, and these times, as the server counts them."""
        if self.run_counts is None or self.run_times is None:
            return [self.count], [stamp_of(self.created_at)]
        return read_runs(self.run_counts, self.run_times, self.run_skip, self.count)

    def times(self) -> Iterable[datetime]:
        """Return the time of each message."""
        if self.run_counts is None:
            return repeat(self.created_at, self.count)
        counts, stamps = self.runs()
        if len(counts) == self.count:
            return moments(stamps)
        return chain.from_iterable(map(repeat, moments(stamps), counts))


def _first_of(column: bytes, ends: bytes, start: int, packed: int) -> bytes:
    """Return a packed column up to where the last of its first values ends."""
    last = int.from_bytes(ends[packed - _END : packed], "little", signed=True)
    return column[: max(0, last - start)]


def pack(messages: Sequence[Message]) -> list[Segment]:
    """Pack messages of one partition, whose values are bytes or None, into as few segments as the caps allow."""
    values: list[bytes | None] = [message.value for message in messages]
    if (whole := _whole(values)) is not None:
        return _capped(messages, _segment(messages, whole))
    segments: list[Segment] = []
    for low, high in _cuts(values):
        segments += _capped(messages[low:high], _segment(messages[low:high], _join(values[low:high])))
    return segments


def pack_values(values: list[bytes | None], key: str | None, headers: Mapping[str, str] | None) -> list[Segment]:
    """Pack values that share their key and headers: what is done per message is its length."""
    if len(values) == 1 and key is None and not headers:
        # Most pushes are no more than this.
        only = values[0]
        if only is not None:
            return [Segment(1, only, len(only).to_bytes(_END, "little"), None, None, None, None)]
    if (whole := _whole(values)) is not None:
        segments = [_alike(len(values), whole, key, headers)]
    else:
        segments = [_alike(high - low, _join(values[low:high]), key, headers) for low, high in _cuts(values)]
    if any(segment.count > 1 and _envelope_bytes(segment) > MAX_SEGMENT_BYTES for segment in segments):
        return pack([Message(value, key=key, headers=headers) for value in values])
    return segments


def join(segments: Sequence[Segment]) -> list[Segment]:
    """Join segments of one partition, small ones with their neighbours, into as few as the caps allow."""
    if len(segments) == 1:
        return list(segments)
    # What was pushed singly comes as many of these.
    values: list[bytes] = []
    for segment in segments:
        if segment.count != 1 or segment.keys is not None or segment.headers is not None or len(segment.ends) != _END:
            break
        values.append(segment.body)
    else:
        if (whole := _whole(values)) is not None:
            return [Segment(len(values), *whole, *_NONE, *_NONE)]
    joined: list[list[Segment]] = []
    columns: tuple[bool, bool] | None = None
    count = size = 0
    for segment in segments:
        more = len(segment.body)
        used = segment.keys is None, segment.headers is None
        if used != (True, True):
            more += _envelope_bytes(segment)
        count += segment.count
        size += more
        if columns != used or segment.count >= _LARGE or count > MAX_SEGMENT_MESSAGES or size > MAX_SEGMENT_BYTES:
            joined.append([segment])
            columns, count, size = used, segment.count, more
        else:
            joined[-1].append(segment)
    return [same[0] if len(same) == 1 else _concatenated(same) for same in joined]


def with_header(segment: Segment, name: str, value: str | None) -> list[Segment]:
    """Return a segment in which each message has a header with this value, or none of that name where it is None.

    `name` is in small letters; what has the same name in other letters goes.
    """
    headers, ends = segment.headers, segment.header_ends
    if headers is None or ends is None:
        if value is None:
            return [segment]
        column = _join([msgspec.json.encode({name: value})] * segment.count)
    else:
        # A character of the name may be written as an escape, or be another that means the same in small letters.
        if value is None and headers.isascii() and name.encode() not in headers.lower() and b"\\u" not in headers:
            return [segment]
        texts = split(headers, ends, 0)
        if len(texts) != segment.count:
            raise InvalidInput(f"a segment of {segment.count} messages has the headers of {len(texts)}")
        column = _join(list(_with_header(texts, name, value)))
    made = msgspec.structs.replace(segment, headers=column.data, header_ends=column.ends)
    if made.count == 1 or _envelope_bytes(made) <= MAX_SEGMENT_BYTES:
        return [made]
    # The headers are too many now: packed anew, in more segments.
    whole = Slice(0, made.count, datetime.min, 0, None, None, 0, *_columns_of(made))
    return pack([Message(each.value, key=each.key, headers=each.headers) for each in unpack("", "", 0, whole)])


def _columns_of(segment: Segment) -> tuple[Any, ...]:
    start = None if segment.keys is None else 0
    return (
        *(segment.body, segment.ends),
        *(start, segment.keys, segment.key_ends),
        *(0, segment.headers, segment.header_ends),
    )


def _with_header(texts: Sequence[bytes], name: str, value: str | None) -> Iterator[bytes]:
    more = {} if value is None else {name: value}
    for text in texts:
        try:
            headers = _headers_decoder.decode(text) if text else {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            headers = None
        # A NUL can only come as an escape.
        if headers is None or (b"\\u0000" in text and headers_problem(text)):
            raise InvalidInput(f"the headers of a message cannot be read: {headers_problem(text)}")
        headers = {given: text for given, text in headers.items() if given.casefold() != name} | more
        yield msgspec.json.encode(headers) if headers else b""


def unpack(queue: str, partition: str, partition_id: int, part: Slice, attempt: int = 0) -> list[StoredMessage]:
    """Turn a slice into messages."""
    plain = part.keys is None and part.headers is None and part.run_counts is None
    if plain and len(part.ends) == _END:
        # What was pushed singly comes as many of these.
        where = (part.base_offset, part.created_at, queue, partition, partition_id)
        return [StoredMessage(part.body, *where, None, None, attempt)]
    values = _values(part)
    offsets = range(part.base_offset, part.base_offset + part.count)
    if plain:
        moment = part.created_at
        return [
            StoredMessage(value, offset, moment, queue, partition, partition_id, None, None, attempt)
            for offset, value in zip(offsets, values, strict=True)
        ]
    keys: Iterable[str | None] = repeat(None, part.count)
    if part.keys is not None and part.key_ends is not None:
        keys = _keys(part.keys, part.key_ends, part.key_start or 0)
    headers: Iterable[dict[str, str] | None] = repeat(None, part.count)
    if part.headers is not None and part.header_ends is not None:
        headers = _all_headers(part.headers, part.header_ends, part.header_start or 0)
    return [
        StoredMessage(value, offset, moment, queue, partition, partition_id, key, header, attempt)
        for value, offset, moment, key, header in zip(values, offsets, part.times(), keys, headers, strict=True)
    ]


def _keys(column: bytes, ends: bytes, start: int) -> list[str | None]:
    packed = split(column, ends, start)
    with suppress(UnicodeDecodeError):
        if b"\0" not in column:
            return [key.decode() or None for key in packed]
    return list(map(decode_key, packed))


def _all_headers(column: bytes, ends: bytes, start: int) -> list[dict[str, str] | None]:
    packed = split(column, ends, start)
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if b"\\u0000" not in column:
            return [_headers_decoder.decode(text) if text else None for text in packed]
    return list(map(decode_headers, packed))


def _values(part: Slice) -> Sequence[bytes | None]:
    nulls_at = _END * part.count
    if len(part.ends) == nulls_at:
        return split(part.body, part.ends, part.body_start)
    values = split(part.body, part.ends[:nulls_at], part.body_start)
    return [None if null else value for value, null in zip(values, part.ends[nulls_at:], strict=True)]


def ends_of(packed: bytes) -> "array[int]":
    """Read packed ends into an array of ints."""
    ends = array("i")
    ends.frombytes(packed)
    if sys.byteorder == "big":
        ends.byteswap()
    return ends


def sound_ends(packed: bytes, start: int, size: int) -> list[int]:
    """Read the packed ends of a column of so many bytes that begins at `start`, none before another or outside of it.

    No push looks at each end. One that cannot be is moved to where it may be at the nearest, as `unpack` in SQL does.
    """
    ends = ends_of(packed).tolist()
    if ends[0] < start or ends[-1] > start + size or sorted(ends) != ends:
        last = start + size
        return list(accumulate((min(max(end, start), last) for end in ends), max))
    return ends


def split(column: bytes, packed_ends: bytes, start: int) -> list[bytes]:
    """Cut a packed column into its values."""
    ends = sound_ends(packed_ends, start, len(column))
    if start:
        return [column[low - start : high - start] for low, high in pairwise(chain((start,), ends))]
    return [column[low:high] for low, high in pairwise(chain((0,), ends))]


def _concatenated(segments: Sequence[Segment]) -> Segment:
    """Return segments that have the same columns as one."""
    counts = [segment.count for segment in segments]
    keys: _Column | _Nothing = _NONE
    headers: _Column | _Nothing = _NONE
    if segments[0].keys is not None:
        keys = _end_to_end(counts, [(each.keys or b"", each.key_ends or b"") for each in segments])
    if segments[0].headers is not None:
        headers = _end_to_end(counts, [(each.headers or b"", each.header_ends or b"") for each in segments])
    values = _end_to_end(counts, [(each.body, each.ends) for each in segments])
    return Segment(sum(counts), *values, *keys, *headers)


def _end_to_end(counts: Sequence[int], columns: Sequence[tuple[bytes, bytes]]) -> _Column:
    """Concatenate packed columns."""
    data = [column for column, _ in columns]
    packed = [ends for _, ends in columns]
    if max(counts) == 1 and max(map(len, packed)) == _END:
        return _Column(b"".join(data), _ends(data))
    joined: list[int] = []
    start = 0
    for count, column, ends in zip(counts, data, packed, strict=True):
        joined += [start + end for end in ends_of(ends[: _END * count])]
        start += len(column)
    nulls = b""
    if any(len(ends) > _END * count for count, ends in zip(counts, packed, strict=True)):
        nulls = b"".join(ends[_END * count :] or bytes(count) for count, ends in zip(counts, packed, strict=True))
    return _Column(b"".join(data), struct.pack(f"<{len(joined)}i", *joined) + nulls)


def _segment(messages: Sequence[Message], values: _Column) -> Segment:
    keys: _Column | _Nothing = _NONE
    headers: _Column | _Nothing = _NONE
    if any(message.key is not None for message in messages):
        keys = _join([_key(message.key) for message in messages])
    if any(message.headers for message in messages):
        headers = _join([_headers(message.headers) for message in messages])
    return Segment(len(messages), *values, *keys, *headers)


def _capped(messages: Sequence[Message], segment: Segment) -> list[Segment]:
    """Cut a segment whose keys and headers are too large by themselves."""
    if segment.count == 1 or _envelope_bytes(segment) <= MAX_SEGMENT_BYTES:
        return [segment]
    half = len(messages) // 2
    return pack(messages[:half]) + pack(messages[half:])


def _envelope_bytes(segment: Segment) -> int:
    return len(segment.keys or b"") + len(segment.headers or b"")


def _alike(count: int, values: _Column, key: str | None, headers: Mapping[str, str] | None) -> Segment:
    return Segment(
        count,
        *values,
        *(_NONE if key is None else _join([_key(key)] * count)),
        *(_join([_headers(headers)] * count) if headers else _NONE),
    )


# Values are bytes or None. Nobody looks for a None: joining finds it.


def _whole(values: Sequence[Any]) -> _Column | None:
    """Join what fits into one segment; joining tells its size, so that nothing is measured twice."""
    if len(values) > MAX_SEGMENT_MESSAGES:
        return None
    try:
        if len(data := b"".join(values)) > MAX_SEGMENT_BYTES:
            return None
    except TypeError:
        column = _join_with_nulls(values)
        return column if len(column.data) <= MAX_SEGMENT_BYTES else None
    return _Column(data, _ends(values))


def _join(values: Sequence[Any]) -> _Column:
    try:
        return _Column(b"".join(values), _ends(values))
    except TypeError:
        return _join_with_nulls(values)


def _join_with_nulls(values: Sequence[bytes | None]) -> _Column:
    filled = [value or b"" for value in values]
    nulls = bytes([value is None for value in values])
    return _Column(b"".join(filled), _ends(filled) + nulls)


def _ends(values: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(values)}i", *accumulate(map(len, values)))


def _cuts(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    low = size = 0
    for index, value in enumerate(values):
        length = 0 if value is None else len(value)
        full = index - low == MAX_SEGMENT_MESSAGES or size + length > MAX_SEGMENT_BYTES
        if full and index > low:
            yield low, index
            low, size = index, 0
        size += length
    yield low, len(values)


def _key(key: Any) -> bytes:
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
