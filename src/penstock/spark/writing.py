"""Writing: tasks stage packed segments, and one transaction publishes what all of them have staged.

A stage belongs to one attempt of one task. What the driver publishes are the attempts that Spark says count, once for
each epoch of a query; a batch is a query of one epoch. What nobody publishes is removed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.engine import flow_calls, stage_calls
from penstock.engine.flow_calls import Letter
from penstock.engine.stage_calls import Limits
from penstock.errors import PenstockError
from penstock.spark.connections import run
from penstock.spark.jobs import Job, current_job
from penstock.spark.options import Target, WriteOptions
from penstock.spark.schema import DEAD

# How much a task holds before it writes; more makes fewer and fuller segments where rows go to many partitions.
FLUSH_BYTES = 16 << 20


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged; without rows there is no stage."""

    job: Job
    task: int
    stage: int | None
    messages: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of it or nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        # Made where the query is planned, and the same for all of its tasks and for the commit.
        name = f"batch-{uuid4()}"
        self.job = Job(name, name, 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return stage(self.options, self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish."""
        publish(self.options, self.job, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged."""
        give_up(self.options.target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each epoch of a streaming query once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        job = current_job()
        if job is None:
            raise PenstockError("this task belongs to no streaming query; Spark is to say which in its properties")
        return stage(self.options, job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch; a repeated one changes nothing."""
        # The driver does not know the query here, and every task does.
        job = next((message.job for message in messages if isinstance(message, Staged)), None)
        if job is None:
            raise PenstockError(f"epoch {batchId} has no task that says which query it belongs to")
        publish(self.options, job, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what this run has staged for the epoch."""
        give_up(self.options.target, messages)


def stage(options: WriteOptions, job: Job, batches: Iterator[Any]) -> Staged:
    """Stage the rows of one task under an id of its own."""
    # Here, because the driver commits without it, in a process that it starts for that.
    from penstock.spark.packing import Packer

    context = TaskContext.get()
    task = context.partitionId() if context else 0
    packer = Packer(options.queue, task)
    limits: dict[str, Limits] = {}
    stage_id: int | None = None
    segments = messages = 0
    for everything in _tables(batches):
        table, letters = _without_letters(everything)
        if letters and options.group is not None:
            if stage_id is None:
                stage_id = run(options.target, stage_calls.begin(job.writer, job.run, job.epoch))
            run(options.target, flow_calls.stage_letters(stage_id, options.group, letters, of_source=False))
        if not table.num_rows:
            continue
        unknown = [name for name in packer.queues(table) if name not in limits]
        if unknown:
            found: dict[str, Limits] = run(options.target, stage_calls.limits(unknown))
            limits |= found
        packed = packer.pack(table, limits)
        if stage_id is None:
            stage_id = run(options.target, stage_calls.begin(job.writer, job.run, job.epoch))
        run(options.target, stage_calls.stage(stage_id, segments, packed))
        segments += len(packed)
        messages += table.num_rows
    return Staged(job, task, stage_id, messages)


def publish(options: WriteOptions, job: Job, messages: list[WriterCommitMessage | None]) -> None:
    """Publish what the tasks have staged, in the order of the tasks."""
    staged = sorted((message for message in messages if isinstance(message, Staged)), key=lambda message: message.task)
    stages = [(message.stage, message.messages) for message in staged if message.stage is not None]
    if options.group is None:
        run(options.target, stage_calls.publish(job.writer, job.run, job.epoch, stages))
    else:
        run(options.target, flow_calls.publish(options.group, job.writer, job.run, job.epoch, stages))


def give_up(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Remove what the tasks have staged. What is missed here, the sweep finds."""
    staged = [message for message in messages if isinstance(message, Staged) and message.stage is not None]
    if staged:
        job = staged[0].job
        stages = [message.stage for message in staged if message.stage is not None]
        run(target, stage_calls.abort(job.writer, job.run, stages), patience=5.0)


def _without_letters(table: Any) -> tuple[Any, list[Letter]]:
    """Take the rows out of a table that are no messages: they say which message becomes a dead letter."""
    if DEAD[0] not in table.column_names:
        return table, []
    import pyarrow.compute as pc

    dead = pc.is_valid(table[DEAD[0]])
    if not pc.any(dead).as_py():
        return table, []
    columns = table.select(DEAD).filter(dead).to_pydict()
    return table.filter(pc.invert(dead)), [Letter(*row) for row in zip(*columns.values(), strict=True)]


def _tables(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    held: list[Any] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= FLUSH_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
