# Generated from async_scheduler.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Who fires schedules: any process that runs workers or maintenance. They need not know of each other.

A scheduler asks the broker what is due and what time it is there, decides, and sends what it decided; the broker takes
it only where nobody else was faster. Its caller waits between rounds: `next_in` says for how long. A round in which
nothing is due is one read.
"""

import logging
import threading
import time
from datetime import datetime
from typing import NamedTuple

from penstock.broker.arguments import storable
from penstock.broker.operations.schedules import FailSchedule, FindDueSchedules, FireSchedule, ListSchedules
from penstock.broker.schedules import DueSchedules, Fired, ScheduleInfo
from penstock.broker.transport import Transport
from penstock.errors import PenstockError, RateLimited, Unavailable
from penstock.scheduling.firing import plan

log = logging.getLogger("penstock.scheduling")

# Schedules that others define are noticed after this many seconds at the latest.
LONGEST_WAIT = 5.0
# Schedules that a round looks at.
_AT_ONCE = 100
# Somebody else is just firing.
_SOON = 0.5
# A schedule that fails is tried again after a second, and then less and less often.
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0


class FiredSchedules(NamedTuple):
    """What one round did: how many messages it pushed, to which queues, and in how many seconds the next one is due."""

    pushed: int
    queues: tuple[str, ...]
    next_in: float


class Scheduler:
    """Fires schedules, a round at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._round = threading.Lock()
        # The rules of time zones come with this process, so what older ones computed is looked at once.
        self._aligned = False
        # By name: when to try again, and how long to wait after that.
        self._failing: dict[str, tuple[float, float]] = {}

    def run(self) -> FiredSchedules:
        """Fire what is due, and say when to come again."""
        with self._round:
            if not self._aligned:
                self._align()
                self._aligned = True
            return self._fire_all(self.due())

    def due(self) -> DueSchedules:
        """Return the schedules with a slot that is due, but for those that failed just now: they hold up no others."""
        now = time.monotonic()
        # One whose time has come, and that is due no more, is forgotten here.
        waiting = {name: (at, wait) for name, (at, wait) in self._failing.items() if at > now}
        found = self._transport.run(FindDueSchedules(_AT_ONCE, list(waiting)))
        again = {info.name for info in found.found}
        self._failing = {name: each for name, each in self._failing.items() if name in waiting or name in again}
        return found

    def fire(self, info: ScheduleInfo, now: datetime) -> Fired:
        """Push what is due of a schedule, once, however many schedulers try."""
        # A queue may take fewer messages at once than there are slots; one it takes, if any.
        slots, done_to, next_at = plan(info, now, 1) if info.name in self._failing else plan(info, now)
        return self._transport.run(FireSchedule(info.seen, slots, done_to, next_at))

    def _fire_all(self, due: DueSchedules) -> FiredSchedules:
        pushed, queues, wait = 0, dict[str, None](), LONGEST_WAIT
        if due.next_at is not None:
            wait = min(wait, (due.next_at - due.now).total_seconds())
        for info in due.found:
            try:
                fired = self.fire(info, due.now)
            except Unavailable:
                raise
            except PenstockError as error:
                self._failed(info, error)
                continue
            self._failing.pop(info.name, None)
            if fired.count:
                pushed += fired.count
                queues[info.schedule.queue] = None
            # It may have another slot that is due by now.
            wait = min(wait, _SOON if fired.outcome == "busy" else 0.0)
        if len(due.found) == _AT_ONCE:
            wait = 0.0
        wait = min([wait, *(at - time.monotonic() for at, _ in self._failing.values())])
        return FiredSchedules(pushed, tuple(queues), max(wait, 0.0))

    def _failed(self, info: ScheduleInfo, error: PenstockError) -> None:
        """Note a failure, and when to try again."""
        _, wait = self._failing.get(info.name, (0.0, _FIRST_RETRY))
        if isinstance(error, RateLimited):
            wait = min(max(error.retry_after, 0.0), _LAST_RETRY)
        self._failing[info.name] = (time.monotonic() + wait, min(max(2 * wait, _FIRST_RETRY), _LAST_RETRY))
        log.warning("schedule %r cannot push to queue %r: %s", info.name, info.schedule.queue, error)
        self._transport.run(FailSchedule(info.name, storable(str(error))))

    def _align(self) -> None:
        """Move slots that were computed by other rules of a time zone, or of none that this program knows."""
        for info in self._transport.run(ListSchedules()).found:
            if info.paused or info.schedule.kind != "cron" or info.schedule.tz == "UTC":
                continue
            try:
                next_at = info.schedule.slots.after(info.done_to)
                if next_at != info.next_at:
                    self._transport.run(FireSchedule(info.seen, (), info.done_to, next_at))
            except Unavailable:
                raise
            except PenstockError as error:
                # One that this program cannot read is for others.
                log.warning("schedule %r cannot be read here: %s", info.name, error)
