"""The statements that push, and those of what is scheduled.

Where a push may have to wait for locks it can give up soon: `penstock.lock_timeout` is set for its own transaction, in
the same statement. The function is made to depend on that, so that it happens first.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.ids import message_id
from penstock.broker.ids import milliseconds as id_milliseconds
from penstock.broker.infos import ScheduledInfo
from penstock.broker.messages import Duplicate, PushResult, Scheduled
from penstock.broker.operations.pushing import CancelScheduled, ListScheduled, NoteRequest, Push
from penstock.broker.packing import Segment
from penstock.broker.places import Place
from penstock.broker.pushing import Due, PushBatch, Stamp, Uniqueness
from penstock.errors import InvalidInput
from penstock.postgres.statements.call import (
    Call,
    Row,
    milliseconds,
    segment_arrays,
    segment_columns,
    statement,
)

CHANNEL = "penstock_pushed"
# A NOTIFY carries at most 8000 bytes.
MOST_HINT_BYTES = 7000

# The commonest push has no keys and no headers, and says nothing of them.
_PLAIN = "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea)"
_PLAIN_STAMPED = (
    "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea, "
    "producer => %s::uuid, sequence => %s::bigint)"
)
_ONE = (
    "SELECT * FROM penstock.push_segment(%s::text, %s::text, %s::integer, %s::bytea, %s::bytea, "
    "%s::bytea, %s::bytea, %s::bytea, %s::bytea, %s::uuid, %s::bigint)"
)
_MANY = (
    "SELECT * FROM penstock.push_segments(%s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::uuid, %s::bigint)"
)
_MANY_LIMITED = (
    "SELECT p.* FROM set_config('penstock.lock_timeout', %s, true) AS lock_timeout, LATERAL penstock.push_segments("
    "CASE WHEN lock_timeout <> '' THEN %s::text[] END, %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::uuid, %s::bigint) p"
)
_WITH_OPTIONS = (
    "SELECT * FROM penstock.push_with_options(%s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::float8[], %s::timestamptz[], %s::text[], "
    "%s::uuid, %s::bigint)"
)
_UNIQUE = (
    "SELECT * FROM penstock.push_unique_segments(%s::text[], %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::float8[], %s::timestamptz[], %s::text[], %s::float8[], "
    "%s::text[], %s::boolean[], %s::uuid, %s::bigint)"
)
_NOT_STAMPED = (None, None)
_NOT_DUE = Due(None, None)
_NOT_UNIQUE = Uniqueness(None, None, False)


@statement(Push)
def push(wanted: Push) -> Call[list[PushResult]]:
    call, hint = _push(wanted), wanted.hint
    if hint is None:
        return call
    payload = hint.encode(MOST_HINT_BYTES).decode()
    if not call.hot:
        return msgspec.structs.replace(call, sql=_hinting(call.sql), parameters=(*call.parameters, payload))

    def parse(rows: Sequence[Row]) -> list[PushResult]:
        hint.spared = bool(rows) and rows[0][-1] != ""
        return call.parse([row[:-1] for row in rows])

    return Call(_hinting_if_needed(call.sql), (payload, *call.parameters), parse, hot=True)


@cache
def _hinting(sql: str) -> str:
    """Return a statement that sends a hint, too, when it commits."""
    return f"SELECT pushed.* FROM ({sql}) pushed, pg_notify('{CHANNEL}', %s::text)"  # noqa: S608


@cache
def _hinting_if_needed(sql: str) -> str:
    """Return a statement of push_segment that sends a hint if a group has to be woken, and says what was not sent."""
    pushing = sql.removeprefix("SELECT * FROM ").replace("(%s::text", "(CASE WHEN hint <> '' THEN %s::text END", 1)
    return (
        "SELECT pushed.*, current_setting('penstock.hint') "  # noqa: S608
        f"FROM set_config('penstock.hint', %s::text, true) AS hint, LATERAL {pushing} pushed"
    )


def _push(wanted: Push) -> Call[list[PushResult]]:
    batches = wanted.batches
    if len(batches) == 1 and wanted.lock_timeout is None:
        only = batches[0]
        # Most pushes are no more than this.
        if only.plain and len(only.segments) == 1:
            return _push_one(only.place, only.segments[0], wanted.stamp)
    if not all(batch.plain for batch in batches):
        if any(batch.unique_keys is not None for batch in batches):
            return _push_unique(batches, wanted.stamp)
        return _push_with_options(batches, wanted.stamp)

    def parse(rows: Sequence[Row]) -> list[PushResult]:
        answers = _answers(rows, sum(len(batch.segments) for batch in batches))
        results = []
        for batch in batches:
            partition_id, first, _, created_at = next(answers)
            for _ in batch.segments[1:]:
                created_at = next(answers)[3]
            results.append(PushResult(*batch.place, partition_id, first, batch.count, created_at.astimezone(UTC)))
        return results

    columns = (*_segments(batches), *(wanted.stamp or _NOT_STAMPED))
    if wanted.lock_timeout is None:
        return Call(_MANY, columns, parse)
    return Call(_MANY_LIMITED, (milliseconds(wanted.lock_timeout), *columns), parse)


def _answers(rows: Sequence[Row], expected: int) -> Iterator[Row]:
    """Return the rows of a push. Where its stamp was used before they are those of that push, which was the same."""
    if len(rows) != expected:
        raise InvalidInput("this was pushed before under the same key or stamp, and was not the same then")
    return iter(rows)


def _push_one(place: Place, segment: Segment, stamp: Stamp | None) -> Call[list[PushResult]]:
    def parse(rows: Sequence[Row]) -> list[PushResult]:
        partition_id, first, count, created_at = next(_answers(rows, 1))
        return [PushResult(*place, partition_id, first, count, created_at.astimezone(UTC))]

    if segment.keys is None and segment.headers is None:
        return Call(
            _PLAIN if stamp is None else _PLAIN_STAMPED,
            (*place, segment.count, segment.body, segment.ends, *(stamp or ())),
            parse,
            hot=True,
        )
    return Call(_ONE, (*place, *segment_columns(segment), *(stamp or _NOT_STAMPED)), parse, hot=True)


def _push_with_options(batches: Sequence[PushBatch], stamp: Stamp | None) -> Call[list[PushResult]]:
    def parse(rows: Sequence[Row]) -> list[PushResult]:
        answers = _answers(rows, sum(len(batch.segments) for batch in batches))
        results = []
        for batch in batches:
            result = _result(batch.place, next(answers))
            for _ in batch.segments[1:]:
                result = _joined(result, _result(batch.place, next(answers)))
            results.append(result)
        return results

    dues = [batch.due or _NOT_DUE for batch in batches for _ in batch.segments]
    ids: list[str | None] | None = None
    if any(batch.dedupe_ids is not None for batch in batches):
        ids = [each for batch in batches for each in batch.dedupe_ids or [None] * batch.count]
    return Call(
        _WITH_OPTIONS,
        (
            *_segments(batches),
            [None if due.delay is None else float(due.delay) for due in dues],
            [due.at for due in dues],
            ids,
            *(stamp or _NOT_STAMPED),
        ),
        parse,
    )


def _push_unique(batches: Sequence[PushBatch], stamp: Stamp | None) -> Call[list[PushResult]]:
    def parse(rows: Sequence[Row]) -> list[PushResult]:
        answers = _answers(rows, sum(len(batch.segments) for batch in batches))
        results = []
        for batch in batches:
            result = _unique_result(batch.place, next(answers))
            for _ in batch.segments[1:]:
                result = _joined(result, _unique_result(batch.place, next(answers)))
            results.append(result)
        return results

    segments = [(batch, index) for batch in batches for index in range(len(batch.segments))]
    dues = [batch.due or _NOT_DUE for batch, _ in segments]
    counting = [batch.uniqueness or _NOT_UNIQUE for batch, _ in segments]
    return Call(
        _UNIQUE,
        (
            *_segments(batches),
            [None if due.delay is None else float(due.delay) for due in dues],
            [due.at for due in dues],
            [None if batch.unique_keys is None else batch.unique_keys[index] for batch, index in segments],
            *map(list, zip(*counting, strict=True)),
            *(stamp or _NOT_STAMPED),
        ),
        parse,
    )


@statement(NoteRequest)
def note_request(wanted: NoteRequest) -> Call[bool]:
    return Call(
        "SELECT penstock.note_request(%s::uuid, %s::bytea)",
        (wanted.producer, wanted.digest),
        lambda rows: bool(rows[0][0]),
    )


@statement(ListScheduled)
def list_scheduled(wanted: ListScheduled) -> Call[list[ScheduledInfo]]:
    return Call(
        "SELECT * FROM penstock.list_scheduled(%s::text, %s::text, coalesce(%s::timestamptz, '-infinity'), "
        "%s::bigint, %s::integer)",
        (wanted.queue, wanted.partition, wanted.after_due_at, wanted.after_id, wanted.limit),
        lambda rows: [ScheduledInfo(*row) for row in rows],
    )


@statement(CancelScheduled)
def cancel_scheduled(wanted: CancelScheduled) -> Call[list[int]]:
    def parse(rows: Sequence[Row]) -> list[int]:
        cancelled = set(rows[0][0])
        return [each for each in wanted.ids if each in cancelled]

    return Call("SELECT penstock.cancel(%s::bigint[])", (list(wanted.ids),), parse)


def _segments(batches: Sequence[PushBatch]) -> tuple[Any, ...]:
    """Return the places and columns of all segments, in order."""
    return (
        [batch.place.queue for batch in batches for _ in batch.segments],
        [batch.place.partition for batch in batches for _ in batch.segments],
        *segment_arrays([segment for batch in batches for segment in batch.segments]),
    )


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


def _unique_result(place: Place, row: Row) -> PushResult:
    outcome, partition_id, first, count, created_at, scheduled_id, due_at, *where = row
    earlier_partition, earlier_offset, earlier_time, earlier_scheduled = where
    earlier = Duplicate(0, earlier_offset, _id(earlier_partition, earlier_offset, earlier_time), earlier_scheduled)
    return PushResult(
        *place,
        partition_id,
        first,
        count,
        created_at.astimezone(UTC),
        due_at and Scheduled(() if scheduled_id is None else (scheduled_id,), due_at.astimezone(UTC)),
        (earlier,) if outcome == "duplicate" else (),
        (earlier,) if outcome == "replaced" else (),
    )


def _joined(begun: PushResult, more: PushResult) -> PushResult:
    """Return the result of two segments of one batch, the second of which follows on the first."""
    given = begun.given
    due = begun.scheduled or more.scheduled
    if begun.scheduled and more.scheduled:
        due = Scheduled(begun.scheduled.ids + more.scheduled.ids, more.scheduled.due_at)
    return PushResult(
        begun.queue,
        begun.partition,
        begun.partition_id,
        begun._first_offset if begun.count else more._first_offset,
        begun.count + more.count,
        begun.timestamp if begun.count else more.timestamp,
        due,
        begun.duplicates + tuple(each._replace(position=each.position + given) for each in more.duplicates),
        begun.replaced + tuple(each._replace(position=each.position + given) for each in more.replaced),
    )


def _id(partition_id: int | None, offset: int | None, seen_at: datetime | None) -> UUID | None:
    if partition_id is None or offset is None or seen_at is None:
        return None
    return message_id(partition_id, offset, id_milliseconds(seen_at.astimezone(UTC)))
