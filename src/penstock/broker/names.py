"""Checks of names and other arguments that every operation makes, whichever transport runs it."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.arguments import seconds
from penstock.errors import InvalidInput

# What name_problem.sql takes. A character has four bytes at most.
_GOOD_NAME = re.compile(r"(?!~|\*\Z)[^\x00-\x1f\x7f-\x9f]+").fullmatch
_LONGEST_NAME = 255
_DEEPEST = 50
_CERTAINLY_SHORT = _LONGEST_NAME // 4
_PLACE = ("queue", "partition")
_GROUP = ("queue", "group", "partition")


def check_names(*given: str, what: Sequence[str] = _PLACE) -> None:
    """Refuse names that cannot be stored as text; the broker itself checks the rest.

    `what` says which arguments they are.
    """
    for name in given:
        if not isinstance(name, str):
            raise InvalidInput(f"{_which(name, given, what)} must be a text, and {name!r} is not")
        if "\0" in name:
            raise InvalidInput(f"{_which(name, given, what)} must have no control characters, and {name!r} has some")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{_which(name, given, what)} is {name!r}, which cannot be written as UTF-8") from None


def check_group_names(queue: str, group: str, partition: str | None = None) -> None:
    """Refuse names of a queue, a group and perhaps a partition that cannot be stored as text."""
    if partition is None:
        check_names(queue, group, what=_GROUP)
    else:
        check_names(queue, group, partition, what=_GROUP)


def check_new_names(queue: str, *partitions: str) -> None:
    """Refuse names that the broker would refuse for what a push creates, and say which argument it is.

    The broker says only what is wrong with one of many names, and in a transaction only at the end of the block.
    """
    given = (queue, *partitions)
    # Most names are seen to be good without the dearer checks; what can be printed can be encoded.
    for name in given:
        if type(name) is not str or not name.isprintable() or len(name) > _CERTAINLY_SHORT or name[:1] in "~*":
            break
    else:
        return
    what = _PLACE if len(given) <= len(_PLACE) else ("queue", *["partition"] * len(partitions))
    check_names(*given, what=what)
    for name in given:
        if not _GOOD_NAME(name) or len(name.encode()) > _LONGEST_NAME:
            raise InvalidInput(f"{_which(name, given, what)} {_name_problem(name)}")


def check_whole(name: str, value: int) -> None:
    """Refuse what is not a whole number from 0."""
    if not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} is {value!r} but must be a whole number and not negative")


def check_step(name: str) -> None:
    """Refuse what is no name of a step."""
    check_names(name, what=("the name of a step",))
    if not 1 <= len(name.encode()) <= _LONGEST_NAME:
        raise InvalidInput(f"the name of a step has 1 to {_LONGEST_NAME} bytes, and {name!r:.100} has not")


def check_priority(priority: int | None) -> None:
    """Refuse what is no priority; how large it may be the broker says."""
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise InvalidInput(f"priority is {priority!r} but must be a whole number")


def check_offset(offset: int | None) -> None:
    """Refuse what is no offset."""
    if offset is not None and not (isinstance(offset, int) and 0 <= offset < 1 << 63):
        raise InvalidInput(f"offsets start at 0 and are whole numbers, and {offset!r} is none")


def check_moment(moment: datetime | None) -> None:
    """Refuse a time without a time zone."""
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise InvalidInput(f"{moment!r} is not a datetime with a time zone; say datetime(…, tzinfo=UTC)")


def check_description(text: str | None) -> None:
    """Refuse a description that cannot be stored."""
    if text is not None and (not isinstance(text, str) or "\0" in text):
        raise InvalidInput(f"a description must be a text without NUL characters, and {text!r} is not")


def check_depth(what: str, value: Any) -> None:
    """Refuse what is nested so deeply that not everybody could decode it: whoever stored it would stop the others."""
    if _is_deeper(value, _DEEPEST):
        raise InvalidInput(f"{what} must not be nested more than {_DEEPEST} levels deep")


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return not depth or any(_is_deeper(each, depth - 1) for each in parts)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values, with lengths of time in seconds."""
    values = {name: seconds(value) for name, value in settings.items()}
    check_depth("settings", values)
    for name, value in values.items():
        # JSON has no such numbers: it would be null, which takes a setting away.
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f"{name} is {value} but must be a number")
    try:
        msgspec.json.encode(values)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"settings must be JSON values: {error}") from None
    return values


def _name_problem(name: str) -> str:
    if not name:
        return "is empty, and a name must have 1 to 255 bytes"
    if name == "*":
        return "is '*', which means any partition and cannot be the name of one"
    if name.startswith("~"):
        return f"is {name!r:.100}, and names that begin with '~' are kept for private lanes"
    if len(name.encode()) > _LONGEST_NAME:
        return f"must have 1 to 255 bytes, and {name[:20]!r}… has {len(name.encode())}"
    return f"must have no control characters, and {name!r:.100} has some"


def _which(name: object, given: Sequence[object], what: Sequence[str]) -> str:
    return next(argument for argument, each in zip(what, given, strict=False) if each is name)
