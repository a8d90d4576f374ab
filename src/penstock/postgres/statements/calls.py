"""Every call of the SQL engine, without doing any of them.

A `Call` is a statement, its parameters and how to read the answer. The clients, and transactions on somebody else's
connection, differ only in who runs it. All SQL that Python sends is in this file, and all of it calls a function of the
schema `penstock`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from penstock.broker.arguments import Name, as_text, seconds
from penstock.broker.ids import address
from penstock.broker.messages import PushResult, StoredMessage
from penstock.broker.packing import Segment, Slice, unpack
from penstock.broker.producers import Stamp
from penstock.errors import InvalidInput, NotFound

T = TypeVar("T")
Row = Sequence[Any]
PAGE_BYTES = 8 << 20
# What name_problem.sql takes. A character has four bytes at most.
_GOOD_NAME = re.compile(r"(?!~|\*\Z)[^\x00-\x1f\x7f-\x9f]+").fullmatch
_LONGEST_NAME = 255
_PLACE = ("queue", "partition")
_CERTAINLY_SHORT = _LONGEST_NAME // 4
# The commonest push has no keys and no headers, and says nothing of them.
_PUSH_PLAIN = "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea)"
_PUSH_PLAIN_STAMPED = (
    "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea, "
    "producer => %s::uuid, sequence => %s::bigint)"
)


# A struct, because a frozen dataclass takes ten times as long to make.
class Call(msgspec.Struct, Generic[T], frozen=True):
    """One statement for the database, with `%s` for each parameter, or `%b` for one that is best sent in binary.

    `repeatable` says that running it twice does no harm, so that a client may try again when the connection
    broke and nobody knows whether it ran. A call that is `stamped` takes effect once, however often it is run; it is
    tried again also when it timed out. One that is `hot`, all of whose parameters are `%s`, comes so often that a
    connection should remember how it is done.
    """

    sql: str
    parameters: tuple[Any, ...]
    parse: Callable[[Sequence[Row]], T]
    repeatable: bool = False
    stamped: bool = False
    hot: bool = False


def once(call: Call[T]) -> Call[T]:
    """Return a call that is not tried again where it is run, because its caller does that."""
    return Call(call.sql, call.parameters, call.parse, hot=call.hot)


class _Place(NamedTuple):
    queue: str
    partition: str


class Place(_Place):
    """A partition of a queue, by name; a number or a UUID is a name, too."""

    __slots__ = ()

    def __new__(cls, queue: str, partition: Name) -> "Place":  # noqa: D102
        return _Place.__new__(cls, queue, partition if type(partition) is str else as_text(partition))


class Page(NamedTuple):
    """Some of the messages of a range, and where the rest begins (None: this was all)."""

    messages: list[StoredMessage]
    next_offset: int | None


class Slices(NamedTuple):
    """A page, still packed."""

    partition_id: int
    slices: list[Slice]
    next_offset: int | None


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue: what somebody set (`config`), what holds (`settings`), and how much it has."""

    name: str
    description: str | None
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    partitions: int
    messages: int
    dropped: int
    newest_at: datetime | None


class PartitionInfo(msgspec.Struct, frozen=True):
    """A partition and its positions: all below `floor` is dropped, `head` is the next offset."""

    name: str
    partition_id: int
    priority: int
    created_at: datetime
    floor: int
    head: int
    newest_at: datetime | None

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return self.head - self.floor


class Maintenance(NamedTuple):
    """What one chunk of maintenance did, and where to go on (None: the pass is complete)."""

    visited: int
    dropped_segments: int
    dropped_messages: int
    merged_segments: int
    next_partition: int | None


class Paging:
    """Reads a range page by page: says what to call next, and is told what came of it."""

    def __init__(
        self,
        place: Place,
        start: int,
        stop: int | None,
        start_time: datetime | None,
        stop_time: datetime | None,
        limit: int | None,
    ) -> None:
        if limit is not None:
            whole("limit", limit)
        self._place = place
        self._next: int | None = None if limit == 0 else start
        self._stop = stop
        self._times = (start_time, stop_time)
        self._left = limit
        self._limit_stop: int | None = None
        self._fell_short = False

    def next_call(self) -> "Call[Slices] | None":
        """Return the call for the next page, or None after the last."""
        if self._next is None:
            return None
        start_time, stop_time = self._times
        stop = self._stop
        # Without a time, the limit is a stop: offsets have no gaps.
        if self._left is not None and start_time is None and not self._fell_short:
            self._limit_stop = self._next + self._left
            stop = self._limit_stop if stop is None else min(stop, self._limit_stop)
        return read(self._place, self._next, stop, start_time, stop_time, PAGE_BYTES)

    def took(self, page: Slices) -> Slices:
        """Take note of a page and return what of it is within the limit."""
        self._next = page.next_offset
        if self._left is None:
            return page
        kept: list[Slice] = []
        for part in page.slices:
            if self._left > 0:
                kept.append(part.first(self._left))
                self._left -= kept[-1].count
        if self._left == 0:
            self._next = None
        elif self._next is None and self._limit_stop is not None and not self._fell_short:
            # What lies below the floor does not count: look once more, from where the limit made us stop.
            self._fell_short = True
            self._next = self._limit_stop if self._stop is None or self._limit_stop < self._stop else None
        return Slices(page.partition_id, kept, self._next)


def push(segments: Sequence[tuple[Place, Segment]], stamp: Stamp | None = None) -> Call[list[PushResult]]:
    """Push packed segments; one result per partition, in the order of first appearance.

    With a stamp it may be run again: what was stored under it before is not stored again.
    """
    for place, _ in segments:
        new_names(*place)
    if len(segments) == 1:
        return _push_one(*segments[0], stamp)

    def parse(rows: Sequence[Row]) -> list[PushResult]:
        results: dict[Place, PushResult] = {}
        for (place, _), (partition_id, first, count, created_at) in zip(segments, rows, strict=True):
            begun = results.get(place)
            if begun is not None:
                first, count = begun.first_offset, begun.count + count
            results[place] = PushResult(*place, partition_id, first, count, created_at.astimezone(UTC))
        return list(results.values())

    stamped = stamp is not None
    return Call(
        "SELECT * FROM penstock.push_segments(%s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
        "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::uuid, %s::bigint)",
        (
            [place.queue for place, _ in segments],
            [place.partition for place, _ in segments],
            *segment_arrays([segment for _, segment in segments]),
            *(stamp or (None, None)),
        ),
        parse,
        stamped,
        stamped,
    )


def _push_one(place: Place, segment: Segment, stamp: Stamp | None) -> Call[list[PushResult]]:
    """Push one segment: most pushes are no more."""

    def parse(rows: Sequence[Row]) -> list[PushResult]:
        ((partition_id, first, count, created_at),) = rows
        return [PushResult(*place, partition_id, first, count, created_at.astimezone(UTC))]

    stamped = stamp is not None
    if segment.keys is None and segment.headers is None:
        return Call(
            _PUSH_PLAIN_STAMPED if stamped else _PUSH_PLAIN,
            (*place, segment.count, segment.body, segment.ends, *(stamp or ())),
            parse,
            stamped,
            stamped,
            hot=True,
        )
    return Call(
        "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea, "
        "%s::bytea, %s::bytea, %s::bytea, %s::bytea, %s::uuid, %s::bigint)",
        (*place, *segment_columns(segment), *(stamp or (None, None))),
        parse,
        stamped,
        stamped,
        hot=True,
    )


def spread(queue: str) -> Call[int]:
    """Ask over how many partitions a queue spreads."""
    return Call("SELECT penstock.queue_spread(%s::text)", names(queue), scalar, True)


def read(
    place: Place,
    start: int,
    stop: int | None,
    start_time: datetime | None,
    stop_time: datetime | None,
    max_bytes: int,
) -> Call[Slices]:
    """Read one page of a range, still packed."""
    for moment in (start_time, stop_time):
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise InvalidInput(f"{moment!r} is not a datetime with a time zone; say datetime(…, tzinfo=UTC)")
    for offset in (start, stop):
        if offset is not None and not (isinstance(offset, int) and 0 <= offset < 1 << 63):
            raise InvalidInput(f"offsets start at 0 and are whole numbers, and {offset!r} is none")

    def parse(rows: Sequence[Row]) -> Slices:
        if not rows:
            return Slices(0, [], None)
        return Slices(rows[0][0], [slice_of(row[2:]) for row in rows], rows[0][1])

    return Call(
        select_slices(
            "partition_id, next_offset",
            "read_segments(%s::text, %s::text, %s::bigint, %s::bigint, %s::timestamptz, %s::timestamptz, %s::bigint)",
        ),
        (*names(*place), start, stop, start_time, stop_time, max_bytes),
        parse,
        True,
    )


def unpack_page(place: Place, page: Slices) -> Page:
    """Turn a packed page into messages."""
    messages: list[StoredMessage] = []
    for part in page.slices:
        messages += unpack(place.queue, place.partition, page.partition_id, part)
    return Page(messages, page.next_offset)


def get(message_id: UUID | str) -> Call[StoredMessage]:
    """Find one message by its id."""
    address(message_id)

    def parse(rows: Sequence[Row]) -> StoredMessage:
        if not rows:
            raise NotFound(f"there is no message {message_id}, or retention has dropped it")
        queue, partition, partition_id, *columns = rows[0]
        return unpack(queue, partition, partition_id, slice_of(columns))[0]

    return Call(
        select_slices("queue_name, partition_name, partition_id", "get_segment(%s::uuid)"),
        (str(message_id),),
        parse,
        True,
    )


def create_queue(queue: str, config: Mapping[str, Any], description: str | None) -> Call[None]:
    """Create a queue."""
    return Call(
        "SELECT penstock.create_queue(%s::text, %s::jsonb, %s::text)",
        (*names(queue), encode_config(config), _description(description)),
        nothing,
    )


def create_partition(place: Place, priority: int) -> Call[None]:
    """Create a partition."""
    return Call(
        "SELECT penstock.create_partition(%s::text, %s::text, %s::integer)",
        (*names(*place), priority),
        nothing,
    )


def configure_queue(queue: str, changes: Mapping[str, Any], description: str | None) -> Call[dict[str, Any]]:
    """Change a queue's settings."""
    return Call(
        "SELECT penstock.configure_queue(%s::text, %s::jsonb, %s::text)::text",
        (*names(queue), encode_config(changes), _description(description)),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
        True,
    )


def configure_database(create_on_first_use: bool | None) -> Call[dict[str, Any]]:
    """Change what holds for the whole database."""
    if create_on_first_use is not None and not isinstance(create_on_first_use, bool):
        raise InvalidInput(f"create_on_first_use is {create_on_first_use!r} but must be True, False or None")
    return Call(
        "SELECT penstock.configure_database(%s::boolean)::text",
        (create_on_first_use,),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
        True,
    )


def configure_partition(place: Place, priority: int | None) -> Call[None]:
    """Change a partition."""
    return Call(
        "SELECT penstock.configure_partition(%s::text, %s::text, %s::integer)",
        (*names(*place), priority),
        nothing,
        True,
    )


def queues(queue: str | None = None) -> Call[list[QueueInfo]]:
    """Describe all queues, or one that must exist."""
    return Call(
        "SELECT name, description, created_at, config::text, settings::text, partitions, messages, dropped, newest_at "
        "FROM penstock.list_queues(%s::text)",
        names(queue) if queue is not None else (None,),
        lambda rows: [QueueInfo(*row[:3], *map(msgspec.json.decode, row[3:5]), *row[5:]) for row in rows],
        True,
    )


def partitions(
    queue: str, partition: Name | None = None, after: str | None = None, limit: int | None = None
) -> Call[list[PartitionInfo]]:
    """Describe the partitions of a queue, or one that must exist."""
    if partition is not None:
        queue, partition = Place(queue, partition)
        names(queue, partition)
    return Call(
        "SELECT * FROM penstock.list_partitions(%s::text, %s::text, %s::text, %s::integer)",
        (*names(queue), partition, after, limit),
        lambda rows: [PartitionInfo(*row) for row in rows],
        True,
    )


def purge(queue: str, partition: Name | None) -> Call[int]:
    """Drop all messages of a queue or of one partition."""
    where = names(queue) if partition is None else names(*Place(queue, partition))
    return Call("SELECT penstock.purge(%s::text, %s::text)", (*where, None)[:2], scalar, True)


def delete(queue: str, partition: Name | None) -> Call[int]:
    """Delete a queue, or one partition, with all that belongs to it."""
    if partition is None:
        return Call("SELECT penstock.delete_queue(%s::text)", names(queue), scalar)
    return Call("SELECT penstock.delete_partition(%s::text, %s::text)", names(*Place(queue, partition)), scalar)


def maintain(after: int, partitions: int, min_segments: int) -> Call[Maintenance | None]:
    """Look after a chunk of partitions; None when another process is at it."""
    return Call(
        "SELECT * FROM penstock.maintain(%s::bigint, %s::integer, %s::integer)",
        (after, partitions, min_segments),
        lambda rows: Maintenance(*rows[0]) if rows else None,
        True,
    )


def no_settings(settings: Mapping[str, Any], description: str | None) -> None:
    """Refuse a queue's settings where a partition is meant."""
    if settings or description is not None:
        given = ", ".join([*settings, *(["description"] if description is not None else [])])
        raise InvalidInput(f"a partition has a priority and no other settings; {given} belongs to the queue")


def no_priority(priority: int | None) -> None:
    """Refuse a partition's priority where a queue is meant."""
    if priority:
        raise InvalidInput("a queue has no priority: say which partition is meant")


def whole(name: str, value: int) -> None:
    """Refuse what is not a whole number from 0."""
    if not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} is {value!r} but must be a whole number and not negative")


def names(*given: str, what: Sequence[str] = _PLACE) -> tuple[str, ...]:
    """Return names that can be sent to PostgreSQL as text; the engine itself checks the rest.

    `what` says which arguments they are, for who gave something else.
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
    return given


def new_names(queue: str, *partitions: str) -> None:
    """Refuse names that the engine would refuse for what a push makes, and say which argument it is.

    The engine says only what is wrong with one of many names, and in a transaction only at the end of the block.
    """
    given = (queue, *partitions)
    what = _PLACE if len(given) <= len(_PLACE) else ("queue", *["partition"] * len(partitions))
    for name in names(*given, what=what):
        # Most names are seen to be good without the dearer questions.
        if name.isprintable() and len(name) <= _CERTAINLY_SHORT and name[:1] not in "~*":
            continue
        if not _GOOD_NAME(name) or len(name.encode()) > _LONGEST_NAME:
            raise InvalidInput(f"{_which(name, given, what)} {_name_problem(name)}")


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


def group_names(queue: str, group: str, partition: Name | None = None) -> tuple[str, ...]:
    """Do the same for a group, and a partition where there is one."""
    given = (queue, group) if partition is None else (queue, group, as_text(partition))
    return names(*given, what=("queue", "group", "partition"))


def segment_columns(segment: Segment) -> tuple[Any, ...]:
    """Return a segment as the engine's functions take it."""
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
    """Yield the columns of segments as the engine's functions take them: None where no segment has one.

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


def encode_config(config: Mapping[str, Any]) -> str:
    """Return settings as JSON."""
    try:
        return msgspec.json.encode({name: seconds(value) for name, value in config.items()}).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"settings must be JSON values: {error}") from None


def _description(text: str | None) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(f"a description must be a text without NUL characters, and {text!r} is not")
    return text


def scalar(rows: Sequence[Row]) -> int:
    """Read an answer of one number."""
    value: int = rows[0][0]
    return value


def nothing(rows: Sequence[Row]) -> None:
    """Read no answer."""
    return
