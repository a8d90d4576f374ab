"""The calls of a writer that stages first and publishes later, as Spark's sink does.

Each may be repeated: staging the same segments again does nothing, and an epoch is published once.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from penstock.engine.calls import Call, Place, Row, nothing, scalar
from penstock.engine.packing import Segment


class Limits(NamedTuple):
    """What a queue allows: the largest message, and over how many partitions it spreads."""

    max_message_bytes: int
    spread: int


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


def stages() -> Call[list[StageInfo]]:
    """List what is staged."""
    return Call("SELECT * FROM penstock.list_stages()", (), lambda rows: [StageInfo(*row) for row in rows], True)


def limits(queues: Sequence[str]) -> Call[dict[str, Limits]]:
    """Ask what queues allow; they need not exist."""
    return Call(
        "SELECT * FROM penstock.queue_limits(%s::text[])",
        (list(queues),),
        lambda rows: {name: Limits(*rest) for name, *rest in rows},
        True,
    )


def begin(writer: str, run: str, epoch: int) -> Call[int]:
    """Begin a stage. One that is begun twice, because the connection broke, is swept some day."""
    return Call("SELECT penstock.begin_stage(%s::text, %s::text, %s::bigint)", (writer, run, epoch), scalar, True)


def stage(stage_id: int, first: int, segments: Sequence[tuple[Place, Segment]]) -> Call[None]:
    """Write segments to a stage, of which it has `first` already."""
    packed: list[list[Any] | None] = [
        [segment.count for _, segment in segments],
        [segment.body for _, segment in segments],
        [segment.ends for _, segment in segments],
        _some([segment.keys for _, segment in segments]),
        _some([segment.key_ends for _, segment in segments]),
        _some([segment.headers for _, segment in segments]),
        _some([segment.header_ends for _, segment in segments]),
    ]
    return Call(
        # %b: psycopg sends arrays as text unless told otherwise, bytes as hexadecimal digits.
        "SELECT penstock.stage_segments(%s::bigint, %s::bigint, %s::text[], %s::text[], %s::integer[], %b::bytea[], "
        "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[])",
        (stage_id, first, [place.queue for place, _ in segments], [place.partition for place, _ in segments], *packed),
        nothing,
        True,
    )


def publish(writer: str, run: str, epoch: int, stages: Sequence[tuple[int, int]]) -> Call[Published]:
    """Publish an epoch: stages and how many messages each has, in the order in which they shall lie."""

    def parse(rows: Sequence[Row]) -> Published:
        return Published(*rows[0])

    return Call(
        "SELECT * FROM penstock.publish_stages(%s::text, %s::text, %s::bigint, %s::bigint[], %s::bigint[])",
        (writer, run, epoch, [stage_id for stage_id, _ in stages], [messages for _, messages in stages]),
        parse,
        True,
    )


def abort(writer: str, run: str, stages: Sequence[int]) -> Call[int]:
    """Give up stages of this run."""
    return Call(
        "SELECT penstock.abort_stages(%s::text, %s::text, %s::bigint[])", (writer, run, list(stages)), scalar, True
    )


def _some(column: list[Any]) -> list[Any] | None:
    """Return a column, or nothing if it is empty: an array of nulls has no type."""
    return column if any(value is not None for value in column) else None
