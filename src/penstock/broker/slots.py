"""The slots of a schedule: the moments at which it is to push a message, by an interval or by a cron expression.

A slot is an instant. On the days when clocks change a cron expression means what it means to Debian's cron, which
cronsim follows: a fixed time in the gap is made up for when the gap ends, and one that exists twice counts the first
time; an expression whose minutes or hours begin with `*` goes by instants, through the gap and through both hours.
"""

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.arguments import seconds
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# A Monday, so that weeks begin with one. Intervals that divide a day begin at midnight UTC.
_ORIGIN = datetime(1970, 1, 5, tzinfo=UTC)
_UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_SHORT = {"w": "week", "d": "day", "h": "hour", "hr": "hour", "m": "minute", "min": "minute", "s": "second"}
_SHORT |= {"sec": "second", "hrs": "hour", "mins": "minute", "secs": "second"}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*(?:,|and)?", re.ASCII)
_LONGEST_TEXT = 255
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=3660)
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# How far to look back for the latest slots of a cron expression: further and further, because it only counts forwards.
_LOOKS = tuple(timedelta(minutes=2 * 8**step) for step in range(10))


class Slots(Protocol):
    """A sequence of instants, from the past into the future."""

    @property
    def words(self) -> str:
        """What it is, for a person."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after a moment; None if there is none for fifty years."""

    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:
        """Return the slots after one moment and not after another, in order: the latest ones if they are too many."""


def slots(kind: str, spec: str, tz: str = "UTC", start: datetime | None = None) -> Slots:
    """Return the slots of a schedule: `kind` is 'every' or 'cron'."""
    if kind == "every":
        return Every(interval(spec), start)
    if kind == "cron":
        return Cron(spec, tz)
    raise InvalidInput(f"the kind of a schedule is 'every' or 'cron', and {kind!r} is neither")


class Every:
    """Slots at a fixed distance: those of 5 minutes are at 00:00, 00:05, … UTC, or follow from `start`."""

    def __init__(self, step: timedelta, start: datetime | None = None) -> None:
        self._step = step
        self._start = start
        self._origin = _ORIGIN if start is None else start

    @property
    def words(self) -> str:  # noqa: D102
        begin = "" if self._start is None else f", from {self._start.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"every {interval_text(self._step)}{begin}"

    def after(self, moment: datetime) -> datetime | None:  # noqa: D102
        return self._slot(self._number(moment) + 1)

    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:  # noqa: D102
        last = self._number(upto)
        first = max(self._number(after) + 1, last - limit + 1)
        return [slot for number in range(first, last + 1) if (slot := self._slot(number)) is not None]

    def _number(self, moment: datetime) -> int:
        """Return the number of the last slot that is not after a moment."""
        number = (moment - self._origin) // self._step
        return number if self._start is None else max(number, -1)

    def _slot(self, number: int) -> datetime | None:
        try:
            return self._origin + number * self._step
        except OverflowError:
            return None


class Cron:
    """The slots of a cron expression in a time zone."""

    def __init__(self, spec: str, tz: str) -> None:
        self._spec = cron_fields(spec)
        self._tz = tz
        self._zone = zone(tz)

    @property
    def words(self) -> str:  # noqa: D102
        return f"{_explained(self._spec)} ({self._tz})"

    def after(self, moment: datetime) -> datetime | None:  # noqa: D102
        return next(self._from(moment), None)

    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:  # noqa: D102
        for look in _LOOKS:
            begin = max(after, upto - look)
            found = deque(takewhile(lambda slot: slot <= upto, self._from(begin)), maxlen=limit)
            if len(found) == limit or begin == after:
                return list(found)
        return list(deque(takewhile(lambda slot: slot <= upto, self._from(after)), maxlen=limit))

    def _from(self, moment: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        try:
            for local in CronSim(self._spec, moment.astimezone(self._zone)):
                slot = local.astimezone(UTC)
                # Within an hour that exists twice, cronsim begins with the first one even where that is over.
                if slot > moment:
                    yield slot
        except (OverflowError, ValueError):
            # The end of the calendar.
            return


def interval(given: Any) -> timedelta:
    """Return an interval: '5 minutes', '1 hour 30 minutes', a timedelta, or seconds."""
    length = seconds(given)
    try:
        if isinstance(length, str):
            step = timedelta(seconds=_parsed(length))
        elif isinstance(length, int | float) and not isinstance(length, bool):
            step = timedelta(seconds=length)
        else:
            raise InvalidInput(f"{given!r} is not an interval; {_INTERVALS}")
    except (OverflowError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{given!r:.100} is not an interval that can be counted; {_INTERVALS}") from None
    if not _SHORTEST <= step <= _LONGEST:
        raise InvalidInput(f"the interval {given!r:.100} must be from 1 second to 3660 days")
    return step


_INTERVALS = "say '5 minutes', '1 hour 30 minutes', a timedelta, or a number of seconds"


def _parsed(text: str) -> float:
    if len(text) > _LONGEST_TEXT:
        raise InvalidInput(f"an interval of {len(text)} characters is too long; {_INTERVALS}")
    rest, total = text.strip().lower(), 0.0
    # 'day' is one day, as in 'every day'.
    if rest in _UNITS:
        rest = f"1 {rest}"
    while rest:
        part = _PART.match(rest)
        unit = part and (_SHORT.get(part[2]) or part[2].removesuffix("s"))
        if part is None or unit not in _UNITS:
            calendar = "month" in rest or "year" in rest
            advice = "months and years differ in length: use cron" if calendar else _INTERVALS
            raise InvalidInput(f"{text!r} is not an interval; {advice}")
        total += float(part[1]) * _UNITS[unit]
        rest = rest[part.end() :].strip()
    return total


def interval_text(step: timedelta) -> str:
    """Return an interval in words, which `interval` reads: '1 hour 30 minutes'."""
    left, fraction = divmod(step // timedelta(microseconds=1), 1_000_000)
    parts = []
    for unit, size in _UNITS.items():
        number, left = divmod(left, size) if unit != "second" else (left, 0)
        # 7 days is a week, and 8 days are not a week and a day.
        if unit == "week" and (left or fraction):
            left += number * size
            continue
        text = str(number)
        if unit == "second" and fraction:
            text = f"{number}.{fraction:06}".rstrip("0")
        if text != "0":
            parts.append(f"{text} {unit}" if text == "1" else f"{text} {unit}s")
    return " ".join(parts)


def cron_fields(spec: str) -> str:
    """Return a cron expression of five fields in its plain form; refuse what is none, or never comes true."""
    if not isinstance(spec, str) or len(spec) > _LONGEST_TEXT:
        raise InvalidInput(f"{spec!r:.100} is not a cron expression; {_CRONS}")
    return _plain_cron(spec)


_CRONS = "the fields are minute, hour, day of month, month and day of week, as in '0 9 * * MON-FRI'"


@lru_cache(maxsize=256)
def _plain_cron(spec: str) -> str:
    from cronsim import CronSim, CronSimError

    plain = _ALIASES.get(spec.strip().lower(), " ".join(spec.upper().split()))
    if len(plain.split()) != 5:
        raise InvalidInput(f"the cron expression {spec!r} has {len(plain.split())} fields and needs 5; {_CRONS}")
    try:
        first = next(CronSim(plain, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except (CronSimError, ValueError, AssertionError, RecursionError) as error:
        said = f": {str(error).lower()}" if str(error) else ""
        raise InvalidInput(f"{spec!r} is not a cron expression{said}; {_CRONS}") from None
    if first is None:
        raise InvalidInput(f"the cron expression {spec!r} has no date in fifty years")
    return plain


@lru_cache(maxsize=256)
def _explained(plain: str) -> str:
    from cronsim import CronSim

    text = CronSim(plain, datetime(2000, 1, 1, tzinfo=UTC)).explain()
    return text[:1].lower() + text[1:]


def zone(name: str) -> "ZoneInfo":
    """Return a time zone by its name, such as Europe/Berlin; refuse one that is not in the database of zones."""
    from zoneinfo import ZoneInfo

    # `localtime` is whatever the machine says: two workers would differ.
    if not isinstance(name, str) or not name or name.lower() == "localtime":
        raise InvalidInput(f"{name!r} is not a time zone; {_ZONES}")
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise InvalidInput(f"there is no time zone {name!r:.100}; {_ZONES}") from None


_ZONES = "use a name of the IANA database, such as Europe/Berlin or UTC"
