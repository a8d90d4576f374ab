"""Long lists, a page at a time: `next` is what to give as `after` for the page that follows."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

T = TypeVar("T")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
# Whole numbers as the database has them.
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60)]


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; without `next` it is the last."""

    items: list[T]
    next: str | None = None


class AfterName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list that is in the order of names."""

    after: str = ""
    limit: Limit = 100


class AfterId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list that is in the order of ids."""

    after: Number = 0
    limit: Limit = 100


def page_of(found: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Page[T]:
    """Return a page of what was found, of which there is one more than the limit if another page follows."""
    items = list(found[:limit])
    return Page(items, str(cursor(items[-1])) if len(found) > limit else None)


def page_by_name(found: Sequence[T], after: AfterName, name: Callable[[T], str]) -> Page[T]:
    """Return a page of a whole list, in the order of names."""
    ordered = sorted((each for each in found if name(each) > after.after), key=name)
    return page_of(ordered[: after.limit + 1], after.limit, name)
