"""Stage segments first and publish them later, as Spark's sink does.

Each may be repeated: staging the same segments again does nothing, and an epoch is published once.
"""

from collections.abc import Sequence

from penstock.broker.operations.operation import Repeatable
from penstock.broker.staging import EpochTarget, Published, QueueLimits, StagedPart, StageInfo


class ListStages(Repeatable[list[StageInfo]], frozen=True):
    """List what is staged."""


class GetLimits(Repeatable[dict[str, QueueLimits]], frozen=True):
    """Return what queues allow; they need not exist."""

    queues: Sequence[str] = ()


class BeginStage(Repeatable[int], frozen=True):
    """Begin a stage. One that is begun twice, because the connection broke, is swept some day."""

    writer: str
    run: str
    epoch: int


class StageSegments(Repeatable[None], frozen=True):
    """Write segments to a stage, of which it has `first` already."""

    stage_id: int
    first: int
    part: StagedPart


class FlushStages(Repeatable[None], frozen=True):
    """Wait until all that was staged so far is on disk.

    What is staged commits without waiting. The log is written in order, so one commit that waits at a task's end makes
    all of it durable, and what the sources noted of the epoch, too.
    """


class PublishStages(Repeatable[Published], frozen=True):
    """Publish an epoch: stages and how many messages each has, in the order in which they shall lie."""

    writer: str
    run: str
    epoch: int
    stages: Sequence[tuple[int, int]]
    target: EpochTarget = EpochTarget()


class AbortStages(Repeatable[int], frozen=True):
    """Give up stages of this run."""

    writer: str
    run: str
    stages: Sequence[int]
