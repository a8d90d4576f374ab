"""The statements of schedules."""

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.broker.operations.schedules import (
    DefineSchedule,
    DeleteSchedule,
    FailSchedule,
    FindDueSchedules,
    FireSchedule,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
    UndeclareSchedules,
)
from penstock.broker.schedules import DueSchedules, Fired, Schedule, ScheduleInfo, Schedules
from penstock.postgres.statements.call import Call, Row, json_text, nothing, scalar, statement

_COLUMNS = (
    "l.name, l.kind, l.spec, l.tz, l.start_at, l.queue, l.value, l.partition, l.key, l.headers, l.missed, l.source, "
    "l.origin, l.paused, l.undeclared_at, l.done_to, l.next_at, l.last_slot, l.last_at, l.last_id, l.error, "
    "l.failed_at, l.revision, l.created_at, l.changed_at"
)


@statement(ListSchedules)
def list_schedules(wanted: ListSchedules) -> Call[Schedules]:
    def parse(rows: Sequence[Row]) -> Schedules:
        return Schedules(rows[0][0].astimezone(UTC), [_info(row[1:]) for row in rows if row[1] is not None])

    return Call(
        f"SELECT d.now_here, {_COLUMNS} FROM penstock.due_schedules(0) d "  # noqa: S608
        "LEFT JOIN LATERAL penstock.list_schedules(%s::text[]) l ON true",
        (None if wanted.names is None else list(wanted.names),),
        parse,
    )


@statement(FindDueSchedules)
def find_due_schedules(wanted: FindDueSchedules) -> Call[DueSchedules]:
    def parse(rows: Sequence[Row]) -> DueSchedules:
        found = [_info(row[2:]) for row in rows if row[2] is not None]
        return DueSchedules(rows[0][0].astimezone(UTC), found, _utc(rows[0][1]))

    return Call(
        f"SELECT d.now_here, d.next_due, {_COLUMNS} FROM penstock.due_schedules(%s::integer, %s::text[]) d "  # noqa: S608
        "LEFT JOIN LATERAL penstock.list_schedules(d.names) l ON true",
        (wanted.limit, list(wanted.passing)),
        parse,
    )


@statement(DefineSchedule)
def define_schedule(wanted: DefineSchedule) -> Call[bool]:
    schedule = wanted.schedule
    return Call(
        "SELECT penstock.define_schedule(%s::text, %s::text, %s::text, %s::text, %s::timestamptz, %s::text, %s::bytea, "
        "%s::text, %s::text, %s::jsonb, %s::text, %s::text, %s::text, %s::bigint, %s::timestamptz, %s::timestamptz, "
        "%s::timestamptz)",
        (
            *(schedule.name, schedule.kind, schedule.spec, schedule.tz, schedule.start),
            *(schedule.queue, schedule.value, schedule.partition, schedule.key),
            None if schedule.headers is None else json_text(schedule.headers),
            *(schedule.missed, wanted.source, wanted.origin),
            *(wanted.seen.revision, wanted.seen.done_to, wanted.done_to, wanted.next_at),
        ),
        scalar,
    )


@statement(UndeclareSchedules)
def undeclare_schedules(wanted: UndeclareSchedules) -> Call[list[str]]:
    return Call(
        "SELECT penstock.undeclare_schedules(%s::text, %s::text[])", (wanted.origin, list(wanted.declared)), scalar
    )


@statement(FireSchedule)
def fire_schedule(wanted: FireSchedule) -> Call[Fired]:
    def parse(rows: Sequence[Row]) -> Fired:
        ((outcome, *pushed),) = rows
        return _fired(outcome, pushed)

    return Call(
        "SELECT * FROM penstock.fire_schedule(%s::text, %s::bigint, %s::timestamptz, %s::timestamptz[], "
        "%s::timestamptz, %s::timestamptz)",
        (*wanted.seen, list(wanted.slots), wanted.done_to, wanted.next_at),
        parse,
    )


@statement(RunSchedule)
def run_schedule(wanted: RunSchedule) -> Call[Fired]:
    return Call("SELECT * FROM penstock.run_schedule(%s::text)", (wanted.name,), lambda rows: _fired("fired", rows[0]))


@statement(PauseSchedule)
def pause_schedule(wanted: PauseSchedule) -> Call[None]:
    return Call("SELECT penstock.pause_schedule(%s::text)", (wanted.name,), nothing)


@statement(ResumeSchedule)
def resume_schedule(wanted: ResumeSchedule) -> Call[bool]:
    return Call(
        "SELECT penstock.resume_schedule(%s::text, %s::bigint, %s::timestamptz, %s::timestamptz, %s::timestamptz)",
        (*wanted.seen, wanted.done_to, wanted.next_at),
        scalar,
    )


@statement(FailSchedule)
def fail_schedule(wanted: FailSchedule) -> Call[None]:
    return Call("SELECT penstock.fail_schedule(%s::text, %s::text)", (wanted.name, wanted.error), nothing)


@statement(DeleteSchedule)
def delete_schedule(wanted: DeleteSchedule) -> Call[None]:
    return Call("SELECT penstock.delete_schedule(%s::text)", (wanted.name,), nothing)


def _info(row: Row) -> ScheduleInfo:
    name, kind, spec, tz, start, queue, value, partition, key, headers, missed, source, origin, paused, *rest = row
    undeclared_at, done_to, next_at, last_slot, last_at, last_id, error, failed_at, revision, *times = rest
    created_at, changed_at = times
    return ScheduleInfo(
        Schedule(name, kind, spec, tz, _utc(start), queue, value, partition, key, headers, missed),
        source,
        origin,
        paused,
        undeclared_at is None,
        _utc(undeclared_at),
        done_to.astimezone(UTC),
        _utc(next_at),
        _utc(last_slot),
        _utc(last_at),
        last_id,
        error,
        _utc(failed_at),
        revision,
        created_at.astimezone(UTC),
        changed_at.astimezone(UTC),
    )


def _fired(outcome: str, pushed: Row) -> Fired:
    partition, partition_id, first_offset, count, created_at = pushed
    return Fired(outcome, partition, partition_id, first_offset, count or 0, _utc(created_at))


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
