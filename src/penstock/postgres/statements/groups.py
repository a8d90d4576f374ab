"""The statements of groups: create, configure, move, list; dead letters; checks and repairs."""

from typing import Any

import msgspec

from penstock.broker.infos import (
    Check,
    ClaimInfo,
    DeadLetterInfo,
    DeadReason,
    FailingTimer,
    GroupInfo,
    ResyncResult,
    SeekResult,
    Transition,
)
from penstock.broker.operations.groups import (
    ConfigureGroup,
    CountDeadLetters,
    CreateGroup,
    DeleteGroup,
    Discard,
    GetHistory,
    GetLag,
    ListClaims,
    ListDeadLetters,
    ListFailingTimers,
    ListGroups,
    PauseGroup,
    Redrive,
    Resync,
    Seek,
    Verify,
)
from penstock.postgres.statements.call import Call, json_text, nothing, scalar, statement


@statement(CreateGroup)
def create_group(wanted: CreateGroup) -> Call[int]:
    return Call(
        "SELECT penstock.create_group(%s::text, %s::text, %s::jsonb, %s::text, %s::timestamptz, %s::text)",
        (wanted.queue, wanted.group, json_text(wanted.config), wanted.subscription, wanted.since, wanted.mode),
        scalar,
    )


@statement(ConfigureGroup)
def configure_group(wanted: ConfigureGroup) -> Call[dict[str, Any]]:
    return Call(
        "SELECT penstock.configure_group(%s::text, %s::text, %s::jsonb)::text",
        (wanted.queue, wanted.group, json_text(wanted.changes)),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
    )


@statement(PauseGroup)
def pause_group(wanted: PauseGroup) -> Call[bool]:
    return Call(
        "SELECT penstock.pause_group(%s::text, %s::text, %s::boolean)",
        (wanted.queue, wanted.group, wanted.paused),
        scalar,
    )


@statement(DeleteGroup)
def delete_group(wanted: DeleteGroup) -> Call[None]:
    return Call("SELECT penstock.delete_group(%s::text, %s::text)", (wanted.queue, wanted.group), nothing)


@statement(Seek)
def seek(wanted: Seek) -> Call[SeekResult]:
    return Call(
        "SELECT * FROM penstock.seek_partitions(%s::text, %s::text, %s::text, %s::bigint, %s::timestamptz, %s::text, "
        "%s::boolean, %s::bigint)",
        (
            wanted.queue,
            wanted.group,
            wanted.partition,
            wanted.offset,
            wanted.time,
            wanted.position,
            wanted.preview,
            wanted.after,
        ),
        # Sums, which PostgreSQL gives as numeric.
        lambda rows: SeekResult(*(None if number is None else int(number) for number in rows[0])),  # type: ignore[arg-type]
    )


@statement(GetLag)
def get_lag(wanted: GetLag) -> Call[int]:
    return Call("SELECT penstock.lag(%s::text, %s::text)", (wanted.queue, wanted.group), scalar)


@statement(ListGroups)
def list_groups(wanted: ListGroups) -> Call[list[GroupInfo]]:
    return Call(
        "SELECT queue, name, mode, subscription, created_at, config::text, settings::text, lag, depth, ready, claimed, "
        "waiting, enrolling, oldest_since, dead_letters, "
        # A schema of the version before ours does not have these.
        "coalesce((to_jsonb(g) ->> 'effective_lag')::bigint, lag), "
        "coalesce((to_jsonb(g) ->> 'paused')::boolean, false), "
        "(to_jsonb(g) ->> 'held_until')::timestamptz, (to_jsonb(g) ->> 'sampled_at')::timestamptz, "
        "coalesce((to_jsonb(g) ->> 'at_least')::boolean, false) FROM penstock.list_groups(%s::text) g",
        (wanted.queue,),
        lambda rows: [GroupInfo(*row[:5], *map(msgspec.json.decode, row[5:7]), *row[7:]) for row in rows],
    )


@statement(ListClaims)
def list_claims(wanted: ListClaims) -> Call[list[ClaimInfo]]:
    return Call(
        "SELECT * FROM penstock.list_claims(%s::text, %s::text)",
        (wanted.queue, wanted.group),
        lambda rows: [ClaimInfo(*row) for row in rows],
    )


@statement(GetHistory)
def get_history(wanted: GetHistory) -> Call[list[Transition]]:
    return Call(
        "SELECT * FROM penstock.history(%s::text, %s::text, %s::text, %s::integer)",
        (wanted.queue, wanted.group, wanted.partition, wanted.limit),
        lambda rows: [Transition(*row) for row in rows],
    )


@statement(ListDeadLetters)
def list_dead_letters(wanted: ListDeadLetters) -> Call[list[DeadLetterInfo]]:
    return Call(
        "SELECT * FROM penstock.list_dead_letters(%s::text, %s::text, %s::text, %s::bigint, %s::integer)",
        (wanted.queue, wanted.group, wanted.reason, wanted.after, wanted.limit),
        lambda rows: [DeadLetterInfo(*row) for row in rows],
    )


@statement(CountDeadLetters)
def count_dead_letters(wanted: CountDeadLetters) -> Call[list[DeadReason]]:
    return Call(
        "SELECT * FROM penstock.count_dead_letters(%s::text, %s::text)",
        (wanted.queue, wanted.group),
        lambda rows: [DeadReason(*row) for row in rows],
    )


@statement(Redrive)
def redrive(wanted: Redrive) -> Call[int]:
    return Call(
        "SELECT penstock.redrive(%s::text, %s::text, %s::text, %s::bigint[], %s::integer)", _letters(wanted), scalar
    )


@statement(Discard)
def discard(wanted: Discard) -> Call[int]:
    return Call(
        "SELECT penstock.discard(%s::text, %s::text, %s::text, %s::bigint[], %s::integer)", _letters(wanted), scalar
    )


@statement(Verify)
def verify(wanted: Verify) -> Call[list[Check]]:
    return Call("SELECT * FROM penstock.verify()", (), lambda rows: [Check(*row) for row in rows])


@statement(ListFailingTimers)
def list_failing_timers(wanted: ListFailingTimers) -> Call[list[FailingTimer]]:
    return Call("SELECT * FROM penstock.list_failing_timers()", (), lambda rows: [FailingTimer(*row) for row in rows])


@statement(Resync)
def resync(wanted: Resync) -> Call[ResyncResult]:
    return Call("SELECT * FROM penstock.resync(%s::bigint)", (wanted.after,), lambda rows: ResyncResult(*rows[0]))


def _letters(wanted: Redrive | Discard) -> tuple[Any, ...]:
    return (wanted.queue, wanted.group, wanted.reason, wanted.ids, wanted.limit)
