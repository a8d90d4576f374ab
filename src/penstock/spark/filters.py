"""Turns the filters of a query into ranges of offsets: messages that they exclude are not read.

Filters on queue, partition and offset are applied exactly, so Spark need not apply them again. Those on time narrow
the ranges, and Spark applies them too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_TICK = timedelta(microseconds=1)
_NEVER_NULL = {"queue", "partition", "offset", "value", "timestamp", "id"}


@dataclass(frozen=True)
class Narrowing:
    """What the filters leave: names, and ranges from (included) to (not included)."""

    queues: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    offset_from: int = 0
    offset_to: int | None = None
    time_from: datetime | None = None
    time_to: datetime | None = None
    pushed: tuple[str, ...] = field(default=(), compare=False)

    def take(self, filters: Iterable[Filter]) -> "tuple[Narrowing, list[Filter]]":
        """Apply filters; return the narrowing, and those that Spark must apply itself."""
        narrowed, left = self, []
        for one in filters:
            after = narrowed._apply(one)
            if after is None:
                left.append(one)
                continue
            narrowed = replace(after, pushed=(*narrowed.pushed, str(one)))
            if getattr(one, "attribute", ()) == ("timestamp",):
                left.append(one)
        return narrowed, left

    def _apply(self, one: Filter) -> "Narrowing | None":
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return None
        column = attribute[0]
        if isinstance(one, IsNotNull):
            return self if column in _NEVER_NULL else None
        match column, one:
            case (("queue" | "partition"), (EqualTo() | In())):
                return self._named(column, _values(one))
            case "offset", (EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual()):
                return self._within(one)
            case "timestamp", (EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual()):
                return self._between(one)
            case _:
                return None

    def _named(self, column: str, names: Iterator[Any]) -> "Narrowing":
        wanted = frozenset(name for name in names if name is not None)
        if column == "queue":
            return replace(self, queues=wanted if self.queues is None else self.queues & wanted)
        return replace(self, partitions=wanted if self.partitions is None else self.partitions & wanted)

    def _within(self, one: Any) -> "Narrowing | None":
        if not isinstance(one.value, int):
            return None
        low, high = _bounds(one, 1)
        return replace(
            self,
            offset_from=self.offset_from if low is None else max(self.offset_from, low),
            offset_to=self.offset_to if high is None else high if self.offset_to is None else min(self.offset_to, high),
        )

    def _between(self, one: Any) -> "Narrowing | None":
        if not isinstance(one.value, datetime):
            return None
        low, high = _bounds(replace(one, value=one.value.astimezone()), _TICK)
        if low is not None and self.time_from is not None:
            low = max(low, self.time_from)
        if high is not None and self.time_to is not None:
            high = min(high, self.time_to)
        return replace(self, time_from=low or self.time_from, time_to=high or self.time_to)


def _values(one: Any) -> Iterator[Any]:
    return iter(one.value if isinstance(one, In) else (one.value,))


def _bounds(one: Any, tick: Any) -> tuple[Any, Any]:
    """Return a comparison as a range, its end not included."""
    match one:
        case EqualTo():
            return one.value, one.value + tick
        case GreaterThan():
            return one.value + tick, None
        case GreaterThanOrEqual():
            return one.value, None
        case LessThan():
            return None, one.value
        case _:
            return None, one.value + tick
