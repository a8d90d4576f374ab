"""Slices of segments become a record batch of Spark's columns, with no work per message."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.broker import arrow
from penstock.broker.ids import OFFSET_BITS
from penstock.broker.packing import Slice
from penstock.spark.planning import Page
from penstock.spark.positions import Numbers

# Spark's types to the bit: names, order, widths and what may be null.
ARROW = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)

_LOW_BITS = 62 - OFFSET_BITS
# The four hexadecimal digits of every number of 16 bits, as they lie in memory.
_HEX = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), dtype=np.uint32)
# Where the digits of a UUID's text come from, between its dashes.
_GROUPS = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))


def record_batch(slices: Sequence[tuple[int, Slice]], pages: Sequence[Page]) -> Any:
    """Return slices, each with the index of its page, as one record batch."""
    parts = [part for _, part in slices]
    homes = [pages[index] for index, _ in slices]
    counts = np.fromiter((part.count for part in parts), np.int64, len(parts))
    stops = pa.array(accumulate(part.count for part in parts), pa.int32())
    count = int(counts.sum())
    bases = np.fromiter((part.base_offset for part in parts), np.int64, len(parts))
    offsets = np.repeat(bases - (np.cumsum(counts) - counts), counts) + np.arange(count)
    times = arrow.times(parts, stops)
    partition_ids = np.repeat(np.fromiter((home.partition_id for home in homes), np.int64, len(homes)), counts)
    return pa.record_batch(
        [
            _names([home.queue for home in homes], stops, count),
            _names([home.partition for home in homes], stops, count),
            pa.array(offsets),
            arrow.texts([(part.keys, part.key_ends, part.key_start or 0) for part in parts], stops, count),
            arrow.payloads(parts, stops, count),
            arrow.texts(
                [(part.headers, part.header_ends, part.header_start or 0) for part in parts],
                stops,
                count,
                arrow.shown_headers,
            ),
            times,
            _ids(partition_ids, offsets, times),
        ],
        schema=ARROW,
    )


def _names(names: list[str], stops: Any, count: int) -> Any:
    if names.count(names[0]) == len(names):
        return pa.repeat(names[0], count)
    return arrow.spread(stops, pa.array(names, pa.string()))


def _ids(partition_ids: Numbers, offsets: Numbers, times: Any) -> Any:
    """Return message ids as text: those of `penstock.broker.ids`, all at once."""
    milliseconds = np.asarray(times.cast(pa.timestamp("us")).view(pa.int64())) // 1000
    halves = np.empty((len(offsets), 2), dtype=np.uint64)
    halves[:, 0] = milliseconds << 16 | 0x8000 | partition_ids >> _LOW_BITS
    low = (partition_ids & (1 << _LOW_BITS) - 1) << OFFSET_BITS | offsets
    halves[:, 1] = low.astype(np.uint64) | np.uint64(1 << 63)
    words = halves.astype(">u8").view(">u2").astype(np.uint16)
    digits = _HEX[words].view(np.uint8)
    text = np.full((len(offsets), 36), ord("-"), dtype=np.uint8)
    for begin, start, stop in _GROUPS:
        text[:, begin : begin + stop - start] = digits[:, start:stop]
    ends = np.arange(0, 36 * (len(offsets) + 1), 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(offsets), [None, pa.py_buffer(ends), pa.py_buffer(text)])
