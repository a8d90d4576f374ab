"""Flows: what is registered of them, their status, and the messages at which they fail."""

from datetime import datetime
from typing import NamedTuple

import msgspec


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow and its status: `warm` is admitted to an epoch and not published, `cold` the rest of its `lag`.

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
    heartbeat_at: datetime | None
    late_rows: int


class ActionInfo(msgspec.Struct, frozen=True):
    """An action of a flow: the class that does it, and the plugin (distribution:version) that brings the class.

    `warm` and `cold` are what it has still to do. The actions of a Spark flow are one query, so they have the same
    before them. An action that workers run has the queue of its items, and the one that it pushes to, its `output`.
    """

    flow: str
    flow_type: str
    action: str
    action_class: str
    plugin: str
    registered_at: datetime
    warm: int
    cold: int
    queue: str | None = None
    output: str | None = None


class RegisteredFlow(NamedTuple):
    """What is kept of a flow: of a shape and a checkpoint with which it has published already, those."""

    shape: str
    checkpoint: str
    writer: str | None
    paused: bool


class FlowHolder(NamedTuple):
    """Who holds a flow, and whether it is to pause."""

    holder: str
    paused: bool


class FlowStatus(NamedTuple):
    """The status of a flow, as its heartbeat says it."""

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


class PoisonMessage(NamedTuple):
    """A message at which a step of a flow fails."""

    partition_id: int
    offset: int
    reason: str
    error: str | None


class EpochRange(NamedTuple):
    """What an epoch reads of one partition."""

    partition_id: int
    queue: str
    partition: str
    start: int
    stop: int
