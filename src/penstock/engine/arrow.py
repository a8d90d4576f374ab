"""Packed slices to Arrow, with no work per message: the buffers of a segment become the buffers of a column."""

from collections.abc import Iterable
from typing import Any

from penstock.engine.calls import Slices
from penstock.engine.packing import Slice
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
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


def table(queue: str, partition: str, pages: Iterable[Slices]) -> Any:
    """Return a table of all the messages of some pages."""
    batches = [record_batch(queue, partition, part) for page in pages for part in page.slices]
    return pa.Table.from_batches(batches, SCHEMA)


def record_batch(queue: str, partition: str, part: Slice) -> Any:
    """Return a slice as a record batch."""
    return pa.record_batch(
        [
            pa.repeat(queue, part.count),
            pa.repeat(partition, part.count),
            pa.array(range(part.base_offset, part.base_offset + part.count), pa.int64())
            if part.count < 8
            else pc.add(_count_up(part.count), part.base_offset),
            _texts(part.keys, part.key_ends, part.key_start, part.count),
            _binary(pa.binary(), part.body, part.ends, part.body_start, part.count),
            _texts(part.headers, part.header_ends, part.header_start, part.count),
            _times(part),
        ],
        schema=SCHEMA,
    )


def _binary(kind: Any, column: bytes, ends: bytes, start: int, count: int) -> Any:
    first = start.to_bytes(4, "little")
    offsets = pa.py_buffer(first + ends)
    if start:
        # The stored ends count from the segment's beginning, the column begins where the slice does.
        stored = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets])
        # A bare int would make the result int64, and so no offsets at all.
        shifted = pc.subtract(stored, pa.scalar(start, pa.int32()))
        offsets = shifted.buffers()[1]
    return pa.Array.from_buffers(kind, count, [None, offsets, pa.py_buffer(column)])


def _texts(column: bytes | None, ends: bytes | None, start: int, count: int) -> Any:
    if column is None or ends is None:
        return pa.nulls(count, pa.string())
    texts = _binary(pa.string(), column, ends, start, count)
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.string()), texts)


def _times(part: Slice) -> Any:
    if part.run_counts is None:
        return pa.repeat(pa.scalar(part.created_at, pa.timestamp("us", tz="UTC")), part.count)
    return pa.array(part.times(), pa.timestamp("us", tz="UTC"), size=part.count)


def _count_up(count: int) -> Any:
    """Return 0, 1, 2 … as a view of one array that grows when it has to."""
    global _numbers
    if len(_numbers) < count:
        _numbers = pa.array(range(2 * count), pa.int64())
    return _numbers.slice(0, count)


_numbers = pa.array(range(1024), pa.int64())
