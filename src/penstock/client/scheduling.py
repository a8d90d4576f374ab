# Generated from async_scheduling.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The part of a synchronous client that has to do with schedules."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from penstock.broker.arguments import Name
from penstock.broker.messages import PushResult
from penstock.broker.operations.schedules import (
    DefineSchedule,
    DeleteSchedule,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
    UndeclareSchedules,
)
from penstock.broker.schedules import Fired, Schedule, ScheduleInfo, Seen, schedule_cron, schedule_every
from penstock.broker.transport import Transport
from penstock.errors import InvalidInput, NotFound, Retryable
from penstock.scheduling.firing import onwards

log = logging.getLogger("penstock.scheduling")

# How often a change is tried where somebody else changes the same schedule, or it fires, at the same moment.
_TRIES = 10


class Schedules:
    """The part of a client that defines schedules, and looks at them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def schedule(
        self,
        name: str,
        queue: str,
        value: Any = None,
        *,
        every: str | float | timedelta | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        start: datetime | None = None,
        partition: Name | None = None,
        key: Name | None = None,
        headers: Mapping[str, str] | None = None,
        missed: str = "last",
    ) -> ScheduleInfo:
        """Push `value` to `queue` at each slot of a schedule: `every` so often, or at the times of a `cron` expression.

        A schedule of this name is changed: at once, and no slot is pushed twice. `tz` is the time zone of `cron`, and
        `start` the first slot of `every`. `missed` says what becomes of slots that nobody was there for: 'last' pushes
        the latest of them, 'all' pushes up to a thousand, 'skip' none. Workers and `penstock maintain` do the pushing.
        """
        push: dict[str, Any] = {"partition": partition, "key": key, "headers": headers, "missed": missed}
        if (every is None) == (cron is None):
            raise InvalidInput("a schedule needs every= or cron=, and not both")
        if cron is None:
            if tz != "UTC":
                raise InvalidInput("tz belongs to cron=: an interval has the same length in every time zone")
            wanted = schedule_every(every, queue=queue, value=value, name=name, start=start, **push)
        else:
            if start is not None:
                raise InvalidInput("start belongs to every=: a cron expression says by itself when it begins")
            wanted = schedule_cron(cron, queue=queue, value=value, name=name, tz=tz, **push)
        return self._define(wanted, "command", None)

    def declare_schedules(self, schedules: Iterable[Schedule], *, origin: str) -> list[ScheduleInfo]:
        """Define the schedules that a program declares with `every` and `cron`; a worker does this when it starts.

        `origin` is the program, such as the name of its file. What it declared before and declares no more is marked as
        such, and goes on until somebody deletes it.
        """
        declared = list(schedules)
        found = [self._define(each, "code", origin) for each in declared]
        for name in self._transport.run(UndeclareSchedules(origin, [each.name for each in declared])):
            log.warning(
                "schedule %r is not declared by %s any more and goes on; end it with: penstock schedule delete %s",
                name,
                origin,
                name,
            )
        return found

    def schedules(self) -> list[ScheduleInfo]:
        """Describe all schedules: what they push and when, where they stand, and their last failure."""
        return self._transport.run(ListSchedules()).found

    def pause_schedule(self, name: str) -> None:
        """Let no slot of a schedule be pushed until it is resumed."""
        self._transport.run(PauseSchedule(name))

    def resume_schedule(self, name: str) -> ScheduleInfo:
        """Let a paused schedule go on with its next slot; those of the pause are not made up for."""
        for _ in range(_TRIES):
            known, now = self._known(name)
            if known is None:
                raise _no_schedule(name)
            if not known.paused:
                return known
            _, done_to, next_at = onwards(known, now)
            self._transport.run(ResumeSchedule(known.seen, done_to, next_at))
        raise _contended(name)

    def run_schedule_now(self, name: str) -> PushResult:
        """Push the message of a schedule now, beside its slots, which stay as they are."""
        known, _ = self._known(name)
        if known is None:
            raise _no_schedule(name)
        return _result(known.schedule.queue, self._transport.run(RunSchedule(name)))

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it has pushed stays. One that is declared in code comes back with its worker."""
        self._transport.run(DeleteSchedule(name))

    def _known(self, name: str) -> tuple[ScheduleInfo | None, datetime]:
        """Return a schedule, if there is one, and what time it is there."""
        schedules = self._transport.run(ListSchedules([name]))
        return (schedules.found[0] if schedules.found else None), schedules.now

    def _define(self, wanted: Schedule, source: str, origin: str | None) -> ScheduleInfo:
        """Write a definition, unless it is there."""
        for _ in range(_TRIES):
            known, now = self._known(wanted.name)
            if known is not None and known.declared and known.is_defined_as(wanted, source, origin):
                return known
            seen = Seen(wanted.name, 0, None) if known is None else known.seen
            if known is not None and known.schedule.same_slots(wanted):
                # Its slots go on: one that is due and not pushed yet is pushed as it is now defined.
                change = DefineSchedule(wanted, seen, source, origin)
            else:
                done_to = now if known is None else max(now, known.done_to)
                change = DefineSchedule(wanted, seen, source, origin, done_to, wanted.slots.after(done_to))
            if self._transport.run(change):
                made, _ = self._known(wanted.name)
                if made is not None:
                    return made
        raise _contended(wanted.name)


def _result(queue: str, fired: Fired) -> PushResult:
    if fired.partition is None or fired.partition_id is None or fired.timestamp is None:
        raise Retryable("the schedule was deleted meanwhile")
    return PushResult(queue, fired.partition, fired.partition_id, fired.first_offset, fired.count, fired.timestamp)


def _no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}; `penstock schedule list` lists those there are")


def _contended(name: str) -> Retryable:
    return Retryable(f"schedule {name!r} is being changed by others again and again; nothing was changed. Run it again")
