"""Ranges of offsets become tasks: as many as their bytes are worth, whatever the number of partitions.

A task costs some 30 ms to start. So many small partitions share one, and a hot partition is cut over several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.broker.flows import PoisonMessage
from penstock.broker.operations.flows import FindPoison
from penstock.broker.operations.ranges import PlanRanges
from penstock.broker.places import Place
from penstock.broker.ranges import PlannedPage
from penstock.spark import archives
from penstock.spark.archives import ArchivedPage
from penstock.spark.connections import run
from penstock.spark.options import ReadOptions
from penstock.spark.positions import Numbers, Watch

Ranges = list[tuple[int, int, int]]

PAGE_BYTES = 8 << 20
TASK_BYTES = 32 << 20
# What a range costs beside its bytes: a probe, a slice, some objects.
_RANGE_WEIGHT = 4096


class Page(NamedTuple):
    """A range of one partition that is fetched at once."""

    partition_id: int
    queue: str
    partition: str
    start: int
    stop: int
    bytes: int

    def has(self, partition_id: int, offset: int) -> bool:
        """Say whether a message is in this range."""
        return partition_id == self.partition_id and self.start <= offset < self.stop


def _as_page(page: ArchivedPage) -> Page:
    return Page(page.lies.partition_id, page.queue, page.partition, page.lies.start, page.lies.stop, page.lies.bytes)


@dataclass
class Task(InputPartition):
    """What one Spark task reads. `snapshot` is set for streams: the first task says which one its epoch reads.

    `poison` are messages of its pages that must become dead letters and nothing else.
    """

    pages: list[Page]
    snapshot: int | None = None
    first: bool = False
    poison: list[PoisonMessage] = field(default_factory=list)
    archived: list[ArchivedPage] = field(default_factory=list)

    @property
    def ranges(self) -> list[Page]:
        """All that it reads, wherever that lies."""
        return [*map(_as_page, self.archived), *self.pages]

    @property
    def messages(self) -> int:
        """How many messages it reads."""
        return sum(page.stop - page.start for page in self.ranges)

    def __repr__(self) -> str:
        return f"Task({len(self.pages)} ranges, {sum(page.bytes for page in self.pages)} bytes)"


def plan(options: ReadOptions, watch: Watch, ids: Numbers, starts: Numbers, stops: Numbers) -> list[Task]:
    """Cut ranges into pages and deal them out to tasks."""
    wanted = stops > starts
    if not wanted.any():
        return []
    ids, starts, stops = ids[wanted], starts[wanted], stops[wanted]
    pages = run(options.target, PlanRanges(ids.tolist(), starts.tolist(), stops.tolist(), PAGE_BYTES))
    places = watch.places(ids)
    pages = [page for page in pages if page.partition_id in places]
    tasks = [
        Task([Page(page.partition_id, *places[page.partition_id], page.start, page.stop, page.bytes) for page in task])
        for task in deal(pages, options.min_partitions, options.most_tasks)
    ]
    if options.archive:
        tasks = plan_archived(options, places, _before(pages, ids, starts, stops)) + tasks
    tasks = split(tasks, options.min_partitions)
    if options.group is not None:
        poison = run(options.target, FindPoison(options.group, ids.tolist(), starts.tolist(), stops.tolist()))
        for task in tasks if poison else ():
            task.poison = [one for one in poison if any(page.has(one.partition_id, one.offset) for page in task.ranges)]
    return tasks


def plan_archived(options: ReadOptions, places: dict[int, Place], ranges: Ranges) -> list[Task]:
    """Deal out what lies before the log, as far as it is archived."""
    wanted = [(places[number], number, start, stop) for number, start, stop in ranges if number in places]
    # In the order of the files, so that each row group is read once; the offsets of a partition ascend in it, too.
    pages = sorted(chain.from_iterable(archives.find(options.target, wanted)), key=lambda page: page.lies[6:])
    tasks: list[Task] = []
    size = TASK_BYTES
    for page in pages:
        if size + page.lies.bytes // 2 >= TASK_BYTES:
            tasks.append(Task([]))
            size = 0
        tasks[-1].archived.append(page)
        size += page.lies.bytes + _RANGE_WEIGHT
    return tasks


def split(tasks: list[Task], at_least: int) -> list[Task]:
    """Split the tasks with the most messages until there are enough, or no task has two; their order stays."""
    tasks = list(tasks)
    while 0 < len(tasks) < at_least:
        index = max(range(len(tasks)), key=lambda index: tasks[index].messages)
        if tasks[index].messages < 2:
            break
        tasks[index : index + 1] = _halves(tasks[index])
    return tasks


def _halves(task: Task) -> list[Task]:
    """Cut a task in two: between its ranges, or in the middle of its only one."""
    if len(task.archived) + len(task.pages) == 1:
        archived = [half for page in task.archived for half in _archived_halves(page)]
        pages = [half for page in task.pages for half in _page_halves(page)]
        task = Task(pages, archived=archived)
    cut = (len(task.archived) + len(task.pages)) // 2
    rest = max(cut - len(task.archived), 0)
    return [
        Task(task.pages[:rest], archived=task.archived[:cut]),
        Task(task.pages[rest:], archived=task.archived[cut:]),
    ]


def _page_halves(page: Page) -> list[Page]:
    middle = (page.start + page.stop) // 2
    return [page._replace(stop=middle, bytes=page.bytes // 2), page._replace(start=middle, bytes=page.bytes // 2)]


def _archived_halves(page: ArchivedPage) -> list[ArchivedPage]:
    lies = page.lies
    middle, size = (lies.start + lies.stop) // 2, lies.bytes // 2
    return [
        page._replace(lies=lies._replace(stop=middle, bytes=size)),
        page._replace(lies=lies._replace(start=middle, bytes=size, first_row=lies.first_row + middle - lies.start)),
    ]


def _before(pages: Sequence[PlannedPage], ids: Numbers, starts: Numbers, stops: Numbers) -> Ranges:
    """Return the parts of ranges that the log, which was looked at once for all of them, does not have any more."""
    begins: dict[int, int] = {}
    for page in pages:
        begins.setdefault(page.partition_id, page.start)
    return [
        (number, start, begins.get(number, stop))
        for number, start, stop in zip(ids.tolist(), starts.tolist(), stops.tolist(), strict=True)
        if start < begins.get(number, stop)
    ]


def deal(pages: Sequence[PlannedPage], at_least: int, at_most: int) -> list[list[PlannedPage]]:
    """Deal pages out to tasks of about the same weight, neighbours together; `at_least` goes before `at_most`."""
    total = sum(map(_weight, pages))
    if not total:
        return []
    count = max(at_least, min(ceil(total / TASK_BYTES), at_most))
    share = total / count
    tasks: list[list[PlannedPage]] = [[]]
    before = 0.0
    for page in pages:
        for part in _cut(page, share):
            # By the middle of a page, so that a little too much does not open another task.
            index = int((before + _weight(part) / 2) / share)
            if index >= len(tasks) and tasks[-1]:
                tasks.append([])
            tasks[-1].append(part)
            before += _weight(part)
    return tasks


def _cut(page: PlannedPage, share: float) -> list[PlannedPage]:
    """Cut a page that is more than a task's share."""
    messages = page.stop - page.start
    parts = min(messages, ceil(_weight(page) / share - 0.01))
    if parts <= 1:
        return [page]
    stops = [page.start + messages * (index + 1) // parts for index in range(parts)]
    return [
        PlannedPage(page.partition_id, start, stop, page.bytes // parts)
        for start, stop in zip([page.start, *stops[:-1]], stops, strict=True)
    ]


def _weight(page: PlannedPage) -> int:
    return page.bytes + _RANGE_WEIGHT
