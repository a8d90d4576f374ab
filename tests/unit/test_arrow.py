"""Packed slices become Arrow columns as they are; a buffer of valid values is there only where some are null."""

from datetime import UTC, datetime
from itertools import accumulate

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Message
from penstock.broker.arrow import payloads, record_batch
from penstock.broker.packing import Slice, pack

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
some_values = st.lists(st.none() | st.binary(max_size=4), min_size=1, max_size=20)


def cut(values: list[bytes | None], low: int, high: int) -> Slice:
    """Return what the function `segment_slices` returns for a part of a segment."""
    (segment,) = pack([Message(value) for value in values])
    at = [0, *accumulate(len(value or b"") for value in values)]
    count = len(values)
    ends = segment.ends[4 * low : 4 * high] + segment.ends[4 * count + low : 4 * count + high]
    body = segment.body[at[low] : at[high]]
    return Slice(low, high - low, NOON, 0, None, None, at[low], body, ends, 0, None, None, 0, None, None)


# The first example imports what pyarrow needs.
@settings(deadline=None)
@given(st.lists(st.tuples(some_values, st.integers(0, 19), st.integers(0, 19)), min_size=1, max_size=4))
def test_the_values_of_any_slices_are_those_that_were_packed(parts: list[tuple[list[bytes | None], int, int]]) -> None:
    slices, expected = [], []
    for values, one, other in parts:
        low = min(one, other, len(values) - 1)
        high = min(max(one, other, low) + 1, len(values))
        slices.append(cut(values, low, high))
        expected += values[low:high]
    batch = record_batch("q", "p", slices)
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == expected
    assert batch.column("value").null_count == expected.count(None)


def test_without_null_values_the_stored_buffers_are_the_column_s() -> None:
    whole = cut([b"ab", b"", b"c"], 0, 3)
    column = payloads([whole], pa.array([3], pa.int32()), 3)
    valid, _, data = column.buffers()
    assert valid is None
    assert data.to_pybytes() == whole.body


def test_the_first_of_a_slice_keep_their_null_values() -> None:
    part = msgspec.structs.replace(cut([None, b"a", None, b"b"], 1, 4), base_offset=1)
    batch = record_batch("q", "p", [part.first(2)])
    assert batch.column("value").to_pylist() == [b"a", None]
