"""What operators are shown: queues, partitions, groups, claims, dead letters, and the results of looking after them."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue: what somebody set (`config`), what holds (`settings`), and how much it has."""

    name: str
    description: str | None
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    partitions: int
    messages: int
    dropped: int
    newest_at: datetime | None


class PartitionInfo(msgspec.Struct, frozen=True):
    """A partition and its positions: all below `floor` is dropped, `head` is the next offset."""

    name: str
    partition_id: int
    priority: int
    created_at: datetime
    floor: int
    head: int
    newest_at: datetime | None

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return self.head - self.floor


class MaintenanceResult(NamedTuple):
    """What one chunk of maintenance did, and where the next one begins (None: the pass is complete)."""

    visited: int
    dropped_segments: int
    dropped_messages: int
    merged_segments: int
    next_partition: int | None


class ScheduledInfo(msgspec.Struct, frozen=True):
    """What one push gave to one partition and is not due yet; a large push has several.

    `preview` is the beginning of the first message, None where its value is null.
    """

    scheduled_id: int
    queue: str
    partition: str
    due_at: datetime
    created_at: datetime
    count: int
    size: int
    preview: bytes | None


class GroupInfo(msgspec.Struct, frozen=True):
    """A group: what waits (`lag`, `depth`), what is held, since when, and what is dead.

    Of a group that conflates, `effective_lag` is what will be delivered of the lag. `held_until`: nothing is delivered
    until then, because a circuit breaker is open. Where very many partitions wait, what waits is not counted anew: it
    is as it was at `sampled_at`, or, before the first sample, `at_least` so much.
    """

    queue: str
    name: str
    mode: str
    subscription: str
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    lag: int
    depth: int
    ready: int
    claimed: int
    waiting: int
    enrolling: bool
    oldest_since: datetime | None
    dead_letters: int
    effective_lag: int
    paused: bool
    held_until: datetime | None
    sampled_at: datetime | None = None
    at_least: bool = False


class ClaimInfo(msgspec.Struct, frozen=True):
    """A claim that is held now. Whoever knows the lease id can settle it: only admins are told."""

    queue: str
    group: str
    partition: str
    group_id: int
    partition_id: int
    lease_id: UUID | None
    consumer: str | None
    attempt: int
    start: int
    stop: int
    acquired_at: datetime
    expires_at: datetime
    shared: bool


class DeadLetterInfo(msgspec.Struct, frozen=True):
    """A message that exhausted its attempts in a group, with a copy of its own."""

    dead_letter_id: int
    group: str
    partition: str
    offset: int
    message_id: UUID
    timestamp: datetime
    value: bytes | None
    key: str | None
    headers: dict[str, str] | None
    reason: str
    attempts: int
    first_error: str | None
    last_error: str | None
    consumer: str | None
    died_at: datetime
    traceback: str | None = None


class MessageState(msgspec.Struct, frozen=True):
    """What a message is to one group: waiting, in flight, delayed, retrying, done, dead, cancelled or dropped.

    Of a group with a window in Valkey: queued (it is there), or cold queued instead of waiting.

    `attempt` counts the deliveries that count. `due_at` is when a lease or a wait ends. A message that is in flight may
    have been cancelled, too. `progress` and `note` are what its handler noted.
    """

    group: str
    state: str
    attempt: int
    due_at: datetime | None
    consumer: str | None
    error: str | None
    dead_letter_id: int | None
    cancelled_at: datetime | None
    progress: float | None
    note: str | None
    noted_at: datetime | None


class DeadReason(msgspec.Struct, frozen=True):
    """How many dead letters a group has for one reason."""

    group: str
    reason: str
    letters: int
    first_died_at: datetime
    last_died_at: datetime


class SeekResult(NamedTuple):
    """What a chunk of a seek did, or would do."""

    visited: int
    moved: int
    redelivered: int
    skipped: int
    revoked: int
    busy: int
    next_partition: int | None


class SweepResult(NamedTuple):
    """What a sweep did, when the next timer is due (if soon), where the next sweep may begin (if this one saw all).

    `due_in` is how many seconds the next timer is away, by the server's clock.
    """

    woken: int
    trimmed: int
    enrolled: int
    next_due: datetime | None
    swept_to: datetime | None
    due_in: float | None = None


class ResyncResult(NamedTuple):
    """What a chunk of a resync repaired."""

    visited: int
    repaired: int
    busy: int
    next_partition: int | None


class FailingTimer(NamedTuple):
    """A timer that the sweep could not fire and put off: what it is, since when, how often, and what went wrong."""

    kind: str
    queue: str | None
    group: str | None
    partition: str | None
    place: int | None
    since: datetime
    failures: int
    retry_at: datetime
    sqlstate: str
    error: str


class Check(msgspec.Struct, frozen=True):
    """One check of `verify`: how many violate it. All must be 0."""

    name: str
    violations: int
    meaning: str


class Transition(msgspec.Struct, frozen=True):
    """One step in the life of a partition in a group."""

    version: int
    at: datetime
    state: str
    committed: int
    claimed_to: int
    skipped: int
    attempt: int
    due_at: datetime | None
    lease_id: UUID | None
    consumer: str | None
    error: str | None
