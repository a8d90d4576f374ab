"""What the PostgreSQL transport runs: one statement of a function of the schema `penstock`, and how to read the rows.

Each module of this package is a room: it says for the operations of that room which statement runs them. `call_for`
finds it by the operation's type.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from functools import cache
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from penstock.broker.operations.operation import Operation
from penstock.broker.packing import Segment, Slice
from penstock.errors import InvalidInput

R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741
Row = Sequence[Any]


# A struct, because a frozen dataclass takes ten times as long to make.
class Call(msgspec.Struct, Generic[R], frozen=True):
    """One statement for the database, with `%s` for each parameter, or `%b` for one that is best sent in binary.

    One that is `hot`, all of whose parameters are `%s`, comes so often that a connection should remember how it is
    done.
    """

    sql: str
    parameters: tuple[Any, ...]
    parse: Callable[[Sequence[Row]], R]
    hot: bool = False


_statements: dict[type[Operation[Any]], Callable[[Any], Call[Any]]] = {}


def statement(kind: type[O]) -> Callable[[Callable[[O], Call[R]]], Callable[[O], Call[R]]]:
    """Register the function that returns the call for operations of one type."""

    def register(make: Callable[[O], Call[R]]) -> Callable[[O], Call[R]]:
        _statements[kind] = make
        return make

    return register


def call_for(operation: Operation[R]) -> Call[R]:
    """Return the call that runs an operation."""
    return _statements[type(operation)](operation)


def known_operations() -> set[type[Operation[Any]]]:
    """Return the types of operation that have a statement."""
    return set(_statements)


def scalar(rows: Sequence[Row]) -> Any:
    """Read an answer of one value."""
    return rows[0][0]


def nothing(rows: Sequence[Row]) -> None:
    """Read no answer."""


def segment_columns(segment: Segment) -> tuple[Any, ...]:
    """Return a segment as SQL functions take it."""
    return (
        segment.count,
        segment.body,
        segment.ends,
        segment.keys,
        segment.key_ends,
        segment.headers,
        segment.header_ends,
    )


def segment_arrays(segments: Sequence[Segment]) -> Iterator[list[Any] | None]:
    """Yield the columns of segments as SQL functions take them: None where no segment has one.

    They belong to `%b`: psycopg sends an array as text unless told otherwise, and bytes in it as hexadecimal digits.
    """
    for column in zip(*map(segment_columns, segments), strict=True):
        yield None if column.count(None) == len(column) else list(column)


@cache
def select_slices(first: str, source: str) -> str:
    """Return the statement for some columns of a function, and then those that `slice_of` reads.

    Arrays come as bytes: see runs.py.
    """
    return (
        # By its full name, because somebody's `public.array_send(integer[])` would come before the one for all arrays.
        f"SELECT {first}, base_offset, count, created_at, run_skip, "  # noqa: S608
        "pg_catalog.array_send(run_counts), pg_catalog.array_send(run_times), "
        "body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends "
        f"FROM penstock.{source}"
    )


def slice_of(columns: Row) -> Slice:
    """Read the columns of a slice, with times in UTC whatever the session's zone."""
    return Slice(columns[0], columns[1], columns[2].astimezone(UTC), *columns[3:])


def milliseconds(seconds: float) -> str:
    """Write a length of time as a setting of PostgreSQL."""
    if not isfinite(seconds):
        raise InvalidInput(f"{seconds!r} is not a number of seconds")
    return f"{max(1, round(seconds * 1000))}ms"


def json_text(value: Any) -> str:
    """Write settings as JSON; raises InvalidInput for what is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidInput("a value is nested too deeply for JSON") from None
