"""Reading a stream. Spark's checkpoint holds the id of a snapshot; the positions themselves lie in the database.

So a checkpoint of a hundred thousand partitions is as small as one of ten. A snapshot says what the batch that ends at
it reads. Where a query comes back to a snapshot whose next one has reached a penstock sink already, because its
checkpoint went back, it is given that very one again: the same messages under the same epoch.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.engine import range_calls
from penstock.engine.range_calls import SnapshotName
from penstock.errors import InvalidInput
from penstock.spark.admission import admit
from penstock.spark.aside import Aside
from penstock.spark.connections import run
from penstock.spark.jobs import current_job
from penstock.spark.options import COMMITTED, EARLIEST, ReadOptions
from penstock.spark.planning import Task, plan
from penstock.spark.positions import Numbers, Positions, Spans, Watch, data_lost, numbers
from penstock.spark.progress import Progress
from penstock.spark.reading import read_task

# With nothing to do Spark asks some 85 times a second; it waits here instead.
_POLL_SECONDS = 0.25
_POLL_PAUSE = 0.02
# Who comes back after longer than this had something else to do: another source of the query, or a trigger's interval.
_AT_ONCE = 0.05
# How often a snapshot has the positions of all partitions, and not only of those that moved.
_FULL_EVERY = 100

Offset = dict[str, Any]
_ORIGIN: Offset = {"snapshot": 0}
_NOTHING = Positions(numbers([]), numbers([]))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._watch = Watch(options)
        self._progress = Progress(options.target, options.group, self._watch)
        self._until: Positions | None = None
        self._nothing_at: float | None = None
        self._at: SnapshotName | None = None
        self._depth = 0
        self._positions = _NOTHING
        self._saved: tuple[int, SnapshotName, tuple[Numbers, Numbers, Numbers]] | None = None

    # A task gets this object too; what the driver remembers is none of its business.
    def __getstate__(self) -> ReadOptions:
        return self.options

    def __setstate__(self, options: ReadOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the beginning of every query; where that is, the first snapshot says."""
        return _ORIGIN

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the partitions end now: this run goes no further."""
        spans = self._watch.look()
        self._until = Positions(spans.ids, spans.heads)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set; a trigger that wants all at once says so instead."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        return ReadAllAvailable() if self.options.max_bytes is None else ReadMaxBytes(self.options.max_bytes)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return where the next batch ends, or `start` when there is nothing to read."""
        if start == _ORIGIN:
            return self._begin(limit)
        before = _name(start)
        if before != self._at:
            self._load(before)
            published = run(self.options.target, range_calls.published_child(before.snapshot_id))
            if published is not None:
                self._progress.tell(self._positions)
                return _offset(published)
        self._progress.tell(self._positions)
        began = time.monotonic()
        paced = self._nothing_at is not None and began > self._nothing_at + _AT_ONCE
        deadline = began + (0 if paced or self._until is not None else _POLL_SECONDS)
        self._nothing_at = None
        while True:
            began = time.monotonic()
            spans = self._watch.look()
            self._check_lost(spans)
            ids, starts, ends = self._unread(spans, self._positions, limit)
            if len(ids):
                return self._save(before.snapshot_id, ids, starts, ends)
            now = time.monotonic()
            if now >= deadline:
                self._nothing_at = now
                self._progress.tell(self._positions, wait=self._until is not None)
                return start
            time.sleep(min(max(_POLL_PAUSE, 2 * (now - began)), max(deadline - now, 0.001)))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch: what the snapshots between the two offsets read."""
        if start == end:
            return []
        ids, starts, stops = self._between(start["snapshot"], _name(end))
        tasks = plan(self.options, self._watch, ids, starts, stops)
        if sum(task.messages for task in tasks) < int((stops - starts).sum()):
            tasks = plan(self.options, self._watch, ids, *self._present(ids, starts, stops))
        for index, task in enumerate(tasks):
            task.snapshot, task.first = end["snapshot"], index == 0
        return list(tasks)

    def _between(self, start: int, end: SnapshotName) -> tuple[Numbers, Numbers, Numbers]:
        """Return what the snapshots between two offsets read."""
        if self._saved is not None and self._saved[:2] == (start, end):
            return self._saved[2]
        chain = run(self.options.target, range_calls.chain(end, start))
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for row in reversed(chain):
            for number, low, high in zip(row.ids, row.starts, row.ends, strict=True):
                first.setdefault(number, low)
                last[number] = high
        return numbers(list(first)), numbers(list(first.values())), numbers([last[number] for number in first])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read what one task was dealt."""
        assert isinstance(partition, Task)  # noqa: S101
        job = current_job()
        if partition.first and partition.snapshot is not None and job is not None:
            note = range_calls.note_epoch(job.writer, job.run, job.epoch, partition.snapshot)
            run(self.options.target, note)
        aside = Aside(self.options, job, partition)
        yield from read_task(self.options, partition, aside)
        aside.close()

    def commit(self, end: Offset) -> None:
        """Do nothing: it lags a batch behind and misses the last one; `latestOffset` knows more."""

    def stop(self) -> None:
        """Do nothing: Spark does not always call this."""

    def _begin(self, limit: ReadLimit) -> Offset:
        """Make the first snapshot, which settles where the query begins."""
        spans = self._watch.look(floors=True)
        begins = Positions(spans.ids, self._watch.starting(spans))
        if self.options.group is not None:
            self._progress.tell(begins)
        self._positions, self._depth = begins, -1
        ids, starts, ends = self._unread(spans, begins, limit)
        if not len(ids) and self.options.starting in (EARLIEST, COMMITTED) and self.options.starting_time is None:
            # Nothing to settle: the beginning is the same whenever we look.
            if self._until is None:
                time.sleep(_POLL_SECONDS)
            return _ORIGIN
        return self._save(0, ids, starts, ends)

    def _unread(self, spans: Spans, positions: Positions, limit: ReadLimit) -> tuple[Numbers, Numbers, Numbers]:
        """Return what there is to read, within the limits."""
        heads = spans.heads
        if self._until is not None:
            heads = np.minimum(heads, self._until.get(spans.ids, np.zeros(len(heads), dtype=np.int64)))
        # A partition that is new to us is read from its beginning, wherever that is by now.
        starts = positions.get(spans.ids, spans.floors)
        behind = heads > starts
        ids, starts, ends = spans.ids[behind], starts[behind], heads[behind]
        if len(ids) and not isinstance(limit, ReadAllAvailable):
            limits = self.options.max_offsets, self.options.max_bytes
            ends = admit(self.options.target, (ids, starts, ends), *limits, self._depth + 1)
            some = ends > starts
            ids, starts, ends = ids[some], starts[some], ends[some]
        return ids, starts, ends

    def _save(self, parent: int, ids: Numbers, starts: Numbers, ends: Numbers) -> Offset:
        positions = self._positions.moved(ids, ends)
        depth = self._depth + 1
        everything = (positions.ids.tolist(), positions.offsets.tolist()) if depth % _FULL_EVERY == 0 else None
        ranges = ids.tolist(), starts.tolist(), ends.tolist()
        self._at = run(self.options.target, range_calls.save_snapshot(parent, ranges, everything))
        self._positions, self._depth = positions, depth
        self._saved = parent, self._at, (ids, starts, ends)
        return _offset(self._at)

    def _load(self, name: SnapshotName) -> None:
        """Find the positions of a snapshot that another process has saved."""
        chain = run(self.options.target, range_calls.chain(name, None))
        full = chain[-1]
        positions = Positions.of(full.all_ids or [], full.all_positions or [])
        for row in reversed(chain[:-1]):
            positions = positions.moved(numbers(row.ids), numbers(row.ends))
        self._at, self._depth, self._positions = name, chain[0].depth, positions

    def _check_lost(self, spans: Spans) -> None:
        """Refuse to go on where a partition is gone, or ends before what was read of it, as after a restore."""
        gone = ~np.isin(self._positions.ids, spans.ids)
        if gone.any():
            gone = self._forget_deleted(gone)
        short = spans.heads < self._positions.get(spans.ids, spans.heads)
        if not gone.any() and not short.any():
            return
        if self.options.fail_on_data_loss:
            if gone.any():
                raise data_lost(None, int(self._positions.offsets[gone][0]), 0, 0)
            number, head = int(spans.ids[short][0]), int(spans.heads[short][0])
            offset = int(self._positions.get(spans.ids[short], spans.heads[short])[0])
            raise data_lost(self._watch.places(spans.ids[short]).get(number), offset, 0, head)
        kept = Positions(self._positions.ids[~gone], self._positions.offsets[~gone])
        self._positions = kept.moved(spans.ids[short], spans.heads[short])

    def _forget_deleted(self, gone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Forget deleted partitions that were read to their end; return which of the positions are left without one."""
        ids, offsets = self._positions.ids, self._positions.offsets
        ends = run(self.options.target, range_calls.deleted_ends(ids[gone].tolist()))
        done = gone & (
            offsets
            >= np.array(
                [ends.get(number, offset + 1) for number, offset in zip(ids.tolist(), offsets.tolist(), strict=True)]
            )
        )
        self._positions = Positions(ids[~done], offsets[~done])
        return ~np.isin(self._positions.ids, ids[~gone])

    def _present(self, ids: Numbers, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        """Leave out what retention has dropped, or refuse to."""
        found = self._watch.standing(ids, archived=True)
        for index, number in enumerate(ids.tolist()):
            where = found.get(number)
            low, high = (where.floor, where.head) if where else (0, 0)
            if low <= starts[index] and stops[index] <= high:
                continue
            # A new partition of which the first messages were dropped before anybody saw them.
            lost = int(starts[index]) if starts[index] else low
            if self.options.fail_on_data_loss and not (starts[index] == 0 and stops[index] <= high):
                raise data_lost(self._watch.places(ids).get(number), lost, low, high)
            starts[index], stops[index] = max(int(starts[index]), low), min(int(stops[index]), high)
        return starts, stops


def _offset(name: SnapshotName) -> Offset:
    return {"snapshot": name.snapshot_id, "token": name.token}


def _name(offset: Offset) -> SnapshotName:
    try:
        return SnapshotName(int(offset["snapshot"]), str(offset["token"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(
            f"the checkpoint has offset {offset!r}, which is none of penstock's: it belongs to another source"
        ) from None
