"""What callers may give instead of a text or a number: a `timedelta` for seconds, a number or a UUID for a name."""

from datetime import timedelta
from typing import TypeVar
from uuid import UUID

Seconds = float | timedelta
Name = str | int | UUID

T = TypeVar("T")
_NAMES = (int, UUID)


def seconds(given: T | timedelta) -> T | float:
    """Return a length of time in seconds; whatever else is given stays as it is, for others to judge."""
    return given.total_seconds() if isinstance(given, timedelta) else given


def as_text(given: T | int | UUID) -> T | str:
    """Return the name of a partition, or a key, as text: 7 is '7'."""
    # The commonest first, as every push comes here.
    if given is None or type(given) is str:
        return given
    if isinstance(given, _NAMES) and not isinstance(given, bool):
        return str(given)
    return given  # type: ignore[return-value]
