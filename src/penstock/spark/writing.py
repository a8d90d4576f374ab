"""Writing: tasks stage packed segments, and one transaction publishes what all of them have staged.

A stage belongs to one attempt of one task. What the driver publishes are the attempts that Spark says count, once for
each epoch of a query; a batch is a query of one epoch. What nobody publishes is removed.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.broker.flows import Letter
from penstock.broker.operations.flows import PublishEpoch
from penstock.broker.operations.staging import (
    AbortStages,
    BeginStage,
    FlushStages,
    GetLimits,
    PublishStages,
    StageSegments,
)
from penstock.broker.staging import EpochTarget, QueueLimits, StagedPart
from penstock.errors import PenstockError
from penstock.spark.connections import run
from penstock.spark.jobs import Job, current_checkpoints, current_job
from penstock.spark.letters import stage_letters
from penstock.spark.options import Target, WriteOptions
from penstock.spark.schema import DEAD, DEAD_COPY
from penstock.spark.signing import signs_errors

# How much a task holds before it writes.
FLUSH_BYTES = 8 << 20
# Rows that go to many partitions are held for longer: few and full segments are cheaper for everybody after.
_HOLD_BYTES = 64 << 20
_FULL_BYTES = 64 << 10


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged; without rows there is no stage. The checkpoint is that of the query, if known."""

    job: Job
    task: int
    stage: int | None
    messages: int
    checkpoint: str | None = None


@signs_errors
class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of it or nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        # Made where the query is planned, and the same for all of its tasks and for the commit.
        run = f"batch-{uuid4()}"
        self.job = Job(run if options.name is None else batch_writer(options.name), run, 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return stage(self.options, self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish."""
        publish(self.options, self.job, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged."""
        give_up(self.options.target, messages)


@signs_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each epoch of a streaming query once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        job = current_job()
        if job is None:
            raise PenstockError("this task belongs to no streaming query; Spark is to say which in its properties")
        return replace(stage(self.options, job, iterator), checkpoint=self._checkpoint())

    def _checkpoint(self) -> str | None:
        """Return where the query has its checkpoint; the option says it, or else the session, to tasks only."""
        folder = current_checkpoints()
        if self.options.checkpoint is not None or folder is None or self.options.query is None:
            return self.options.checkpoint
        return f"{folder.rstrip('/')}/{self.options.query}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch; a repeated one changes nothing."""
        # The driver does not know the query here, and every task does.
        first = next((message for message in messages if isinstance(message, Staged)), None)
        if first is None:
            raise PenstockError(f"epoch {batchId} has no task that says which query it belongs to")
        publish(self.options, first.job, messages, reading(first.checkpoint, first.job.epoch))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what this run has staged for the epoch."""
        give_up(self.options.target, messages)


def batch_writer(name: str) -> str:
    """Return what a batch of a name is called in the ledger."""
    return f"batch-{name}"


def stage(options: WriteOptions, job: Job, batches: Iterator[Any]) -> Staged:
    """Stage the rows of one task under an id of its own."""
    # Here, because the driver commits without it, in a process that it starts for that.
    from penstock.spark.packing import Packer

    context = TaskContext.get()
    task = context.partitionId() if context else 0
    packer = Packer(options.queue, task)
    limits: dict[str, QueueLimits] = {}
    sender = _Sender(options.target, job)
    messages = 0
    with sender:
        for everything in _tables(batches):
            table, letters = _without_letters(everything)
            if letters and options.group is not None:
                sender.send_letters(options.group, letters)
            if not table.num_rows:
                continue
            unknown = [name for name in packer.queues(table) if name not in limits]
            if unknown:
                found: dict[str, QueueLimits] = run(options.target, GetLimits(unknown))
                limits |= found
            for part in packer.pack(table, limits):
                sender.send(part)
            messages += table.num_rows
    return Staged(job, task, sender.stage, messages)


class _Sender:
    """Writes to a stage beside the task, which packs the next rows meanwhile."""

    def __init__(self, target: Target, job: Job) -> None:
        self._target, self._job = target, job
        self._thread = ThreadPoolExecutor(1)
        self._sending: Future[None] | None = None
        self._segments = 0
        self.stage: int | None = None

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self._wait()
                if self.stage is not None:
                    run(self._target, FlushStages())
        finally:
            self._thread.shutdown()

    def send(self, part: StagedPart) -> None:
        """Send some segments when those before are through."""
        self._wait()
        self._sending = self._thread.submit(run, self._target, StageSegments(self._begun(), self._segments, part))
        self._segments += len(part.counts)

    def send_letters(self, group: str, letters: list[Letter]) -> None:
        """Say which messages become dead letters; there are few, and it waits."""
        self._wait()
        stage_letters(self._target, self._begun(), group, letters, of_source=False)

    def _begun(self) -> int:
        if self.stage is None:
            self.stage = run(self._target, BeginStage(self._job.writer, self._job.run, self._job.epoch))
        return self.stage

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.result()


def reading(checkpoint: str | None, epoch: int) -> str | None:
    """Return what all sources of an epoch read, as Spark wrote it to a checkpoint in a folder of this machine.

    Sources in this database note what they read; of others, Kafka or a penstock elsewhere, nobody else tells. Of files
    the offset is a mere number, and which files it stands for is written beside it.
    """
    if checkpoint is None or (":" in checkpoint and not checkpoint.startswith("file:")):
        return None
    try:
        folder = Path(checkpoint.removeprefix("file:"))
        # First come the version and the batch's own time, which is another one when the batch is planned again.
        offsets = (folder / "offsets" / str(epoch)).read_text().splitlines()[2:]
        files = [line for source, offset in enumerate(offsets) for line in _files(folder, source, offset)]
    except (OSError, UnicodeDecodeError):
        return None
    return "\n".join([*offsets, *files]) or None


def _files(checkpoint: Path, source: int, offset: str) -> list[str]:
    """Return which files an offset of a file source stands for; of any other source, none."""
    number = _parsed(offset).get("logOffset")
    log = checkpoint / "sources" / str(source)
    for path in (log / str(number), log / f"{number}.compact"):
        if isinstance(number, int) and path.is_file():
            # First comes the version. Every tenth file has all that were before it as well.
            return sorted(line for line in path.read_text().splitlines()[1:] if _parsed(line).get("batchId") == number)
    return []


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def publish(
    options: WriteOptions, job: Job, messages: list[WriterCommitMessage | None], reading: str | None = None
) -> None:
    """Publish what the tasks have staged, in the order of the tasks."""
    sent = EpochTarget(options.queue or "", reading)
    staged = sorted((message for message in messages if isinstance(message, Staged)), key=lambda message: message.task)
    stages = [(message.stage, message.messages) for message in staged if message.stage is not None]
    if options.group is None:
        run(options.target, PublishStages(job.writer, job.run, job.epoch, stages, sent))
    else:
        run(options.target, PublishEpoch(options.group, job.writer, job.run, job.epoch, stages, sent))


def give_up(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Remove what the tasks have staged. What is missed here, the sweep finds."""
    staged = [message for message in messages if isinstance(message, Staged) and message.stage is not None]
    if staged:
        job = staged[0].job
        stages = [message.stage for message in staged if message.stage is not None]
        run(target, AbortStages(job.writer, job.run, stages), patience=5.0)


def _without_letters(table: Any) -> tuple[Any, list[Letter]]:
    """Take the rows out of a table that are no messages: they say which message becomes a dead letter."""
    if DEAD[0] not in table.column_names:
        return table, []
    import pyarrow.compute as pc

    dead = pc.is_valid(table[DEAD[0]])
    if not pc.any(dead).as_py():
        return table, []
    names = [*DEAD, *(name for name in DEAD_COPY if name in table.column_names)]
    columns = table.select(names).filter(dead).to_pydict()
    return table.filter(pc.invert(dead)), [Letter(*row) for row in zip(*columns.values(), strict=True)]


def _tables(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    held: list[Any] = []
    size, full = 0, FLUSH_BYTES
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= full:
            table = pa.Table.from_batches(held)
            if full == FLUSH_BYTES and _scattered(table, size):
                full = _HOLD_BYTES
                continue
            yield table
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _scattered(table: Any, size: int) -> bool:
    import pyarrow.compute as pc

    if "partition" not in table.column_names:
        return False
    return bool(size < pc.count_distinct(table["partition"]).as_py() * _FULL_BYTES)
