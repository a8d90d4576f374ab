"""Finds the query that a task works for, in the properties of the task."""

from dataclasses import dataclass

from pyspark import TaskContext


@dataclass(frozen=True)
class Job:
    """A query, one run of it, and the number of an epoch."""

    writer: str
    run: str
    epoch: int


def current_checkpoints() -> str | None:
    """Return the folder in which the session of this task has the checkpoints of its queries, if it has one."""
    context = TaskContext.get()
    return context.getLocalProperty("spark.sql.streaming.checkpointLocation") if context else None


def current_job() -> Job | None:
    """Return which query, run and epoch this task works for; None in a batch."""
    context = TaskContext.get()
    if context is None:
        return None
    query, epoch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    # Spark makes the run's id the job group.
    started = context.getLocalProperty("spark.jobGroup.id")
    return Job(query, started or query, int(epoch)) if query and epoch else None
