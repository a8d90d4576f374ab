"""What people who look around are shown: queues in outline, partitions found, and where lag sits."""

from datetime import datetime
from typing import Any

import msgspec


class OutlinedGroup(msgspec.Struct, frozen=True):
    """A group, with what the last sample says of what waits: None where there was none yet.

    `dead_letters` counts up to 10,000.
    """

    name: str
    mode: str
    subscription: str
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    paused: bool
    held_until: datetime | None
    enrolling: bool
    breaker: str | None
    lag: int | None
    depth: int | None
    ready: int | None
    claimed: int | None
    waiting: int | None
    oldest_at: datetime | None
    sampled_at: datetime | None
    times: list[datetime] | None
    lags: list[int] | None
    dead_letters: int


class OutlinedQueue(msgspec.Struct, frozen=True):
    """A queue and its groups, without anything that would have to be counted."""

    name: str
    description: str | None
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    groups: list[OutlinedGroup]


class FoundPartition(msgspec.Struct, frozen=True):
    """A partition and, where a group was named and has begun it, that group's place in it."""

    name: str
    partition_id: int
    priority: int
    created_at: datetime
    floor: int
    head: int
    newest_at: datetime | None
    committed: int | None
    lag: int | None
    state: str | None
    attempt: int | None
    due_at: datetime | None
    last_error: str | None


class FoundPartitions(msgspec.Struct, frozen=True):
    """A page of partitions: `looked` were visited, and there may be more behind `looked_to`."""

    partitions: list[FoundPartition]
    looked: int
    looked_to: str | None


class LagCell(msgspec.Struct, frozen=True):
    """One cell of a map of lag: how many partitions of it have lag, how much together, and which has most."""

    cell: int
    partitions: int
    lag: int
    worst: str
    worst_lag: int


class TotalPoint(msgspec.Struct, frozen=True):
    """What all clients together have counted of something within one step of time."""

    bucket: datetime
    metric: str
    total: int
