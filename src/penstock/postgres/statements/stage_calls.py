"""The calls of a writer that stages first and publishes later, as Spark's sink does.

Each may be repeated: staging the same segments again does nothing, and an epoch is published once. The commit that
publishes waits for the log on disk, and for all before it; so the statements that stage say for their own transaction
that its commit need not wait.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from penstock.postgres.statements.calls import Call, Row, nothing, scalar


class Limits(NamedTuple):
    """What a queue allows: the largest message, and over how many partitions it spreads."""

    max_message_bytes: int
    spread: int


Column = bytes | memoryview | None


class Part(NamedTuple):
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
    return Call(
        "SELECT penstock.begin_stage(%s::text, %s::text, %s::bigint) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (writer, run, epoch),
        scalar,
        True,
    )


def stage(stage_id: int, first: int, part: Part) -> Call[None]:
    """Write segments to a stage, of which it has `first` already."""
    return Call(
        "SELECT penstock.stage_segments(%s::bigint, %s::bigint, %s::text[], %s::text[], %s::integer[], %b::bytea, "
        "%b::bytea, %b::bytea, %b::bytea, %b::bytea, %b::bytea) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (stage_id, first, _texts(part.queues), _texts(part.partitions), _numbers(part.counts), *part[3:]),
        nothing,
        True,
    )


def flush() -> Call[None]:
    """Wait until all that was staged so far is on disk.

    What is staged commits without waiting. The log is written in order, so one commit that waits at a task's end makes
    all of it durable, and what the sources noted of the epoch, too.
    """
    return Call("SELECT pg_catalog.pg_logical_emit_message(true, 'penstock', 'staged')::text", (), nothing, True)


class Sent(NamedTuple):
    """Where an epoch goes: the queue, empty where rows name theirs. And what it reads, in words that tell it apart."""

    target: str | None = None
    reading: str | None = None


def publish(
    writer: str, run: str, epoch: int, stages: Sequence[tuple[int, int]], sent: Sent | None = None
) -> Call[Published]:
    """Publish an epoch: stages and how many messages each has, in the order in which they shall lie."""

    def parse(rows: Sequence[Row]) -> Published:
        return Published(*rows[0])

    return Call(
        "SELECT * FROM penstock.publish_stages(%s::text, %s::text, %s::bigint, %s::bigint[], %s::bigint[], %s::text, "
        "%s::text)",
        (
            writer,
            run,
            epoch,
            [stage_id for stage_id, _ in stages],
            [messages for _, messages in stages],
            *(sent or Sent()),
        ),
        parse,
        True,
    )


def abort(writer: str, run: str, stages: Sequence[int]) -> Call[int]:
    """Give up stages of this run."""
    return Call(
        "SELECT penstock.abort_stages(%s::text, %s::text, %s::bigint[])", (writer, run, list(stages)), scalar, True
    )


# Arrays as PostgreSQL reads them: the driver writes lists item by item, at a microsecond for each.


def _texts(texts: Sequence[str]) -> str:
    # A text of PostgreSQL's holds no NUL.
    quoted = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def _numbers(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
