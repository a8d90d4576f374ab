"""The warm tier: what the dispatchers of groups with a window in Valkey ask of PostgreSQL, and what waits where."""

from collections.abc import Sequence
from uuid import UUID

from penstock.broker.claims import Claim
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.warm import FailedPart, WarmGroup, WarmHold, WorkRow


class GetDatabaseIdentity(Repeatable[str], frozen=True):
    """Return what tells the database from others, for the names of keys."""


class ListWarmGroups(Repeatable[list[WarmGroup]], frozen=True):
    """List the groups whose setting `warm` is on: who keeps their windows, and how they fare."""


class ListQueuedWork(Repeatable[list[WorkRow]], frozen=True):
    """List what waits for each group, in Valkey and in PostgreSQL alone, with flow, action and action class."""


class HoldWarmLease(Operation[WarmHold | None], frozen=True):
    """Take the lease of a group's window, or extend it; None where there is no such group."""

    group_id: int
    holder: str
    epoch: int | None = None
    hold_for: float = 10.0
    state: str = "warm"
    items: int = 0
    size: int = 0
    longest_lease: float = 0.0
    transitions: int = 0


class ClaimForWindow(Operation[list[Claim] | None], frozen=True):
    """Claim what is next for the window of a group; None where the caller lost its lease, or the group is gone.

    `queue` is the name of the group's queue, for the messages. The others are as in `Pop`.
    """

    group_id: int
    epoch: int
    queue: str
    max_messages: int
    max_partitions: int
    max_bytes: int
    lease: float
    holder: str
    ready_from: Sequence[int] | None = None


class ListWarmClaims(Repeatable[list[tuple[int, UUID]]], frozen=True):
    """List the partition and the lease id of each claim that a group's dispatchers have.

    Of an ordered group only those that nobody has renewed, nor acknowledged anything of, for `quiet_for` seconds.
    """

    group_id: int
    holder: str
    quiet_for: float = 0.0


class ReleaseWarmClaims(Operation[int | None], frozen=True):
    """Give claims back without counting an attempt; None where the caller lost the lease of the window."""

    group_id: int
    epoch: int
    partition_ids: Sequence[int]
    lease_ids: Sequence[UUID]


class FailWarmClaims(Operation[list[str | None]], frozen=True):
    """Say that parts of claims failed, nobody knows at which message; without an error, because a worker's lease ended.

    For each 'retry' or 'dead letter', None where the claim is lost.
    """

    group_id: int
    parts: Sequence[FailedPart]
    error: str | None = None
    reason: str | None = None
    wait: float | None = None
    traceback: str | None = None
