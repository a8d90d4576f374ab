"""What callers may give instead of a text or a number: a `timedelta` for seconds, a number or a UUID for a name, …"""

import math
import threading
from collections.abc import Iterable, Mapping
from datetime import timedelta
from fractions import Fraction
from numbers import Real
from operator import index
from typing import TypeVar, overload
from uuid import UUID

from penstock.errors import InvalidInput

Seconds = float | timedelta
Name = str | int | UUID

T = TypeVar("T")
# As the server has them: a lease is as long as the setting lease_time may be, a delay as long as that of a push.
_LONGEST_LEASE = 7 * 86_400
LONGEST_DELAY = 3_155_760_000
# What the server can count.
_MOST = (1 << 31) - 1
# Half of what a lock can be waited for, so that what is added to it on the way stays within that.
_FOR_EVER = threading.TIMEOUT_MAX / 2


def seconds(given: T | timedelta) -> T | float:
    """Return a length of time in seconds; whatever else is given stays as it is, for others to judge."""
    return given.total_seconds() if isinstance(given, timedelta) else given


def list_of_ids(what: str, given: Iterable[int]) -> list[int]:
    """Return ids as a list; refuse what is not one, such as a text, which has its characters in it."""
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"{given!r} is not a list of ids of {what}")
    ids = list(given)
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < 1 << 63:
            raise InvalidInput(f"{each!r} is not the id of {what}")
    return ids


@overload
def positive(name: str, given: Seconds) -> float: ...
@overload
def positive(name: str, given: Seconds | None) -> float | None: ...
def positive(name: str, given: Seconds | None) -> float | None:
    """Return a time limit in seconds; refuse one that is not above 0. No limit is a very long one."""
    if given is None:
        return None
    length = _number_of_seconds(given)
    if length is None or length <= 0:
        raise InvalidInput(f"{name} is {given!r} but must be more than 0 seconds")
    return min(length, _FOR_EVER)


@overload
def patience(name: str, given: Seconds) -> float: ...
@overload
def patience(name: str, given: Seconds | None) -> float | None: ...
def patience(name: str, given: Seconds | None) -> float | None:
    """Return how long to wait, in seconds: not at all below 0, and infinity is a very long time."""
    if given is None:
        return None
    length = _number_of_seconds(given)
    if length is None:
        raise InvalidInput(f"{name} is {given!r} but must be a number of seconds")
    return min(max(length, 0.0), _FOR_EVER)


def lease_time(given: Seconds | None) -> float | None:
    """Return the length of a lease in seconds; None for the group's."""
    if given is None:
        return None
    length = _number_of_seconds(given)
    if length is None or not 0 < length <= _LONGEST_LEASE:
        raise InvalidInput(f"lease is {given!r} but must be more than 0 and at most {_LONGEST_LEASE} seconds")
    return length


def delay_time(given: Seconds | None) -> float | None:
    """Return a delay in seconds; None for none of its own."""
    if given is None:
        return None
    length = _number_of_seconds(given)
    if length is None or not 0 <= length <= LONGEST_DELAY:
        raise InvalidInput(f"delay is {given!r} but must be a number of seconds from 0 to {LONGEST_DELAY}")
    return length


def whole(name: str, given: int, most: int = _MOST) -> int:
    """Return a number of messages, partitions or tasks; refuse what is no whole number from 1 to `most`."""
    # The commonest first, as every pop comes here.
    if type(given) is int and 1 <= given <= most:
        return given
    try:
        number = None if isinstance(given, bool) else index(given)
    except TypeError:
        number = None
    if number is None or not 1 <= number <= most:
        raise InvalidInput(f"{name} is {given!r} but must be a whole number from 1 to {most}")
    return number


def truth(name: str, given: bool) -> bool:
    """Return whether something is wanted; refuse what is neither True nor False."""
    if given is not True and given is not False:
        raise InvalidInput(f"{name} is {given!r} but must be True or False")
    return given


def _number_of_seconds(given: object) -> float | None:
    """Return a length of time that may be infinite; None for what is no number."""
    length = seconds(given)
    # Real: the numbers of numpy are, and Decimal is not.
    if isinstance(length, bool) or not isinstance(length, Real):
        return None
    try:
        number = float(length)
    except OverflowError:
        number = -math.inf if isinstance(length, int | Fraction) and length < 0 else math.inf
    return None if math.isnan(number) else number


def as_text(given: T | int | UUID) -> T | str:
    """Return the name of a partition, or a key, as text: 7 is '7'."""
    # The commonest first, as every push comes here.
    if given is None or type(given) is str:
        return given
    # The value of a member of an Enum and not its name, which is what str and psycopg would take.
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return int.__repr__(given)
    if isinstance(given, UUID):
        return str(given)
    return given  # type: ignore[return-value]


def storable(text: str) -> str:
    """Return a text with what PostgreSQL cannot store, NUL and half of a surrogate pair, written as an escape sequence.

    Both occur in what exceptions say. A failure that cannot be recorded would be a failure that does not count, so such
    texts are changed instead of refused.
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
