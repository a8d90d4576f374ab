"""Schedules: define, list, pause, delete them; find those that are due, and fire them.

Slots are computed by the caller, with the time that the broker says: a broker need not know cron expressions. What is
computed is written only where the schedule is still as the caller saw it.
"""

from collections.abc import Sequence
from datetime import datetime

from penstock.broker.names import check_whole
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.schedules import (
    DueSchedules,
    Fired,
    Schedule,
    Schedules,
    Seen,
    check_schedule,
    check_schedule_name,
)
from penstock.errors import InvalidInput


class ListSchedules(Repeatable[Schedules], frozen=True):
    """Describe all schedules, or those that are named; the reply also says what time it is there."""

    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in self.names or ():
            check_schedule_name(name)


class DefineSchedule(Operation[bool], frozen=True):
    """Create a schedule or change it; the reply is whether it was still as it was seen.

    `done_to` and `next_at` are where its slots go on; None for `done_to` leaves both as they are. `origin` is the file
    that declares it, where its source is 'code'.
    """

    schedule: Schedule
    seen: Seen
    source: str
    origin: str | None = None
    done_to: datetime | None = None
    next_at: datetime | None = None

    def __post_init__(self) -> None:
        check_schedule(self.schedule)


class UndeclareSchedules(Operation[list[str]], frozen=True):
    """Mark the schedules that an origin declared before and that are not among these; the reply has their names."""

    origin: str
    declared: Sequence[str]


class FindDueSchedules(Repeatable[DueSchedules], frozen=True):
    """Find schedules with a slot that is due, but for those in `passing`, and when the next one is."""

    limit: int = 100
    passing: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_whole("limit", self.limit)


class FireSchedule(Operation[Fired], frozen=True):
    """Push a message for each of these slots, and go on with `next_at`, all at once or not at all.

    Takes effect only if the schedule is still as it was seen, and is not paused. Without slots it only goes on.
    """

    # Not repeatable by itself, and harmless all the same: a second one finds the schedule changed.
    seen: Seen
    slots: Sequence[datetime]
    done_to: datetime
    next_at: datetime | None

    def __post_init__(self) -> None:
        if list(self.slots) != sorted(set(self.slots)) or (self.slots and self.slots[-1] > self.done_to):
            raise InvalidInput("slots must be in order, each once, and none after done_to")


class RunSchedule(Operation[Fired], frozen=True):
    """Push the message of a schedule now; its slots stay as they are."""

    name: str

    def __post_init__(self) -> None:
        check_schedule_name(self.name)


class PauseSchedule(Repeatable[None], frozen=True):
    """Let no slot of a schedule fire."""

    name: str

    def __post_init__(self) -> None:
        check_schedule_name(self.name)


class ResumeSchedule(Operation[bool], frozen=True):
    """Let a paused schedule go on with `next_at`; the reply is whether it was still as it was seen."""

    seen: Seen
    done_to: datetime
    next_at: datetime | None


class FailSchedule(Operation[None], frozen=True):
    """Note why a schedule could not fire."""

    name: str
    error: str


class DeleteSchedule(Operation[None], frozen=True):
    """Delete a schedule; what it has pushed stays."""

    name: str

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
