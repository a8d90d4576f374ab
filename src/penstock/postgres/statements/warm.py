"""The statements of the warm tier."""

from collections.abc import Sequence
from uuid import UUID

from penstock.broker.claims import Claim
from penstock.broker.operations.warm import (
    ClaimForWindow,
    FailWarmClaims,
    GetDatabaseIdentity,
    HoldWarmLease,
    ListQueuedWork,
    ListWarmClaims,
    ListWarmGroups,
    ReleaseWarmClaims,
)
from penstock.broker.warm import WarmGroup, WarmHold, WorkRow
from penstock.postgres.statements.call import Call, Row, scalar, statement
from penstock.postgres.statements.claiming import claims_of, select_claims

_CLAIM_FOR_WINDOW = select_claims(
    "claim_for_window(%s::integer, %s::bigint, %s::integer, %s::bigint, %s::integer, %s::float8, %s::text, "
    "%s::bigint[])"
)


@statement(ClaimForWindow)
def claim_for_window(wanted: ClaimForWindow) -> Call[list[Claim] | None]:
    def parse(rows: Sequence[Row]) -> list[Claim] | None:
        # Without a claim there is one row, which has no partition.
        return claims_of(wanted.queue, [row for row in rows if row[1] is not None]) if rows else None

    return Call(
        _CLAIM_FOR_WINDOW,
        (
            wanted.group_id,
            wanted.epoch,
            wanted.max_messages,
            wanted.max_bytes,
            wanted.max_partitions,
            wanted.lease,
            wanted.holder,
            None if wanted.ready_from is None else list(wanted.ready_from),
        ),
        parse,
        hot=True,
    )


@statement(GetDatabaseIdentity)
def get_database_identity(wanted: GetDatabaseIdentity) -> Call[str]:
    return Call("SELECT penstock.database_identity()", (), scalar)


@statement(ListWarmGroups)
def list_warm_groups(wanted: ListWarmGroups) -> Call[list[WarmGroup]]:
    return Call(
        "SELECT * FROM penstock.list_warm_groups()",
        (),
        lambda rows: [WarmGroup(*row) for row in rows],
    )


@statement(ListQueuedWork)
def list_queued_work(wanted: ListQueuedWork) -> Call[list[WorkRow]]:
    return Call(
        "SELECT * FROM penstock.list_queued_work()",
        (),
        lambda rows: [WorkRow(*row) for row in rows],
    )


@statement(HoldWarmLease)
def hold_warm_lease(wanted: HoldWarmLease) -> Call[WarmHold | None]:
    return Call(
        "SELECT epoch, obstacle, mode, capacity, most_bytes, refill_below, again_at, lease_time, longest "
        "FROM penstock.hold_warm_lease(%s::integer, %s::text, %s::bigint, %s::float8, %s::text, %s::bigint, "
        "%s::bigint, %s::float8, %s::bigint)",
        (
            wanted.group_id,
            wanted.holder,
            wanted.epoch,
            wanted.hold_for,
            wanted.state,
            wanted.items,
            wanted.size,
            wanted.longest_lease,
            wanted.transitions,
        ),
        lambda rows: WarmHold(*rows[0]) if rows else None,
    )


@statement(ListWarmClaims)
def list_warm_claims(wanted: ListWarmClaims) -> Call[list[tuple[int, UUID]]]:
    return Call(
        "SELECT partition_id, lease_id FROM penstock.list_warm_claims(%s::integer, %s::text, %s::float8)",
        (wanted.group_id, wanted.holder, wanted.quiet_for),
        lambda rows: [(row[0], row[1]) for row in rows],
    )


@statement(ReleaseWarmClaims)
def release_warm_claims(wanted: ReleaseWarmClaims) -> Call[int | None]:
    return Call(
        "SELECT penstock.release_warm_claims(%s::integer, %s::bigint, %s::bigint[], %s::uuid[])",
        (wanted.group_id, wanted.epoch, list(wanted.partition_ids), list(wanted.lease_ids)),
        scalar,
    )


@statement(FailWarmClaims)
def fail_warm_claims(wanted: FailWarmClaims) -> Call[list[str | None]]:
    parts = wanted.parts
    return Call(
        "SELECT penstock.fail_warm_claims(%s::integer, %s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[], "
        "%s::boolean[], %s::text, %s::text, %s::float8, %s::text)",
        (
            wanted.group_id,
            [part.partition_id for part in parts],
            [part.lease_id for part in parts],
            [part.start for part in parts],
            [part.stop for part in parts],
            [part.ahead for part in parts],
            wanted.error,
            wanted.reason,
            wanted.wait,
            wanted.traceback,
        ),
        scalar,
    )
