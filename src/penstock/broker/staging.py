"""Stages: segments that a writer writes first and publishes later, as Spark's sink does."""

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    Column = bytes | memoryview | None
else:
    # A decoder knows one type for bytes.
    Column = bytes | None


class QueueLimits(NamedTuple):
    """What a queue allows: the largest message, and over how many partitions it spreads."""

    max_message_bytes: int
    spread: int


class StagedPart(NamedTuple):
    """Some segments, which are sent at once: an entry of the lists for each.

    Their columns lie end to end, and ends count anew in every segment. Where some values are null, a byte per message
    follows all ends.
    """

    queues: list[str]
    partitions: list[str]
    counts: list[int]
    body: Column
    ends: Column
    keys: Column
    key_ends: Column
    headers: Column
    header_ends: Column


class Published(NamedTuple):
    """What came of publishing an epoch: `published` or `skipped`, and how much it has."""

    outcome: str
    segments: int
    messages: int


class StageInfo(NamedTuple):
    """A stage that was not published yet."""

    stage_id: int
    writer: str
    run: str
    epoch: int
    segments: int
    messages: int
    bytes: int
    last_written: datetime


class EpochTarget(NamedTuple):
    """Where an epoch goes: the queue, empty where rows name theirs. And what it reads, in words that tell it apart."""

    queue: str | None = None
    reading: str | None = None
