"""What is to be done with a schedule whose slots are due. Decided here, from its state and the time alone."""

from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.broker.packing import MAX_SEGMENT_BYTES
from penstock.broker.schedules import ScheduleInfo

# A slot that is later than this was missed.
LATE = timedelta(minutes=1)
# With missed='all', no more than the latest so many are made up for.
MOST_MISSED = 1000
# Roughly what headers take per message.
_ENVELOPE = 200


class Firing(NamedTuple):
    """The slots to push now, up to where all are done then, and the next slot."""

    slots: list[datetime]
    done_to: datetime
    next_at: datetime | None


def plan(info: ScheduleInfo, now: datetime, most: int = MOST_MISSED) -> Firing:
    """Return what to do with a schedule: nothing but its next slot where none is due.

    Of slots that are due at the same time all but the latest were missed, and so was one that is over a minute late.
    Where all are to be pushed, `most` is how many at a time.
    """
    schedule = info.schedule
    slots = schedule.slots
    # Computed again: the rules of its time zone may have changed since `next_at` was.
    due = slots.latest(info.done_to, now, MOST_MISSED if schedule.missed == "all" else 1)
    if not due:
        return Firing([], info.done_to, slots.after(info.done_to))
    if schedule.missed == "all":
        # A transaction holds one segment of messages; the rest is due at once.
        size = _ENVELOPE + len(schedule.value or b"") + len(str(schedule.headers))
        several = max(1, min(most, MAX_SEGMENT_BYTES // size))
        return Firing(due[:several], due[:several][-1], slots.after(due[:several][-1]))
    latest = due[-1]
    missed = schedule.missed == "skip" and now - latest > LATE
    return Firing([] if missed else [latest], latest, slots.after(latest))


def onwards(info: ScheduleInfo, now: datetime) -> Firing:
    """Return where a schedule goes on that was paused: with the first slot from now on."""
    done_to = max(now, info.done_to)
    return Firing([], done_to, info.schedule.slots.after(done_to))
