"""`every` and `cron`: schedules that are declared in code.

A worker that loads a file defines all schedules that were declared meanwhile: see `AsyncClient.declare_schedules`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from penstock.broker.arguments import Name
from penstock.broker.schedules import Schedule, schedule_cron, schedule_every
from penstock.errors import InvalidInput

_declared: dict[str, Schedule] = {}


def every(
    interval: str | float | timedelta,
    *,
    queue: str,
    value: Any = None,
    name: str | None = None,
    partition: Name | None = None,
    key: Name | None = None,
    headers: Mapping[str, str] | None = None,
    start: datetime | None = None,
    missed: str = "last",
) -> Schedule:
    """Declare a schedule that pushes `value` to `queue` every so often: '5 minutes', a timedelta, or seconds.

    Its slots are the multiples of the interval: every 5 minutes is at 9:00, 9:05 and so on; weeks begin on Monday, days
    at midnight UTC. With `start` they follow from that time. The name is that of the queue unless it is given; a
    schedule of that name is replaced. `missed` says what becomes of slots that nobody was there for: 'last' pushes the
    latest of them, 'all' pushes up to a thousand, 'skip' none.
    """
    options = {"partition": partition, "key": key, "headers": headers, "missed": missed}
    return _declare(schedule_every(interval, queue=queue, value=value, name=name, start=start, **options))


def cron(
    expression: str,
    *,
    queue: str,
    value: Any = None,
    tz: str = "UTC",
    name: str | None = None,
    partition: Name | None = None,
    key: Name | None = None,
    headers: Mapping[str, str] | None = None,
    missed: str = "last",
) -> Schedule:
    """Declare a schedule that pushes `value` to `queue` at the times of a cron expression, such as '0 9 * * MON-FRI'.

    `tz` is a time zone such as Europe/Berlin; the times follow its clocks. The other arguments are those of `every`.
    """
    options = {"partition": partition, "key": key, "headers": headers, "missed": missed}
    return _declare(schedule_cron(expression, queue=queue, value=value, name=name, tz=tz, **options))


def declared_schedules() -> list[Schedule]:
    """Return all schedules that this process has declared so far, in order."""
    return list(_declared.values())


def forget_declared() -> None:
    """Forget what was declared: for whoever loads a file again."""
    _declared.clear()


def _declare(schedule: Schedule) -> Schedule:
    known = _declared.setdefault(schedule.name, schedule)
    # The same file may be loaded twice, as a script and as a module.
    if known != schedule:
        raise InvalidInput(
            f"there are two schedules named {schedule.name!r}: {known.words} to {known.queue!r}, and {schedule.words} "
            f"to {schedule.queue!r}; give each a name"
        )
    return schedule
