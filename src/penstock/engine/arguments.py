"""What callers may give instead of a text or a number: a `timedelta` for seconds, a number or a UUID for a name."""

from datetime import timedelta
from typing import TypeVar, overload
from uuid import UUID

from penstock.errors import InvalidInput

Seconds = float | timedelta
Name = str | int | UUID

T = TypeVar("T")
_NAMES = (int, UUID)


def seconds(given: T | timedelta) -> T | float:
    """Return a length of time in seconds; whatever else is given stays as it is, for others to judge."""
    return given.total_seconds() if isinstance(given, timedelta) else given


@overload
def positive(name: str, given: Seconds) -> float: ...
@overload
def positive(name: str, given: Seconds | None) -> float | None: ...
def positive(name: str, given: Seconds | None) -> float | None:
    """Return a length of time in seconds; refuse one that is not above 0."""
    length = seconds(given)
    if length is not None and not (isinstance(length, int | float) and length > 0):
        raise InvalidInput(f"{name} is {given!r} but must be more than 0 seconds")
    return length


def as_text(given: T | int | UUID) -> T | str:
    """Return the name of a partition, or a key, as text: 7 is '7'."""
    # The commonest first, as every push comes here.
    if given is None or type(given) is str:
        return given
    if isinstance(given, _NAMES) and not isinstance(given, bool):
        return str(given)
    return given  # type: ignore[return-value]
