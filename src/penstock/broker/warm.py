"""The warm tier in words: windows of groups in Valkey, and what waits there or in PostgreSQL alone."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec


class WarmGroup(msgspec.Struct, frozen=True):
    """A group whose setting `warm` is on, and its window.

    `obstacle` says why PostgreSQL alone serves it at present. `state` is 'warm', 'cold' (there is more than the window
    holds), 'leaving' (the window is being given back) or 'away' (Valkey cannot be used), as its dispatcher said last;
    None where there never was one.
    """

    queue: str
    name: str
    group_id: int
    obstacle: str | None
    dispatcher: str | None
    live: bool | None
    epoch: int | None
    state: str | None
    since: datetime | None
    items: int | None
    size: int | None
    transitions: int | None
    capacity: int


class WarmHold(msgspec.Struct, frozen=True):
    """What a dispatcher is told by a heartbeat; without an epoch the lease is another's."""

    epoch: int | None
    obstacle: str | None
    mode: str
    capacity: int
    most_bytes: int
    refill_below: float
    again_at: float
    lease_time: float
    longest_lease: float


class FailedPart(NamedTuple):
    """A part of a claim that a worker was given, from `start` up to and without `stop`; `ahead`: it had not begun."""

    partition_id: int
    lease_id: UUID
    start: int
    stop: int
    ahead: bool = False


class WorkRow(msgspec.Struct, frozen=True):
    """What waits for a group: `tier` is 'warm' for what is in Valkey, and 'cold' for what is in PostgreSQL alone.

    Flow and action are None where the group is not that of an action. `oldest_did` is the id of the message that
    entered the flow.
    """

    tier: str
    queue: str
    group: str
    action_class: str | None
    flow: str | None
    flow_type: str
    action: str | None
    count: int
    oldest_at: datetime | None
    oldest_did: str | None
