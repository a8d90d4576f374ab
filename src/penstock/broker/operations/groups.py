"""Groups: create, configure, move, list; dead letters; checks and repairs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.arguments import list_of_ids
from penstock.broker.infos import (
    Check,
    ClaimInfo,
    DeadLetterInfo,
    DeadReason,
    FailingTimer,
    GroupInfo,
    ResyncResult,
    SeekResult,
    Transition,
)
from penstock.broker.names import check_group_names, check_names, checked_settings
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.errors import InvalidInput


class CreateGroup(Operation[int], frozen=True):
    """Create a group; the reply is its id."""

    queue: str
    group: str
    mode: str = "ordered"
    subscription: str = "all"
    # From when on it reads, where the subscription is 'time'.
    since: datetime | None = None
    config: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_zone(self.since)
        check_group_names(self.queue, self.group)
        msgspec.structs.force_setattr(self, "config", checked_settings(self.config))

    @classmethod
    def reading(
        cls,
        queue: str,
        group: str,
        mode: str,
        subscription: str | datetime,
        config: Mapping[str, Any] | None = None,
    ) -> "CreateGroup":
        """Create a group that reads from a subscription: 'all', 'new' or a time."""
        if isinstance(subscription, datetime):
            return cls(queue, group, mode, "time", subscription, dict(config or {}))
        return cls(queue, group, mode, subscription, None, dict(config or {}))


class ConfigureGroup(Repeatable[dict[str, Any]], frozen=True):
    """Change a group's settings; the reply is what now holds."""

    queue: str
    group: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)
        msgspec.structs.force_setattr(self, "changes", checked_settings(self.changes))


class PauseGroup(Repeatable[bool], frozen=True):
    """Pause delivery to a group, or resume it; the reply is whether that changed anything."""

    queue: str
    group: str
    paused: bool = True

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)


class DeleteGroup(Operation[None], frozen=True):
    """Delete a group."""

    queue: str
    group: str

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)


class Seek(Operation[SeekResult], frozen=True):
    """Move a group in a chunk of partitions: to an offset, to a time, or to a `position`: 'earliest' or 'latest'."""

    queue: str
    group: str
    partition: str | None = None
    offset: int | None = None
    time: datetime | None = None
    position: str | None = None
    preview: bool = False
    after: int = 0

    def __post_init__(self) -> None:
        _check_zone(self.time)
        check_group_names(self.queue, self.group)

    @classmethod
    def to(
        cls, queue: str, group: str, to: int | str | datetime, partition: str | None, preview: bool, after: int
    ) -> "Seek":
        """Seek to an offset, a time, 'earliest' or 'latest'."""
        match to:
            case bool():
                pass
            case int():
                return cls(queue, group, partition, offset=to, preview=preview, after=after)
            case datetime():
                return cls(queue, group, partition, time=to, preview=preview, after=after)
            case str():
                return cls(queue, group, partition, position=to, preview=preview, after=after)
        raise InvalidInput(f"seek goes to an offset, a time, 'earliest' or 'latest', not to {to!r}")


class GetLag(Repeatable[int], frozen=True):
    """Return how many messages a group has still to acknowledge."""

    queue: str
    group: str

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)


class ListGroups(Repeatable[list[GroupInfo]], frozen=True):
    """Describe the groups of a queue, or all."""

    queue: str | None = None


class ListClaims(Repeatable[list[ClaimInfo]], frozen=True):
    """List the claims that are held now."""

    queue: str | None = None
    group: str | None = None


class GetHistory(Repeatable[list[Transition]], frozen=True):
    """List what happened to a partition in a group, newest first."""

    queue: str
    group: str
    partition: str
    limit: int = 100

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group, self.partition)


class ListDeadLetters(Repeatable[list[DeadLetterInfo]], frozen=True):
    """List dead letters, oldest first; `after` is the last id of the page before."""

    queue: str
    group: str | None = None
    reason: str | None = None
    after: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        check_names(self.queue)


class CountDeadLetters(Repeatable[list[DeadReason]], frozen=True):
    """Count dead letters by reason."""

    queue: str
    group: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue)


class Redrive(Operation[int], frozen=True):
    """Deliver a chunk of dead letters again, to the group that failed; the reply is how many."""

    queue: str
    group: str | None = None
    reason: str | None = None
    ids: Sequence[int] | None = None
    limit: int = 1000

    def __post_init__(self) -> None:
        check_names(self.queue)
        _check_letters(self)


class Discard(Operation[int], frozen=True):
    """Delete a chunk of dead letters; the reply is how many."""

    queue: str
    group: str | None = None
    reason: str | None = None
    ids: Sequence[int] | None = None
    limit: int = 1000

    def __post_init__(self) -> None:
        check_names(self.queue)
        _check_letters(self)


class Verify(Repeatable[list[Check]], frozen=True):
    """Compare state and log."""


class ListFailingTimers(Repeatable[list[FailingTimer]], frozen=True):
    """List the timers that failed and were put off."""


class Resync(Repeatable[ResyncResult], frozen=True):
    """Repair readiness in a chunk of partitions."""

    after: int = 0


def _check_letters(wanted: Redrive | Discard) -> None:
    if wanted.ids is not None:
        msgspec.structs.force_setattr(wanted, "ids", list_of_ids("a dead letter", wanted.ids))


def _check_zone(moment: datetime | None) -> None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidInput(f"{moment!r} has no time zone; say datetime(…, tzinfo=UTC)")
