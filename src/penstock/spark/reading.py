"""Reading a bounded range: planned once, read by tasks a few megabytes at a time."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.broker.operations.ranges import ReadRanges
from penstock.broker.places import Place
from penstock.errors import InvalidInput
from penstock.spark import archives
from penstock.spark.aside import Aside
from penstock.spark.connections import START_PATIENCE, run
from penstock.spark.filters import Narrowing
from penstock.spark.options import ReadOptions
from penstock.spark.planning import PAGE_BYTES, Page, Task, plan
from penstock.spark.positions import Numbers, Spans, Watch, data_lost
from penstock.spark.signing import signs_errors

# Ranges in one call: each costs little, and all of them an answer that has to be held.
_MOST_RANGES = 4096


@signs_errors
class BatchReader(DataSourceReader):
    """Reads from startingOffsets to endingOffsets; Spark filters what comes of it."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        watch = Watch(self.options)
        spans = watch.look(floors=True, patience=START_PATIENCE)
        starts, stops = watch.starting(spans), watch.ending(spans)
        _require_order(watch, spans.ids, starts, stops)
        starts, stops = self._narrowed(watch, spans, starts, stops)
        planned = plan(self.options, watch, spans.ids, starts, stops)
        if self.options.fail_on_data_loss:
            _require_all(watch, planned, spans.ids, starts, stops)
        tasks: list[InputPartition] = list(planned)
        # An empty list would make Spark start a task that reads "everything".
        return tasks or [Task([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read what one task was dealt."""
        assert isinstance(partition, Task)  # noqa: S101
        return read_task(self.options, partition, Aside(self.options, None, partition))

    def _narrowed(self, watch: Watch, spans: Spans, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        narrowing = self.narrowing
        starts = np.maximum(starts, narrowing.offset_from)
        if narrowing.offset_to is not None:
            stops = np.minimum(stops, narrowing.offset_to)
        if narrowing.queues is not None or narrowing.partitions is not None:
            places = watch.places(spans.ids)
            wanted = [
                (narrowing.queues is None or places[number].queue in narrowing.queues)
                and (narrowing.partitions is None or places[number].partition in narrowing.partitions)
                for number in spans.ids.tolist()
            ]
            stops = np.where(np.array(wanted, dtype=bool), stops, starts)
        if narrowing.time_from is not None:
            starts = np.maximum(starts, watch.at(spans.ids, narrowing.time_from))
        if narrowing.time_to is not None:
            stops = np.minimum(stops, watch.at(spans.ids, narrowing.time_to))
        return starts, stops


class FilteringReader(BatchReader):
    """The same, where Spark hands over its filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that are ranges; return the others."""
        self.narrowing, left = self.narrowing.take(filters)
        return left


def read_task(options: ReadOptions, task: Task, aside: Aside) -> Iterator[Any]:
    """Yield a record batch for every few megabytes of a task's pages, parsed where a schema of the values is given.

    What cannot be parsed, or is known to fail, is put aside.
    """
    batches = messages(options, task)
    if task.poison:
        batches = map(aside.without_poison, batches)
    if options.value_schema is None:
        return batches
    from penstock.spark.parsing import Parser, parsed

    parser = Parser(options.value_schema, options.message_column, with_value=options.message_value)
    return parsed(batches, parser, aside.malformed)


def messages(options: ReadOptions, task: Task) -> Iterator[Any]:
    """Yield a task's messages as they are, what is archived of them first: it is older."""
    # Here, because the driver plans without it.
    from penstock.spark.columns import record_batch

    yield from archives.read(task.archived)
    for pages in _groups(task.pages):
        slices = run(
            options.target,
            ReadRanges(
                [page.partition_id for page in pages], [page.start for page in pages], [page.stop for page in pages]
            ),
        )
        if sum(part.count for _, part in slices) < sum(page.stop - page.start for page in pages):
            yield from _dropped(options, pages, slices)
        if slices:
            yield record_batch(slices, pages)


def _require_order(watch: Watch, ids: Numbers, starts: Numbers, stops: Numbers) -> None:
    """Refuse a range that begins after its end."""
    over = np.flatnonzero(starts > stops)
    if len(over):
        index = int(over[0])
        place = watch.places(ids)[int(ids[index])]
        raise InvalidInput(
            f'the range of partition "{place.partition}" of "{place.queue}" starts at offset {int(starts[index])}, '
            f"after its end at {int(stops[index])}: look at the options that say where to start and to end"
        )


def _require_all(watch: Watch, tasks: list[Task], ids: Numbers, starts: Numbers, stops: Numbers) -> None:
    """Refuse a plan that lacks something, because it was dropped between looking and planning."""
    if sum(task.messages for task in tasks) == int(np.maximum(stops - starts, 0).sum()):
        return
    begins: dict[int, int] = {}
    for page in (page for task in tasks for page in task.ranges):
        begins[page.partition_id] = min(page.start, begins.get(page.partition_id, page.start))
    for number, start, stop in zip(ids.tolist(), starts.tolist(), stops.tolist(), strict=True):
        if start < stop and begins.get(number, stop) > start:
            raise data_lost(watch.places(ids).get(number), start, begins.get(number, stop), stop)


def _groups(pages: list[Page]) -> Iterator[list[Page]]:
    group: list[Page] = []
    size = 0
    for page in pages:
        if group and (size + page.bytes > PAGE_BYTES or len(group) == _MOST_RANGES):
            yield group
            group, size = [], 0
        group.append(page)
        size += page.bytes
    if group:
        yield group


def _dropped(options: ReadOptions, pages: list[Page], slices: list[tuple[int, Any]]) -> Iterator[Any]:
    """Read from the archive what was dropped from the log since the plan; retention drops from the beginning."""
    found = [0] * len(pages)
    for index, part in slices:
        found[index] += part.count
    short = [
        (page, page.stop - count) for page, count in zip(pages, found, strict=True) if count < page.stop - page.start
    ]
    wanted = [(Place(page.queue, page.partition), page.partition_id, page.start, floor) for page, floor in short]
    kept = archives.find(options.target, wanted) if options.archive else [[] for _ in wanted]
    for (page, floor), archived in zip(short, kept, strict=True):
        if not archived and options.fail_on_data_loss:
            raise data_lost(Place(page.queue, page.partition), page.start, floor, page.stop)
        yield from archives.read(archived)
