"""Record batches become packed segments, with no work per message where it can be helped.

Rows are gathered by queue and partition, in their order, and cut where a segment is full. A row that cannot be taken
is refused by name before anything is published.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.packing import MAX_SEGMENT_BYTES, MAX_SEGMENT_MESSAGES
from penstock.broker.staging import Column, QueueLimits, StagedPart
from penstock.client.pushes import partition_for_key
from penstock.errors import InvalidInput, MessageTooLarge
from penstock.spark.positions import Numbers

# How much is sent at once: PostgreSQL takes large parameters slowly.
_SEND_BYTES = 4 << 20

_headers_decoder = msgspec.json.Decoder(dict[str, str])


class Packer:
    """Packs the rows of one task."""

    def __init__(self, queue: str | None, task: int) -> None:
        self._queue = queue
        self._task = task
        self._rows = 0

    def queues(self, table: Any) -> list[str]:
        """Return the queues that a table writes to."""
        if self._queue is not None:
            return [self._queue]
        names = _flat(table, "queue", pa.string())
        if not _is_utf8(names):
            _Rows(table, None, self._task, self._rows)
        return [name for name in pc.unique(names).to_pylist() if name is not None]

    def pack(self, table: Any, limits: Mapping[str, QueueLimits]) -> Iterator[StagedPart]:
        """Pack a table of rows into parts; all of them are checked before the first."""
        rows = _Rows(table, self._queue, self._task, self._rows)
        self._rows += table.num_rows
        return rows.parts(limits)


class _Rows:
    def __init__(self, table: Any, queue: str | None, task: int, before: int) -> None:
        self._count = table.num_rows
        self._task = task
        self._before = before
        self._values = _flat(table, "value", pa.binary())
        self._nulls: Numbers | None = None
        if self._values.null_count:
            self._nulls = np.asarray(self._values.is_null()).astype(np.uint8)
            self._values = self._values.fill_null(b"")
        self._keys = _flat(table, "key", pa.string())
        self._headers = _headers(table)
        self._partitions = _flat(table, "partition", pa.string())
        self._queues = pa.repeat(queue, self._count) if queue is not None else _flat(table, "queue", pa.string())
        self._require("queue", self._queues)
        self._check_texts()

    def parts(self, limits: Mapping[str, QueueLimits]) -> Iterator[StagedPart]:
        queue_codes, queue_names = _codes(self._queues)
        self._check_sizes(queue_codes, [limits[name].max_message_bytes for name in queue_names])
        partition_codes, partition_names = _codes(self._placed(queue_codes, queue_names, limits))
        codes = queue_codes * len(partition_names) + partition_codes
        order = None
        if len(codes) and (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes, kind="stable")
            codes = codes[order]
        values = _Packed(self._values, order, self._nulls)
        keys, headers = [
            None if column is None else _Packed(column.fill_null(""), order) for column in (self._keys, self._headers)
        ]
        # Where each segment begins, and where the last one ends.
        starts = values.cut(np.flatnonzero(np.diff(codes, prepend=-1, append=-1)))
        queues, partitions = np.divmod(codes[starts[:-1]], len(partition_names))
        for low, high in pairwise(values.shares(starts)):
            part = starts[low : high + 1]
            yield StagedPart(
                [queue_names[code] for code in queues[low:high].tolist()],
                [partition_names[code] for code in partitions[low:high].tolist()],
                np.diff(part).tolist(),
                *values.columns(part),
                *((None, None) if keys is None else keys.columns(part, optional=True)),
                *((None, None) if headers is None else headers.columns(part, optional=True)),
            )

    def _placed(self, queue_codes: Numbers, queue_names: list[str], limits: Mapping[str, QueueLimits]) -> Any:
        """Return the partition of each row: its own, that of its key, or any one of the queue's spread."""
        given = self._partitions
        if given is not None and given.null_count == 0:
            return given
        # Not for secrets: any of the partitions will do. One for the rows of a batch, which then is one segment.
        keyless = [str(random.randrange(limits[name].spread)) for name in queue_names]  # noqa: S311
        if self._keys is None or self._keys.null_count == self._count:
            chosen = pa.array(keyless, pa.string()).take(pa.array(queue_codes))
        else:
            key_codes, keys = _codes(pc.fill_null(self._keys, ""))
            pairs, where = np.unique(queue_codes * len(keys) + key_codes, return_inverse=True)
            names = []
            for pair in pairs.tolist():
                queue, key = divmod(pair, len(keys))
                spread = limits[queue_names[queue]].spread
                names.append(partition_for_key(keys[key], spread) if keys[key] else keyless[queue])
            chosen = pa.array(names, pa.string()).take(pa.array(where.reshape(-1)))
        return chosen if given is None else pc.coalesce(given, chosen)

    def _check_sizes(self, queue_codes: Numbers, allowed: list[int]) -> None:
        lengths = np.asarray(pc.binary_length(self._values))
        over = np.flatnonzero(lengths > np.array(allowed, dtype=np.int64)[queue_codes])
        if len(over):
            row = int(over[0])
            raise MessageTooLarge(
                f"{self._name(row)} has a value of {int(lengths[row])} bytes, and its queue allows "
                f"{allowed[int(queue_codes[row])]}; nothing was published. Raise the queue's max_message_bytes, or "
                "write a reference to the data."
            )

    def _check_texts(self) -> None:
        for name, column in (("key", self._keys), ("partition", self._partitions), ("queue", self._queues)):
            if column is None:
                continue
            self._require_utf8(name, column)
            bad = pc.or_(pc.equal(pc.binary_length(column), 0), pc.match_substring(column, "\0"))
            row = pc.index(bad, True).as_py()
            if row >= 0:
                raise InvalidInput(
                    f"{self._name(row)} has a {name} that is empty or holds a NUL; nothing was published"
                )
        if self._headers is None:
            return
        self._require_utf8("headers", self._headers)
        for text in pc.unique(self._headers).to_pylist():
            if text is None:
                continue
            problem = _headers_problem(text)
            if problem is not None:
                row = pc.index(self._headers, pa.scalar(text)).as_py()
                raise InvalidInput(
                    f"{self._name(row)} has headers that {problem}: {text[:100]!r}; nothing was published"
                )

    def _require_utf8(self, name: str, column: Any) -> None:
        """Refuse a text that is none, as Spark's `CAST(… AS STRING)` of other bytes makes it."""
        if _is_utf8(column):
            return
        for row, value in enumerate(column.view(pa.binary()).to_pylist()):
            if value is not None and not _decodes(value):
                what = "headers that are" if name == "headers" else f"a {name} that is"
                raise InvalidInput(
                    f"{self._name(row)} has {what} not UTF-8: {value[:100]!r}; nothing was published. Write "
                    f"bytes as text, base64(…) or hex(…) AS {name}."
                )

    def _require(self, name: str, column: Any) -> None:
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise InvalidInput(f"{self._name(row)} has no {name}; nothing was published")

    def _name(self, row: int) -> str:
        found = [
            f"{name} {column[row].as_buffer().to_pybytes().decode(errors='backslashreplace')!r}"
            for name, column in (("queue", self._queues), ("partition", self._partitions), ("key", self._keys))
            if column is not None and column[row].is_valid
        ]
        return f"row {self._before + row} of task {self._task} ({', '.join(found) or 'no queue'})"


class _Packed:
    """An Arrow column of bytes or text without nulls, from which packed pieces are cut, perhaps in another order."""

    def __init__(self, column: Any, order: Numbers | None, nulls: Numbers | None = None) -> None:
        self._column, self._order = column, order
        # Which of them stand for null.
        self._nulls = nulls if nulls is None or order is None else nulls[order]
        self._ends = _bounds(column)
        if order is not None:
            self._ends = np.concatenate(([0], np.cumsum(np.diff(self._ends)[order])))

    def columns(self, starts: Numbers, optional: bool = False) -> tuple[Column, Column]:
        """Return the values of some segments end to end, and where each ends in its segment.

        Nothing for an optional column without any. Values are copied only where their order is another one, and then
        piece by piece: fresh memory for all of them at once costs more than the copy.
        """
        low, high = int(starts[0]), int(starts[-1])
        if optional and self._ends[low] == self._ends[high]:
            return None, None
        ends = self._ends[low + 1 : high + 1] - np.repeat(self._ends[starts[:-1]], np.diff(starts))
        if self._order is None:
            piece = self._column.slice(low, high - low)
        else:
            piece = self._column.take(pa.array(self._order[low:high]))
        bounds, data = _bounds(piece), piece.buffers()[2]
        body = memoryview(b"" if data is None else data)[int(bounds[0]) : int(bounds[-1])]
        nulls = b"" if self._nulls is None or not self._nulls[low:high].any() else self._nulls[low:high].tobytes()
        return body, ends.astype("<i4").tobytes() + nulls

    def cut(self, starts: Numbers) -> Numbers:
        """Cut runs of rows, each of which begins where the one before ends, where a segment would be too large."""
        at = self._ends[starts]
        if not ((np.diff(starts) > MAX_SEGMENT_MESSAGES) | (np.diff(at) > MAX_SEGMENT_BYTES)).any():
            return starts
        cuts: list[int] = []
        for low, high in pairwise(starts.tolist()):
            cuts += self._cuts(low, high)
        return np.array([*cuts, starts[-1]], dtype=np.int64)

    def shares(self, starts: Numbers) -> list[int]:
        """Divide segments into what is sent at once; return which is the first of each share, and their number."""
        share = (self._ends[starts[:-1]] - self._ends[starts[0]]) // _SEND_BYTES
        return [*np.flatnonzero(np.diff(share, prepend=-1)).tolist(), len(share)]

    def _cuts(self, low: int, high: int) -> Iterator[int]:
        while low < high:
            yield low
            full = int(np.searchsorted(self._ends, self._ends[low] + MAX_SEGMENT_BYTES, side="right")) - 1
            low = min(max(full, low + 1), low + MAX_SEGMENT_MESSAGES, high)


def _bounds(column: Any) -> Numbers:
    """Return where each value of a column begins in its data, and where the last one ends."""
    bounds = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return bounds.astype(np.int64)


def _flat(table: Any, name: str, kind: Any) -> Any:
    """Return a column in one piece."""
    if name not in table.column_names:
        return None
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if kind == pa.string() and column.type == pa.binary():
        # Without a look at the bytes: whoever wants text looks at them, and names the row.
        return column.view(kind)
    return column if column.type == kind else column.cast(kind)


def _is_utf8(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers_problem(text: str) -> str | None:
    """Say why headers cannot be taken, as what PostgreSQL's jsonb does not take."""
    try:
        headers = _headers_decoder.decode(text)
    except msgspec.MsgspecError:
        return "are not a JSON object of texts"
    if "\\u0000" in text and any("\0" in name or "\0" in value for name, value in headers.items()):
        return "hold a NUL"
    return None


def _headers(table: Any) -> Any:
    if "headers" not in table.column_names:
        return None
    column = table["headers"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_map(column.type) and not _is_utf8(column):
        # As bytes, among which whoever checks headers finds those that are no text.
        rows = column.cast(pa.map_(pa.binary(), pa.binary())).to_pylist()
        pairs = [None if row is None else [name + b"=" + (value or b"") for name, value in row] for row in rows]
        column = pa.array([None if row is None else b", ".join(row) for row in pairs], pa.binary()).view(pa.string())
    if pa.types.is_map(column.type):
        texts = [None if row is None else msgspec.json.encode(dict(row)).decode() for row in column.to_pylist()]
        column = pa.array(texts, pa.string())
    column = column.cast(pa.string())
    # No headers and none at all are the same.
    return pc.if_else(pc.equal(column, "{}"), pa.scalar(None, pa.string()), column)


def _codes(column: Any) -> tuple[Numbers, list[str]]:
    encoded = pc.dictionary_encode(column)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()
