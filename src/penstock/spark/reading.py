"""Reading a bounded range: planned once, read by tasks a few megabytes at a time."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.engine import range_calls
from penstock.engine.calls import Place
from penstock.spark.aside import Aside
from penstock.spark.connections import run
from penstock.spark.filters import Narrowing
from penstock.spark.options import ReadOptions
from penstock.spark.planning import PAGE_BYTES, Page, Task, plan
from penstock.spark.positions import Numbers, Spans, Watch, data_lost

# Ranges in one call: each costs little, and all of them an answer that has to be held.
_MOST_RANGES = 4096


class BatchReader(DataSourceReader):
    """Reads from startingOffsets to endingOffsets; Spark filters what comes of it."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        watch = Watch(self.options)
        spans = watch.look(floors=True)
        starts, stops = self._narrowed(watch, spans, watch.starting(spans), watch.ending(spans))
        tasks: list[InputPartition] = list(plan(self.options, watch, spans.ids, starts, stops))
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
    batches = _messages(options, task)
    if task.poison:
        batches = map(aside.without_poison, batches)
    if options.value_schema is None:
        return batches
    from penstock.spark.parsing import Parser, parsed

    return parsed(batches, Parser(options.value_schema, options.message_column), aside.malformed)


def _messages(options: ReadOptions, task: Task) -> Iterator[Any]:
    # Here, because the driver plans without it.
    from penstock.spark.columns import record_batch

    for pages in _groups(task.pages):
        slices = run(
            options.target,
            range_calls.read(
                [page.partition_id for page in pages], [page.start for page in pages], [page.stop for page in pages]
            ),
        )
        if options.fail_on_data_loss and sum(part.count for _, part in slices) < sum(
            page.stop - page.start for page in pages
        ):
            raise _what_is_lost(pages, slices)
        if slices:
            yield record_batch(slices, pages)


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


def _what_is_lost(pages: list[Page], slices: list[tuple[int, Any]]) -> Exception:
    found = [0] * len(pages)
    for index, part in slices:
        found[index] += part.count
    page, count = next(
        (page, count) for page, count in zip(pages, found, strict=True) if count < page.stop - page.start
    )
    return data_lost(Place(page.queue, page.partition), page.start, page.stop - count, page.stop)
