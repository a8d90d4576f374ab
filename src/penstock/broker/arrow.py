"""Packed slices to Arrow, with no work per message: the buffers of a segment become the buffers of a column."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, starmap
from operator import sub
from typing import Any

import msgspec

from penstock.broker.decoding import decode_headers, decode_key
from penstock.broker.packing import Slice, sound_ends, split
from penstock.broker.places import Slices
from penstock.broker.runs import EPOCH
from penstock.errors import MissingExtra

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    raise MissingExtra("arrow", "Reading to Arrow") from None

SCHEMA = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


def table(queue: str, partition: str, pages: Iterable[Slices]) -> Any:
    """Return a table of all the messages of some pages."""
    return pa.Table.from_batches([record_batch(queue, partition, page.slices) for page in pages if page.slices], SCHEMA)


def record_batch(queue: str, partition: str, parts: Sequence[Slice]) -> Any:
    """Return slices as one record batch: the work is per slice where it must be, and else per batch."""
    stops = pa.array(accumulate(part.count for part in parts), pa.int32())
    count = stops[-1].as_py()
    return pa.record_batch(
        [
            pa.repeat(queue, count),
            pa.repeat(partition, count),
            _offsets(parts, count),
            texts([(part.keys, part.key_ends, part.key_start or 0) for part in parts], stops, count),
            payloads(parts, stops, count),
            texts(
                [(part.headers, part.header_ends, part.header_start or 0) for part in parts],
                stops,
                count,
                shown_headers,
            ),
            times(parts, stops),
        ],
        schema=SCHEMA,
    )


def values(kind: Any, columns: Sequence[tuple[bytes, bytes, int]], stops: Any, count: int) -> Any:
    """Join packed columns. Stored ends count from their segment's beginning; here they all count from one."""
    buffers = _buffers(columns, stops, count)
    if buffers is None:
        buffers = _buffers([_repaired(*column) for column in columns], stops, count)
    return pa.Array.from_buffers(kind, count, buffers)


def _buffers(columns: Sequence[tuple[bytes, bytes, int]], stops: Any, count: int) -> list[Any] | None:
    """Return the buffers of joined columns, or None if an end lies before another one or outside its column."""
    bodies = [column for column, _, _ in columns]
    begins = list(accumulate(map(len, bodies), initial=0))
    ends = pa.Array.from_buffers(
        pa.int32(), count, [None, pa.py_buffer(b"".join([packed for _, packed, _ in columns]))]
    )
    if len(columns) > 1 or columns[0][2]:
        shifts = [begin - start for (_, _, start), begin in zip(columns, begins, strict=False)]
        ends = pc.add(ends, spread(stops, pa.array(shifts, pa.int32())))
    offsets = pa.py_buffer(b"\0\0\0\0" + memoryview(ends.buffers()[1]))
    buffers = [None, offsets, pa.py_buffer(b"".join(bodies))]
    # Ends that never go back, and meet the columns' own, lie within them: whoever reads a buffer trusts them.
    if len(columns) == 1:
        meeting = memoryview(offsets).cast("i")[-1] == begins[1]
    else:
        meeting = ends.take(pc.subtract(stops, 1)).equals(pa.array(begins[1:], pa.int32()))
    if not meeting:
        return None
    try:
        pa.Array.from_buffers(pa.binary(), count, buffers).validate(full=True)
    except pa.ArrowInvalid:
        return None
    return buffers


def _repaired(column: bytes, packed: bytes, start: int) -> tuple[bytes, bytes, int]:
    ends = sound_ends(packed, start, len(column))
    return column[: ends[-1] - start], array("i", ends).tobytes(), start


def payloads(parts: Sequence[Slice], stops: Any, count: int) -> Any:
    """Join the values of slices. Only where some are null is there a buffer that says which are not."""
    if all(len(part.ends) == 4 * part.count for part in parts):
        return values(pa.binary(), [(part.body, part.ends, part.body_start) for part in parts], stops, count)
    columns = [(part.body, part.ends[: 4 * part.count], part.body_start) for part in parts]
    _, offsets, data = values(pa.binary(), columns, stops, count).buffers()
    nulls = b"".join([part.ends[4 * part.count :] or bytes(part.count) for part in parts])
    valid = pc.equal(pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(nulls)]), 0)
    return pa.Array.from_buffers(pa.binary(), count, [valid.buffers()[1], offsets, data])


def texts(
    columns: Sequence[tuple[bytes | None, bytes | None, int]],
    stops: Any,
    count: int,
    shown: Callable[[bytes], str | None] = decode_key,
) -> Any:
    """Join packed columns of text, where a length of zero means none; `shown` is for bytes that are no text."""
    if not any(column for column, _, _ in columns):
        return pa.nulls(count, pa.string())
    counts = map(sub, (numbers := stops.to_pylist()), [0, *numbers[:-1]])
    filled = [
        (b"", bytes(4 * size), 0) if column is None or ends is None else (column, ends, start)
        for (column, ends, start), size in zip(columns, counts, strict=True)
    ]
    texts = values(pa.string(), filled, stops, count)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        packed = chain.from_iterable(starmap(split, filled))
        return pa.array([shown(text) for text in packed], pa.string())
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.string()), texts)


def shown_headers(packed: bytes) -> str | None:
    """Return headers as they are where they are text, and else as JSON that shows them."""
    if not packed:
        return None
    try:
        return packed.decode()
    except UnicodeDecodeError:
        return msgspec.json.encode(decode_headers(packed)).decode()


def _offsets(parts: Sequence[Slice], count: int) -> Any:
    first, last = parts[0], parts[-1]
    if last.base_offset + last.count - first.base_offset == count:
        return pc.add(_count_up(count), first.base_offset)
    return pa.concat_arrays([pc.add(_count_up(part.count), part.base_offset) for part in parts])


def times(parts: Sequence[Slice], stops: Any) -> Any:
    """Return the time of each message."""
    if all(part.run_counts is None for part in parts):
        return spread(stops, pa.array([part.created_at for part in parts], _TIME))
    sizes, stamps = array("i"), array("q")
    for part in parts:
        counts, moments = part.runs()
        sizes.extend(counts)
        stamps.extend(moments)
    stored = pa.Array.from_buffers(pa.int64(), len(stamps), [None, pa.py_buffer(stamps)])
    moved = pc.add(stored, _EPOCH_SHIFT).view(_TIME)
    run_stops = pc.cumulative_sum(pa.Array.from_buffers(pa.int32(), len(sizes), [None, pa.py_buffer(sizes)]))
    return moved if len(stamps) == stops[-1].as_py() else spread(run_stops, moved)


def spread(stops: Any, values: Any) -> Any:
    """Repeat each value up to its stop."""
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(stops, values))


def _count_up(count: int) -> Any:
    """Return 0, 1, 2 … as a view of one array that grows when it has to."""
    global _numbers
    if len(_numbers) < count:
        _numbers = pa.array(range(2 * count), pa.int64())
    return _numbers.slice(0, count)


_TIME = pa.timestamp("us", tz="UTC")
# From the year in which the server's clock begins to that of Arrow's.
_EPOCH_SHIFT = int(EPOCH.timestamp()) * 1_000_000
# Made when needed: pyarrow imports pandas to make an array, which takes longer than all of penstock.
_numbers: Any = ()
