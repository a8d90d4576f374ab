"""Schedules: what is declared, what a broker keeps of it, and what is to be done when slots are due."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from penstock.broker.arguments import Name, as_text
from penstock.broker.messages import encode
from penstock.broker.names import check_moment, check_names, check_new_names
from penstock.broker.packing import pack_values
from penstock.broker.slots import Slots, cron_fields, interval, interval_text, slots, zone
from penstock.errors import InvalidInput

MISSED = ("skip", "last", "all")
# What penstock itself says in the headers of a message that a schedule pushed.
SLOT_HEADER = "penstock-slot"
NAME_HEADER = "penstock-schedule"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as somebody declared it: when its slots are, and what it pushes at each.

    `spec` is an interval in words or a cron expression, as `kind` says. Make one with `every` or `cron`. One that was
    read may be of another version, or written in SQL: nothing says that this program understands it.
    """

    name: str
    kind: str
    spec: str
    tz: str
    start: datetime | None
    queue: str
    value: bytes | None
    partition: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    missed: str = "last"

    @property
    def slots(self) -> Slots:
        """The moments at which it is to push."""
        return slots(self.kind, self.spec, self.tz, self.start)

    @property
    def words(self) -> str:
        """When it pushes, for a person."""
        return self.slots.words

    def same_slots(self, other: "Schedule") -> bool:
        """Say whether both have the same slots."""
        return (self.kind, self.spec, self.tz, self.start) == (other.kind, other.spec, other.tz, other.start)


def schedule_every(
    every: Any, *, queue: str, value: Any, name: str | None = None, start: datetime | None = None, **push: Any
) -> Schedule:
    """Return a schedule with a slot every so often."""
    check_moment(start)
    try:
        began = None if start is None else start.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"start is {start!r}, which is not in the calendar in UTC") from None
    return _schedule("every", interval_text(interval(every)), "UTC", began, queue, value, name, **push)


def schedule_cron(
    cron: str, *, queue: str, value: Any, name: str | None = None, tz: str = "UTC", **push: Any
) -> Schedule:
    """Return a schedule with the slots of a cron expression in a time zone."""
    fields = cron_fields(cron)
    zone(tz)
    return _schedule("cron", fields, tz, None, queue, value, name, **push)


def _schedule(
    kind: str,
    spec: str,
    tz: str,
    start: datetime | None,
    queue: str,
    value: Any,
    name: str | None,
    partition: Name | None = None,
    key: Name | None = None,
    headers: Mapping[str, str] | None = None,
    missed: str = "last",
) -> Schedule:
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidInput(f"headers must be a mapping of texts to texts, and {headers!r:.100} is not")
    made = Schedule(
        queue if name is None else name,
        kind,
        spec,
        tz,
        start,
        queue,
        encode(value),
        as_text(partition),
        as_text(key),
        None if not headers else dict(headers),
        missed,
    )
    check_schedule(made)
    return made


def check_schedule(given: Schedule) -> None:
    """Refuse a schedule that could not be kept, or whose messages could not be pushed."""
    check_new_names(given.queue)
    check_schedule_name(given.name)
    if given.partition is not None:
        check_new_names(given.queue, given.partition)
    if given.key is not None and (not isinstance(given.key, str) or not given.key):
        raise InvalidInput(f"a key must be a text of at least one character, and {given.key!r} is not")
    check_moment(given.start)
    if given.missed not in MISSED:
        raise InvalidInput(f"missed is {given.missed!r} but must be one of 'skip', 'last' and 'all'")
    for name in (SLOT_HEADER, NAME_HEADER):
        if name in (given.headers or {}):
            raise InvalidInput(f"the header {name} is set by the schedule itself: leave it out")
    # Packed as a push would pack it, so that what cannot be pushed is refused when it is declared.
    pack_values([given.value], given.key, given.headers)


def check_schedule_name(name: str) -> None:
    """Refuse what cannot be the name of a schedule."""
    check_names(name, what=("name",))
    if not name or len(name.encode()) > 255 or _CONTROL.search(name):
        raise InvalidInput(f"the name of a schedule must have 1 to 255 bytes and no control characters: {name!r:.100}")


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule as the broker keeps it.

    All slots up to `done_to` are done: pushed, or left out. `next_at` is the first one after it, None if there is none.
    `last_slot` is the latest one that was pushed, `last_at` when that was, and `last_id` the message. `declared` is
    false for one that its file declared before and declares no more: it goes on all the same. `error` is why the last
    try to push failed. `revision` counts the changes of the definition.
    """

    schedule: Schedule
    source: str
    origin: str | None
    paused: bool
    declared: bool
    undeclared_at: datetime | None
    done_to: datetime
    next_at: datetime | None
    last_slot: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    error: str | None
    failed_at: datetime | None
    revision: int
    created_at: datetime
    changed_at: datetime

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.schedule.name

    def is_defined_as(self, schedule: Schedule, source: str, origin: str | None) -> bool:
        """Say whether it is defined like this, by the same."""
        return (self.schedule, self.source, self.origin) == (schedule, source, origin)

    @property
    def seen(self) -> "Seen":
        """What a change of it must name."""
        return Seen(self.name, self.revision, self.done_to)

    @property
    def problem(self) -> str | None:
        """Why this program cannot tell its slots; None where it can."""
        try:
            _ = self.schedule.slots
        except InvalidInput as error:
            return str(error)
        return None

    @property
    def words(self) -> str:
        """When it pushes, for a person: as it was written, where this program cannot read that."""
        schedule = self.schedule
        return schedule.words if self.problem is None else f"{schedule.kind} {schedule.spec} ({schedule.tz})"


class Seen(NamedTuple):
    """What a caller saw of a schedule: whoever changes it must have seen how it is. Revision 0: there was none."""

    name: str
    revision: int
    done_to: datetime | None


class Schedules(NamedTuple):
    """Schedules, and what time it is where they are kept."""

    now: datetime
    found: list[ScheduleInfo]


class DueSchedules(NamedTuple):
    """The schedules with a slot that is due, what time it is, and when the next slot of all others is due."""

    now: datetime
    found: list[ScheduleInfo]
    next_at: datetime | None


class Fired(msgspec.Struct, frozen=True):
    """What came of a try to fire: 'fired'; 'stale', where somebody else did or the schedule changed; 'busy'."""

    outcome: str
    partition: str | None = None
    partition_id: int | None = None
    first_offset: int | None = None
    count: int = 0
    timestamp: datetime | None = None
