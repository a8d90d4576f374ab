"""The calls of flows: what they are, how they fare, the dead letters of their epochs. Like `calls`, it runs none."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from penstock.postgres.statements.calls import Call, Row, names, nothing, scalar
from penstock.postgres.statements.stage_calls import Published, Sent


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow and how it fares: `warm` is admitted to an epoch and not published, `cold` the rest of its `lag`.

    `late_rows` came behind the watermark of a window, a join or a deduplication, and were dropped by Spark.
    """

    name: str
    flow_type: str
    state: str
    since: datetime | None
    paused: bool
    lag: int
    warm: int
    cold: int
    oldest_since: datetime | None
    rows_per_second: float
    epoch: int | None
    epoch_at: datetime | None
    dead_letters: int
    failures: int
    error: str | None
    retry_at: datetime | None
    sources: list[str]
    outputs: list[str]
    checkpoint: str
    supervisor: str | None
    told_at: datetime | None
    late_rows: int


class ActionInfo(msgspec.Struct, frozen=True):
    """An action of a flow: the class that does it, and the plugin (distribution:version) that brings the class.

    `warm` and `cold` are what it has still to do. The actions of a flow are one query, so they have the same before
    them.
    """

    flow: str
    flow_type: str
    action: str
    action_class: str
    plugin: str
    registered_at: datetime
    warm: int
    cold: int


class Registered(NamedTuple):
    """What is kept of a flow: of a shape and a checkpoint with which it has published already, those."""

    shape: str
    checkpoint: str
    writer: str | None
    paused: bool


class Told(NamedTuple):
    """Who holds a flow, and whether it shall be paused."""

    holder: str
    paused: bool


class Telling(NamedTuple):
    """How a flow fares."""

    state: str
    failures: int = 0
    error: str | None = None
    retry_at: datetime | None = None
    epoch: int | None = None
    rows_per_second: float = 0.0
    late_rows: int = 0


class Letter(NamedTuple):
    """A message that becomes a dead letter.

    `timestamp` and what follows is a copy of the message, where there is one. `row` is the id of the row that failed,
    where it is made of several messages.
    """

    queue: str
    partition: str
    offset: int
    reason: str
    error: str | None
    value: bytes | None = None
    key: str | None = None
    headers: str | None = None
    timestamp: datetime | None = None
    row: str | None = None


class Poison(NamedTuple):
    """A message at which a step of a flow fails."""

    partition_id: int
    offset: int
    reason: str
    error: str | None


def flows() -> Call[list[FlowInfo]]:
    """Describe all flows."""
    return Call(
        "SELECT name, flow_type, state, since, paused, lag, warm, cold, oldest_since, rows_per_second, epoch, epoch_at,"
        " dead_letters, failures, error, retry_at, sources, outputs, checkpoint, supervisor, heartbeat_at, late_rows"
        " FROM penstock.list_flows()",
        (),
        lambda rows: [FlowInfo(*row) for row in rows],
        True,
    )


def actions(flow: str | None) -> Call[list[ActionInfo]]:
    """List the actions of a flow, or of all."""
    return Call(
        "SELECT a.*, f.warm, f.cold FROM penstock.list_actions(%s::text) WITH ORDINALITY"
        " a (flow, flow_type, action, action_class, plugin, registered_at, number)"
        " JOIN penstock.list_flows() f ON f.name = a.flow ORDER BY a.number",
        (flow,),
        lambda rows: [ActionInfo(*row[:6], *row[7:]) for row in rows],
        True,
    )


def register(
    name: str,
    flow_type: str,
    ends: tuple[Sequence[str], Sequence[str]],
    shape: str,
    checkpoint: str,
    actions: Sequence[tuple[str, str, str]],
) -> Call[Registered]:
    """Write a flow, with its sources and outputs, and its actions (name, class, plugin) to the registry."""

    def parse(rows: Sequence[Row]) -> Registered:
        return Registered(*rows[0])

    sources, outputs = map(list, ends)
    return Call(
        "SELECT * FROM penstock.register_flow(%s::text, %s::text, %s::text[], %s::text[], %s::text, %s::text, "
        "%s::text[], %s::text[], %s::text[])",
        (
            *names(name, what=("flow",)),
            flow_type,
            sources,
            outputs,
            shape,
            checkpoint,
            *([a[i] for a in actions] for i in range(3)),
        ),
        parse,
        True,
    )


def reset(name: str, checkpoint: str) -> Call[int]:
    """Let a flow begin with a new checkpoint where it stands; returns how many partitions were busy."""
    return Call(
        "SELECT penstock.reset_flow(%s::text, %s::text)", (*names(name, what=("flow",)), checkpoint), scalar, True
    )


def tell(name: str, teller: str, telling: Telling, *, take_over: bool = False) -> Call[Told]:
    """Say how a flow fares, and hear who holds it and whether it shall pause."""

    def parse(rows: Sequence[Row]) -> Told:
        return Told(*rows[0])

    return Call(
        "SELECT * FROM penstock.heartbeat_flow(%s::text, %s::text, %s::text, %s::integer, %s::text, %s::timestamptz, "
        "%s::bigint, %s::double precision, late_rows => %s::bigint, take_over => %s::boolean)",
        (*names(name, what=("flow",)), teller, *telling, take_over),
        parse,
        True,
    )


def pause(name: str, paused: bool) -> Call[None]:
    """Say that a flow shall pause, or go on."""
    return Call(
        "SELECT penstock.pause_flow(%s::text, %s::boolean)", (*names(name, what=("flow",)), paused), nothing, True
    )


def forget(name: str) -> Call[None]:
    """Remove a flow from the registry."""
    return Call("SELECT penstock.forget_flow(%s::text)", names(name, what=("flow",)), nothing)


def stage_letters(stage: int, group: str, letters: Sequence[Letter], *, of_source: bool) -> Call[None]:
    """Say of messages that they become dead letters with their epoch."""
    return Call(
        "SELECT penstock.stage_dead_letters(%s::bigint, %s::text, %s::text[], %s::text[], %s::bigint[], %s::text[], "
        "%s::text[], %s::boolean, %b::bytea[], %s::text[], %s::text[], %s::timestamptz[], %s::text[])",
        (
            *(stage, group, *([letter[i] for letter in letters] for i in range(5)), of_source),
            *([letter[i] for letter in letters] for i in range(5, len(Letter._fields))),
        ),
        nothing,
        True,
    )


def publish(
    group: str, writer: str, run: str, epoch: int, stages: Sequence[tuple[int, int]], sent: Sent | None = None
) -> Call[Published]:
    """Publish an epoch with its dead letters and the progress of its group."""

    def parse(rows: Sequence[Row]) -> Published:
        return Published(*rows[0][:3])

    return Call(
        "SELECT * FROM penstock.publish_epoch(%s::text, %s::text, %s::text, %s::bigint, %s::bigint[], %s::bigint[], "
        "%s::text, %s::text)",
        (
            group,
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


def positions(queues: Sequence[str], group: str) -> Call[tuple[list[int], list[int]]]:
    """Ask how far a group has read the partitions that it knows."""
    return Call(
        "SELECT * FROM penstock.reader_positions(%s::text[], %s::text)",
        (list(queues), group),
        lambda rows: (rows[0][0] or [], rows[0][1] or []),
        True,
    )


def add_poison(flow: str, places: Sequence[tuple[int, int]], reason: str, errors: Sequence[str | None]) -> Call[None]:
    """Remember messages (partition id and offset) at which a step fails."""
    return Call(
        "SELECT penstock.add_poison(%s::text, %s::bigint[], %s::bigint[], %s::text, %s::text[])",
        (flow, [place[0] for place in places], [place[1] for place in places], reason, list(errors)),
        nothing,
        True,
    )


def find_poison(flow: str, ids: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> Call[list[Poison]]:
    """Ask which messages of some ranges are known to fail."""
    return Call(
        "SELECT * FROM penstock.find_poison(%s::text, %s::bigint[], %s::bigint[], %s::bigint[])",
        (flow, list(ids), list(starts), list(stops)),
        lambda rows: [Poison(*row) for row in rows],
        True,
    )


class Range(NamedTuple):
    """What an epoch reads of one partition."""

    partition_id: int
    queue: str
    partition: str
    start: int
    stop: int


def epoch_ranges(writer: str, run: str) -> Call[list[Range]]:
    """Ask what the epoch reads that a run has begun and not published."""
    return Call(
        "SELECT * FROM penstock.epoch_ranges(%s::text, %s::text)",
        (writer, run),
        lambda rows: [Range(*row) for row in rows],
        True,
    )


def paused() -> Call[set[str]]:
    """Ask which flows shall be paused."""
    return Call("SELECT penstock.paused_flows()", (), lambda rows: set(rows[0][0]), True)
