"""Reading a stream. Spark's checkpoint holds the id of a snapshot; the positions themselves lie in the database.

So a checkpoint of a hundred thousand partitions is as small as one of ten. A snapshot says what the batch that ends at
it reads. Where a query comes back to a snapshot that has a next one already, because its checkpoint went back, it is
given that very one again: the same messages under the same epoch, whichever sink that epoch may have reached.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.broker.operations.ranges import (
    GetDeletedEnds,
    GetNextSnapshot,
    GetSnapshots,
    KeepSnapshot,
    NoteEpoch,
    SaveSnapshot,
)
from penstock.broker.ranges import SnapshotName
from penstock.errors import InvalidInput
from penstock.spark.admission import admit
from penstock.spark.aside import Aside
from penstock.spark.connections import START_PATIENCE, run
from penstock.spark.jobs import current_job
from penstock.spark.options import COMMITTED, EARLIEST, ReadOptions
from penstock.spark.planning import Task, plan
from penstock.spark.positions import Numbers, Positions, Spans, Watch, data_lost, numbers
from penstock.spark.progress import Progress
from penstock.spark.reading import read_task
from penstock.spark.signing import signs_errors

# With nothing to do Spark asks some 85 times a second; it waits here instead.
_POLL_SECONDS = 0.25
_POLL_PAUSE = 0.02
# Who comes back after longer than this had something else to do: another source of the query, or a trigger's interval.
_AT_ONCE = 0.05
# How often a snapshot has the positions of all partitions, and not only of those that moved.
_FULL_EVERY = 100
# How often a query that has nothing to read says that it still needs its snapshot.
_KEEP_SECONDS = 24 * 3600.0

Offset = dict[str, Any]
_ORIGIN: Offset = {"snapshot": 0}
_NOTHING = Positions(numbers([]), numbers([]))


@signs_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._watch = Watch(options)
        self._others = Watch(replace(options, queues=options.read_with, pattern=None, starting=COMMITTED))
        self._progress = Progress(options.target, options.group, self._watch)
        self._until: Positions | None = None
        self._nothing_at: float | None = None
        self._at: SnapshotName | None = None
        self._kept = 0.0
        self._lineage: int | None = None
        self._depth = 0
        self._seen: Spans | None = None
        self._batch_at = time.monotonic()
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
        # Whether queues may be missing, the first look of a new query decides.
        spans = self._watch.look(skip_missing=True, patience=START_PATIENCE)
        self._until = Positions(spans.ids, spans.heads)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set; a trigger that wants all at once says so instead."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable() if self.options.min_offsets is None else ReadMinRows(self.options.min_offsets)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return where the next batch ends, or `start` when there is nothing to read."""
        if start == _ORIGIN:
            return self._begin(limit)
        before = _name(start)
        if before != self._at:
            self._load(before)
            following = run(self.options.target, GetNextSnapshot(before.snapshot_id))
            if following is not None:
                self._progress.tell(self._positions, self._lineage)
                return _offset(following)
        self._keep(before)
        self._progress.tell(self._positions, self._lineage)
        began = time.monotonic()
        paced = self._nothing_at is not None and began > self._nothing_at + _AT_ONCE
        deadline = began + (0 if paced or self._until is not None else _POLL_SECONDS)
        self._nothing_at = None
        while True:
            began = time.monotonic()
            self._seen = spans = self._watch.look(skip_missing=not self.options.fail_on_data_loss)
            self._check_lost(spans)
            ids, starts, ends = self._unread(spans, self._positions, limit)
            if len(ids) and not self._too_few(spans, limit):
                return self._save(before, ids, starts, ends)
            now = time.monotonic()
            if now >= deadline:
                self._nothing_at = now
                self._progress.tell(self._positions, self._lineage, wait=self._until is not None)
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
        # What was lost is told to the sink as well: an epoch reads its snapshot, whatever is left of that.
        tasks = tasks or [Task([])]
        for index, task in enumerate(tasks):
            task.snapshot, task.first = end["snapshot"], index == 0
        return list(tasks)

    def _between(self, start: int, end: SnapshotName) -> tuple[Numbers, Numbers, Numbers]:
        """Return what the snapshots between two offsets read."""
        if self._saved is not None and self._saved[:2] == (start, end):
            return self._saved[2]
        chain = run(self.options.target, GetSnapshots(end, start))
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
            note = NoteEpoch(job.writer, job.run, job.epoch, partition.snapshot)
            run(self.options.target, note)
        aside = Aside(self.options, job, partition)
        yield from read_task(self.options, partition, aside)
        aside.close()

    def commit(self, end: Offset) -> None:
        """Do nothing: it lags a batch behind and misses the last one; `latestOffset` knows more."""

    def stop(self) -> None:
        """Do nothing: Spark does not always call this."""

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return what Spark shows as the latest offset: sums over all partitions, and how far the query is behind."""
        spans = self._seen or self._watch.look(skip_missing=True)
        behind = np.maximum(spans.heads - self._positions.get(spans.ids, np.zeros(len(spans.ids), dtype=np.int64)), 0)
        return {
            "partitions": len(spans.ids),
            "latestOffsets": int(spans.heads.sum()),
            "offsetsBehindLatest": int(behind.sum()),
            "minOffsetsBehindLatest": int(behind.min()) if len(behind) else 0,
            "maxOffsetsBehindLatest": int(behind.max(initial=0)),
            "avgOffsetsBehindLatest": float(behind.mean()) if len(behind) else 0.0,
        }

    def _begin(self, limit: ReadLimit) -> Offset:
        """Make the first snapshot, which settles where the query begins."""
        self._seen = spans = self._watch.look(floors=True, patience=START_PATIENCE)
        begins = Positions(spans.ids, self._watch.starting(spans))
        self._positions, self._depth = begins, -1
        ids, starts, ends = self._unread(spans, begins, limit)
        if self._too_few(spans, limit):
            ids, starts, ends = ids[:0], starts[:0], ends[:0]
        timed = self.options.starting_time or self.options.starting_times
        if not len(ids) and self.options.starting in (EARLIEST, COMMITTED) and not timed:
            # Nothing to settle: the beginning is the same whenever we look.
            self._progress.tell(begins, None)
            if self._until is None:
                time.sleep(_POLL_SECONDS)
            return _ORIGIN
        saved = self._save(None, ids, starts, ends)
        self._progress.tell(begins, self._lineage)
        return saved

    def _too_few(self, spans: Spans, limit: ReadLimit) -> bool:
        """Say whether the batch shall wait for more messages, which it does for a while."""
        least = self.options.min_offsets
        if least is None or self._until is not None or isinstance(limit, ReadAllAvailable):
            return False
        unread = int(np.maximum(spans.heads - self._positions.get(spans.ids, spans.floors), 0).sum())
        return unread < least and time.monotonic() < self._batch_at + self.options.max_delay

    def _keep(self, name: SnapshotName) -> None:
        if time.monotonic() > self._kept:
            run(self.options.target, KeepSnapshot(name.snapshot_id))
            self._kept = time.monotonic() + _KEEP_SECONDS

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
            ends = self._admitted(ids, starts, ends)
            some = ends > starts
            ids, starts, ends = ids[some], starts[some], ends[some]
        return ids, starts, ends

    def _admitted(self, ids: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
        """Return where ranges stop. With other sources, all are cut at one moment, and each one takes its own part."""
        limits = self.options.max_offsets, self.options.max_bytes
        if not self.options.read_with:
            return admit(self.options.target, (ids, starts, ends), *limits, self._depth + 1)
        spans = self._others.look(floors=True, skip_missing=True)
        others = spans.ids, self._others.starting(spans), spans.heads
        waiting = (others[2] > others[1]) & ~np.isin(others[0], ids)
        everything = [
            np.concatenate([mine, their[waiting]]) for mine, their in zip((ids, starts, ends), others, strict=True)
        ]
        # The same order and the same turn for all of them, so that they come to the same answer.
        order = np.argsort(everything[0])
        turn = int(everything[1].sum()) // (self.options.max_offsets or 1)
        low, begin, high = (column[order] for column in everything)
        stops = admit(self.options.target, (low, begin, high), *limits, turn)
        return Positions(low, stops).get(ids, starts)

    def _save(self, parent: SnapshotName | None, ids: Numbers, starts: Numbers, ends: Numbers) -> Offset:
        positions = self._positions.moved(ids, ends)
        depth = self._depth + 1
        everything = (positions.ids.tolist(), positions.offsets.tolist()) if depth % _FULL_EVERY == 0 else None
        ranges = ids.tolist(), starts.tolist(), ends.tolist()
        self._at, self._lineage = run(self.options.target, SaveSnapshot(parent, *ranges, *(everything or (None, None))))
        self._positions, self._depth = positions, depth
        self._saved = parent.snapshot_id if parent else 0, self._at, (ids, starts, ends)
        self._kept, self._batch_at = time.monotonic() + _KEEP_SECONDS, time.monotonic()
        return _offset(self._at)

    def _load(self, name: SnapshotName) -> None:
        """Find the positions of a snapshot that another process has saved."""
        chain = run(self.options.target, GetSnapshots(name, None), START_PATIENCE)
        full = chain[-1]
        positions = Positions.of(full.all_ids or [], full.all_positions or [])
        for row in reversed(chain[:-1]):
            positions = positions.moved(numbers(row.ids), numbers(row.ends))
        self._at, self._depth, self._lineage, self._positions = name, chain[0].depth, chain[0].lineage, positions

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
        ends = run(self.options.target, GetDeletedEnds(ids[gone].tolist()))
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
            if self.options.fail_on_data_loss:
                raise data_lost(self._watch.places(ids).get(number), int(starts[index]), low, high)
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
