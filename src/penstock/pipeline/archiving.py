"""Copies the closed part of a queue to Parquet, verifies it row for row, and only then lets the log go.

    from penstock.pipeline import archive

    archive("orders", "s3a://bucket/penstock", drop=True)

A run writes to a folder that readers of Parquet pass over, reads all of it back, compares it with the log, moves the
files to `queue=…/date=…/`, and records what lies where in one transaction. Before that transaction nothing has changed
for anybody; what a run leaves that ends before, the next one removes. A large queue is archived in several runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import SparkSession

    from penstock.broker.archives import ArchiveFile
    from penstock.broker.ranges import PlannedPage
    from penstock.postgres.database import Database
    from penstock.settings import Settings
    from penstock.spark.archiving import Job
    from penstock.spark.planning import Task

T = TypeVar("T")
# A run records this much at once, so much is done again after a crash, and so large files become: a 64th of it.
RUN_BYTES = 4 << 30
_TIMEOUT = 300.0


class ArchiveResult(NamedTuple):
    """What was archived, in how many runs and files of how many bytes, and what was dropped from the log."""

    queue: str
    location: str
    runs: int
    partitions: int
    messages: int
    files: int
    bytes: int
    dropped: int


def archive(
    queue: str,
    to: str,
    *,
    before: datetime | None = None,
    partitions: Sequence[str] | None = None,
    drop: bool = False,
    url: str | None = None,
    spark: "SparkSession | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> ArchiveResult:
    """Archive what is older than `before`, or all there is, and with `drop` drop it from the log at once.

    `progress` is told before each run how many messages are archived, of how many.
    """
    from penstock.settings import resolve

    settings = resolve({"url": url, "timeout": _TIMEOUT})
    with Archiving(settings, spark, queue, to, partitions) as archiving:
        runs = list(archiving.plan(before))
        total = sum(page.stop - page.start for pages in runs for page in pages)
        files: list[ArchiveFile] = []
        for pages in runs:
            if progress is not None:
                progress(sum(file.messages for file in files), total)
            files += archiving.run(pages)
        dropped = archiving.drop() if drop else 0
    return ArchiveResult(
        queue,
        archiving.location,
        len(runs),
        len({part.partition_id for file in files for part in file.ranges}),
        sum(file.messages for file in files),
        len(files),
        sum(file.bytes for file in files),
        dropped,
    )


class Archiving:
    """The archiving of one queue, step by step. Two at once exclude each other."""

    def __init__(
        self,
        settings: "Settings",
        spark: "SparkSession | None",
        queue: str,
        to: str,
        partitions: Sequence[str] | None = None,
    ) -> None:
        self.queue, self.location = queue, place(to)
        self._settings, self._spark = settings, spark
        self._partitions = partitions
        self._names: dict[int, str] = {}
        self._database: Database | None = None
        self._holder: psycopg.Connection[Any] | None = None

    def __enter__(self) -> "Archiving":
        from penstock.postgres.database import Database

        self._database = Database(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            with suppress(Exception):
                self._holder.close()
        if self._database is not None:
            self._database.close()

    @property
    def database(self) -> "Database":
        """The database."""
        assert self._database is not None  # noqa: S101
        return self._database

    @property
    def spark(self) -> "SparkSession":
        """The session."""
        if self._spark is None:
            from penstock.spark import session

            self._spark = session("penstock archive")
        return self._spark

    def plan(self, before: datetime | None = None) -> "Iterator[list[PlannedPage]]":
        """Yield what each run shall archive, oldest first in each partition."""
        from penstock.broker.operations.archives import FindArchivable
        from penstock.broker.operations.ranges import PlanRanges
        from penstock.spark.planning import PAGE_BYTES

        found = self.database.run(FindArchivable(self.queue, before, self._partitions))
        ids = [one.partition_id for one in found]
        ranges = [one.start for one in found], [one.stop for one in found]
        pages = self.database.run(PlanRanges(ids, *ranges, PAGE_BYTES)) if found else []
        self._names = {one.partition_id: one.partition for one in found}
        held: list[PlannedPage] = []
        size = 0
        for page in pages:
            if held and size + page.bytes > RUN_BYTES:
                yield held
                held, size = [], 0
            held.append(page)
            size += page.bytes
        if held:
            yield held

    def run(self, pages: "Sequence[PlannedPage]") -> "list[ArchiveFile]":
        """Archive some pages: all of them or nothing. What it leaves when it fails, it or the next run removes."""
        job = self.begin()
        try:
            written = self.write(job, pages)
            verified = self.verify(job, pages, written)
            self.publish(job, verified)
            self.record(job, verified)
        except Exception:
            # Not when it is interrupted: whoever does that wants it to end.
            with suppress(Exception):
                self.clean(job.run, job.location)
            raise
        self._in_task(partial(_clean_staging, job))
        return verified

    def begin(self) -> "Job":
        """Begin a run, and clean up after those that never ended."""
        from penstock.broker.operations.archives import BeginArchive
        from penstock.postgres.failures import translated
        from penstock.postgres.statements.call import call_for
        from penstock.spark.archiving import Job
        from penstock.spark.options import read_options

        if self._holder is None or self._holder.closed:
            self._holder = self.database.server.connect()
        call = call_for(BeginArchive(self.queue, self.location))
        with translated():
            begun = call.parse(self.database.execute(self._holder, call))
        for run, location in begun.left:
            # One whose folder cannot be reached is tried again by the next run.
            with suppress(PenstockError):
                self.clean(run, location)
        given = {"subscribe": self.queue, "archive": "false"}
        if self._settings.url is not None:
            given["url"] = self._settings.url
        return Job(read_options(given, streaming=False), self.queue, self.location, begun.run)

    def tasks(self, pages: "Sequence[PlannedPage]") -> "list[Task]":
        """Deal pages out to tasks."""
        from penstock.spark.options import MOST_TASKS
        from penstock.spark.planning import Page, Task, deal

        return [
            Task([Page(page[0], self.queue, self._names[page[0]], *page[1:]) for page in part])
            for part in deal(pages, 1, MOST_TASKS)
        ]

    def write(self, job: "Job", pages: "Sequence[PlannedPage]") -> "list[ArchiveFile]":
        """Write the files of a run."""
        from penstock.broker.archives import ArchiveFile

        tasks = self.tasks(pages)
        return self._in_tasks(partial(_write, job, tasks), len(tasks), list[ArchiveFile])

    def verify(self, job: "Job", pages: "Sequence[PlannedPage]", files: "Sequence[ArchiveFile]") -> "list[ArchiveFile]":
        """Compare files with the log, and see that they hold all pages and nothing else."""
        from penstock.broker.archives import ArchiveFile

        _require_whole(pages, files)
        return self._in_tasks(partial(_verify, job, list(files)), len(files), list[ArchiveFile])

    def publish(self, job: "Job", files: "Sequence[ArchiveFile]") -> None:
        """Move the files of a run to their place."""
        self._in_task(partial(_publish, job, list(files)))

    def record(self, job: "Job", files: "Sequence[ArchiveFile]") -> int:
        """Record a run: from here on it is archived."""
        from penstock.broker.operations.archives import RecordArchive

        return self.database.run(RecordArchive(job.run, files))

    def clean(self, run: str, location: str) -> None:
        """Remove the files of a run that was not recorded, and forget it."""
        from penstock.broker.operations.archives import ForgetArchive

        self._in_task(partial(_clean, location, self.queue, run))
        self.database.run(ForgetArchive(run))

    def drop(self) -> int:
        """Drop from the log what is archived and read by all groups that retention waits for."""
        from penstock.broker.operations.archives import DropArchived

        dropped, after = 0, 0
        while True:
            done = self.database.run(DropArchived(self.queue, self._partitions, after))
            dropped += done.messages
            if done.next_partition is None:
                return dropped
            after = done.next_partition

    def _in_task(self, work: Callable[[int], None]) -> None:
        self._in_tasks(partial(_nothing, work), 1, list[None])

    def _in_tasks(self, work: Callable[[int], "Sequence[T]"], count: int, kind: type[list[T]]) -> list[T]:
        """Do so many pieces of work, each in a task of its own; return what they return."""
        import msgspec
        from pyspark.errors import PySparkException

        from penstock.pipeline.job_errors import as_penstock
        from penstock.spark.signing import new_sign

        sign = new_sign()
        tasks = self.spark.range(0, count, 1, count)
        try:
            rows = tasks.mapInArrow(partial(_each, work, sign), "result binary").collect()
        except PySparkException as error:
            raise as_penstock(error, sign) from None
        return [one for row in rows for one in msgspec.msgpack.decode(bytes(row.result), type=kind)]


def place(to: str) -> str:
    """Return a location as it is kept: an address as it is, and a folder of this machine with its whole path."""
    if not to:
        raise InvalidInput("say where the archive shall lie: a folder, or file:, s3a:, hdfs:")
    scheme, colon, _ = to.partition(":")
    return to.rstrip("/") if colon and "/" not in scheme else str(Path(to).expanduser().absolute())


def _require_whole(pages: "Sequence[PlannedPage]", files: "Sequence[ArchiveFile]") -> None:
    """Refuse files that hold other ranges than those that are to be archived."""
    wanted: dict[int, int] = {}
    for page in pages:
        wanted[page.partition_id] = wanted.get(page.partition_id, 0) + page.stop - page.start
    first: dict[int, int] = {}
    for page in pages:
        first.setdefault(page.partition_id, page.start)
    ranges = sorted((part.partition_id, part.start, part.stop) for file in files for part in file.ranges)
    for number, start, stop in ranges:
        if first.get(number) != start:
            raise PenstockError(f"what was written of partition {number} has a gap or an overlap at offset {start}")
        first[number] = stop
        wanted[number] -= stop - start
    if any(wanted.values()):
        raise PenstockError("not all messages were written; nothing was recorded")


# What runs in tasks. Spark's processes import it from here.


def _each(work: Callable[[int], Any], sign: str, batches: Iterator[Any]) -> Iterator[Any]:
    import msgspec
    import pyarrow as pa

    from penstock.spark.signing import signing

    for batch in batches:
        for number in batch.column(0).to_pylist():
            with signing(sign):
                result = work(number)
            yield pa.record_batch([pa.array([msgspec.msgpack.encode(result)], pa.binary())], ["result"])


def _write(job: "Job", tasks: "list[Task]", number: int) -> "list[ArchiveFile]":
    from pyspark import TaskContext

    from penstock.spark.archiving import write

    context = TaskContext.get()
    # Attempts of one task must not write to one file.
    return write(job, tasks[number], f"{number}-{context.taskAttemptId() if context else 0}")


def _verify(job: "Job", files: "list[ArchiveFile]", number: int) -> "list[ArchiveFile]":
    from penstock.spark.archiving import verify

    return [verify(job, files[number])]


def _publish(job: "Job", files: "list[ArchiveFile]", number: int) -> None:
    from penstock.spark.archiving import publish

    publish(job, files)


def _clean(location: str, queue: str, run: str, number: int) -> None:
    from penstock.spark.archiving import clean

    clean(location, queue, run, everything=True)


def _clean_staging(job: "Job", number: int) -> None:
    from penstock.spark.archiving import clean

    clean(job.location, job.queue, job.run, everything=False)


def _nothing(work: Callable[[int], None], number: int) -> list[None]:
    work(number)
    return []
