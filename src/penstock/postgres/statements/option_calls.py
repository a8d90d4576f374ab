"""Every call of the SQL engine for pushes that ask for more: to come later, to count once. Like `calls`, it runs none.

A plain push never comes here. A push whose messages are to come later, or carry dedupe ids, is another function of the
engine, with a longer answer; what waits there can be listed and cancelled.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, delay_time
from penstock.broker.ids import message_id, milliseconds
from penstock.broker.messages import Duplicate, PushResult, Scheduled
from penstock.broker.packing import Segment
from penstock.broker.producers import Stamp
from penstock.errors import InvalidInput
from penstock.postgres.statements.calls import Call, Place, Row, names, new_names, segment_arrays, whole


class Due(NamedTuple):
    """When messages are due: so many seconds after the server has taken them, or at a time."""

    delay: float | None
    at: datetime | None


class Lot(NamedTuple):
    """Messages that go to one partition at one time; None: now.

    Those that come later are told apart by `turn`: each push can be cancelled by itself.
    """

    place: Place
    due: Due | None
    turn: int = 0


class ScheduledInfo(msgspec.Struct, frozen=True):
    """What one push gave to one partition and is not due yet; a large push has several.

    `preview` is the beginning of the first message, None where its value is null.
    """

    scheduled_id: int
    queue: str
    partition: str
    due_at: datetime
    created_at: datetime
    count: int
    size: int
    preview: bytes | None


def due(delay: Seconds | None, at: datetime | None) -> Due | None:
    """Return when a push is due; None for one that is not delayed."""
    delay = delay_time(delay)
    if delay is None and at is None:
        return None
    if delay is not None and at is not None:
        raise InvalidInput("give delay or at, and not both")
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise InvalidInput(f"{at!r} is not a datetime with a time zone; say datetime(…, tzinfo=UTC)")
    return Due(delay, at)


def push(
    segments: Sequence[tuple[Lot, Segment]], dedupe_ids: Sequence[str | None] | None, stamp: Stamp | None = None
) -> Call[list[PushResult]]:
    """Push packed segments; one result per lot, in the order of first appearance."""
    for lot, _ in segments:
        new_names(*lot.place)
    if dedupe_ids is not None:
        _require_ids(dedupe_ids)

    def parse(rows: Sequence[Row]) -> list[PushResult]:
        results: dict[Lot, PushResult] = {}
        for (lot, _), row in zip(segments, rows, strict=True):
            results[lot] = _joined(results.get(lot), _result(lot.place, row))
        return list(results.values())

    dues = [lot.due or Due(None, None) for lot, _ in segments]
    return Call(
        "SELECT * FROM penstock.push_with_options(%s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
        "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::float8[], %s::timestamptz[], %s::text[], "
        "%s::uuid, %s::bigint)",
        (
            [lot.place.queue for lot, _ in segments],
            [lot.place.partition for lot, _ in segments],
            *segment_arrays([segment for _, segment in segments]),
            [None if due.delay is None else float(due.delay) for due in dues],
            [due.at for due in dues],
            None if dedupe_ids is None else list(dedupe_ids),
            *(stamp or (None, None)),
        ),
        parse,
        stamp is not None,
        stamp is not None,
    )


def scheduled(
    queue: str | None, partition: Name | None, after: ScheduledInfo | None, limit: int
) -> Call[list[ScheduledInfo]]:
    """List what is scheduled, the one that is due first at the front."""
    if partition is not None and queue is None:
        raise InvalidInput("a partition is of a queue: say which")
    whole("limit", limit)
    partition = as_text(partition)
    names(*(name for name in (queue, partition) if name is not None))
    if after is not None and not isinstance(after, ScheduledInfo):
        raise InvalidInput(f"after is the last one of the page before, and {after!r} is not")
    page = (None, 0) if after is None else (after.due_at, after.scheduled_id)
    return Call(
        "SELECT * FROM penstock.list_scheduled(%s::text, %s::text, coalesce(%s::timestamptz, '-infinity'), "
        "%s::bigint, %s::integer)",
        (queue, partition, *page, limit),
        lambda rows: [ScheduledInfo(*row) for row in rows],
        True,
    )


def cancel(ids: Iterable[int]) -> Call[list[int]]:
    """Cancel what is scheduled; the answer has the ids for which it was in time."""
    wanted = list(ids)
    for each in wanted:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < 1 << 63:
            raise InvalidInput(f"{each!r} is not the id of a scheduled push; they are in PushResult.scheduled.ids")

    def parse(rows: Sequence[Row]) -> list[int]:
        cancelled = set(rows[0][0])
        return [each for each in wanted if each in cancelled]

    # Not repeatable: a second time, what the first one cancelled would look as if it had been too late.
    return Call("SELECT penstock.cancel(%s::bigint[])", (wanted,), parse)


def _result(place: Place, row: Row) -> PushResult:
    partition_id, first, count, created_at, scheduled_id, due_at, *repeated = row
    return PushResult(
        *place,
        partition_id,
        first,
        count,
        created_at.astimezone(UTC),
        due_at and Scheduled(() if scheduled_id is None else (scheduled_id,), due_at.astimezone(UTC)),
        tuple(
            Duplicate(position, offset, _id(partition_id, offset, seen_at), original)
            for position, offset, seen_at, original in zip(*(column or () for column in repeated), strict=True)
        ),
    )


def _joined(begun: PushResult | None, more: PushResult) -> PushResult:
    """Return the result of two segments of one lot, the second of which follows on the first."""
    if begun is None:
        return more
    given = begun.count + len(begun.duplicates)
    due = (
        begun.scheduled
        and more.scheduled
        and Scheduled(begun.scheduled.ids + more.scheduled.ids, more.scheduled.due_at)
    )
    return PushResult(
        begun.queue,
        begun.partition,
        begun.partition_id,
        begun._first_offset if begun.count else more._first_offset,
        begun.count + more.count,
        begun.timestamp if begun.count else more.timestamp,
        due,
        begun.duplicates + tuple(each._replace(position=each.position + given) for each in more.duplicates),
    )


def _id(partition_id: int, offset: int | None, seen_at: datetime | None) -> UUID | None:
    if offset is None or seen_at is None:
        return None
    return message_id(partition_id, offset, milliseconds(seen_at.astimezone(UTC)))


def _require_ids(dedupe_ids: Iterable[str | None]) -> None:
    for each in dedupe_ids:
        if each is not None and (not isinstance(each, str) or not each):
            raise InvalidInput(f"a dedupe_id must be a text of at least one character, and {each!r} is not")
        if each is not None:
            names(each, what=("dedupe_id",))
