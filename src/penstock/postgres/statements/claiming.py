"""The statements that take messages and settle them.

Where a call may have to wait for locks it can give up soon, see `pushing`.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from penstock.broker.claims import AckedAndPopped, Claim, ClaimRange, Lease
from penstock.broker.infos import SweepResult
from penstock.broker.operations.claiming import (
    Ack,
    AckAndPop,
    HasPending,
    HasPendingMany,
    Nack,
    Pop,
    PopMany,
    Release,
    ReleaseMany,
    Renew,
    Sweep,
)
from penstock.broker.packing import unpack
from penstock.postgres.statements.call import (
    Call,
    Row,
    milliseconds,
    scalar,
    select_slices,
    slice_of,
    statement,
)

# By id, in groups of either mode: the functions look at the group's mode themselves.
_ACK = "SELECT penstock.ack_claims(%s::integer[], %s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[], %s::boolean)"
_ACK_LIMITED = (
    "SELECT penstock.ack_claims(CASE WHEN lock_timeout <> '' THEN %s::integer[] END, %s::bigint[], %s::uuid[], "
    "%s::bigint[], %s::bigint[], %s::boolean) FROM set_config('penstock.lock_timeout', %s, true) AS lock_timeout"
)
_RENEW = "SELECT penstock.renew_claims(%s::integer[], %s::bigint[], %s::uuid[], %s::float8, %s::boolean)"
# A schema of the version before has no such parameter, and is asked only for what it has.
_BEGIN = _RENEW.replace("%s::boolean)", "%s::boolean, begun => true)")
_RENEW_LIMITED = (
    "SELECT penstock.renew_claims(CASE WHEN lock_timeout <> '' THEN %s::integer[] END, %s::bigint[], %s::uuid[], "
    "%s::float8, %s::boolean) FROM set_config('penstock.lock_timeout', %s, true) AS lock_timeout"
)


@statement(Pop)
def pop(wanted: Pop) -> Call[list[Claim]]:
    queue = wanted.queue
    return Call(_POPS[wanted.ahead, wanted.creates], pop_columns(wanted), lambda rows: claims_of(queue, rows), hot=True)


@statement(AckAndPop)
def ack_and_pop(wanted: AckAndPop) -> Call[AckedAndPopped]:
    queue, ranges = wanted.pop.queue, wanted.ranges

    def parse(rows: Sequence[Row]) -> AckedAndPopped:
        # Without a claim there is one row, which has no partition.
        return AckedAndPopped(rows[0][0], claims_of(queue, [row[1:] for row in rows if row[2] is not None]))

    return Call(
        _ACK_AND_POP_AHEAD if wanted.pop.ahead else _ACK_AND_POP,
        (
            *_leases(ranges),
            [each.start for each in ranges],
            [each.stop for each in ranges],
            *pop_columns(wanted.pop),
        ),
        parse,
        hot=True,
    )


@statement(PopMany)
def pop_many(wanted: PopMany) -> Call[list[list[Claim] | None]]:
    pops = wanted.pops

    def parse(rows: Sequence[Row]) -> list[list[Claim] | None]:
        found: list[list[Row]] = [[] for _ in pops]
        again: set[int] = set()
        for row in rows:
            if row[2] is None:
                again.add(row[0] - 1)
            else:
                found[row[0] - 1].append(row[1:])
        return [None if index in again else claims_of(pop.queue, found[index]) for index, pop in enumerate(pops)]

    return Call(
        _POP_MANY if any(pop.durable or pop.auto_ack for pop in pops) else _POP_MANY_RELAXED,
        (
            [pop.queue for pop in pops],
            [pop.group for pop in pops],
            [pop.partition for pop in pops],
            [pop.max_messages for pop in pops],
            [pop.max_bytes for pop in pops],
            [pop.max_partitions for pop in pops],
            # A list has one type for the driver.
            [None if pop.lease is None else float(pop.lease) for pop in pops],
            [pop.consumer for pop in pops],
            [pop.auto_ack for pop in pops],
            [None if pop.ready_from is None else f"{{{','.join(map(str, pop.ready_from))}}}" for pop in pops],
        ),
        parse,
    )


@statement(HasPending)
def has_pending(wanted: HasPending) -> Call[bool]:
    return Call(
        "SELECT penstock.has_pending_messages(%s::text, %s::text, %s::text, %s::bigint[])",
        (
            wanted.queue,
            wanted.partition,
            wanted.group,
            None if wanted.ready_from is None else list(wanted.ready_from),
        ),
        lambda rows: bool(rows[0][0]),
    )


@statement(HasPendingMany)
def has_pending_many(wanted: HasPendingMany) -> Call[list[bool]]:
    return Call(
        "SELECT penstock.has_pending_messages(a.queue, a.partition, a.consumer_group, a.lows::bigint[]) "
        "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY "
        "a (queue, partition, consumer_group, lows, nth) ORDER BY a.nth",
        (
            [each.queue for each in wanted.asks],
            [each.partition for each in wanted.asks],
            [each.group for each in wanted.asks],
            # Lists of different lengths are no array of the server.
            [None if each.ready_from is None else f"{{{','.join(map(str, each.ready_from))}}}" for each in wanted.asks],
        ),
        lambda rows: [bool(row[0]) for row in rows],
    )


@statement(Ack)
def ack(wanted: Ack) -> Call[list[bool]]:
    ranges = wanted.ranges
    columns = (*_leases(ranges), [each.start for each in ranges], [each.stop for each in ranges], wanted.durable)
    if wanted.lock_timeout is None:
        return Call(_ACK, columns, scalar, hot=True)
    return Call(_ACK_LIMITED, (*columns, milliseconds(wanted.lock_timeout)), scalar)


@statement(Renew)
def renew(wanted: Renew) -> Call[list[datetime | None]]:
    columns = (*_leases(wanted.leases), wanted.lease, wanted.durable)
    if wanted.begun:
        return Call(_BEGIN, columns, scalar)
    if wanted.lock_timeout is None:
        return Call(_RENEW, columns, scalar)
    return Call(_RENEW_LIMITED, (*columns, milliseconds(wanted.lock_timeout)), scalar)


@statement(Nack)
def nack(wanted: Nack) -> Call[str | None]:
    return Call(
        "SELECT penstock.nack_claim(%s::integer, %s::bigint, %s::uuid, %s::bigint, %s::text, %s::text, %s::float8, "
        "%s::text)",
        (*wanted.lease, wanted.failed_offset, wanted.error, wanted.reason, wanted.delay, wanted.traceback),
        scalar,
    )


@statement(Release)
def release(wanted: Release) -> Call[bool]:
    return Call(
        "SELECT penstock.release_claim(%s::integer, %s::bigint, %s::uuid)",
        wanted.lease,
        lambda rows: bool(rows[0][0]),
    )


@statement(ReleaseMany)
def release_many(wanted: ReleaseMany) -> Call[list[bool]]:
    # In the order in which every function locks claims, so that nobody waits for another in a circle.
    return Call(
        "SELECT array_agg(r.released ORDER BY r.position) FROM ("
        "SELECT u.position, penstock.release_claim(u.group_id, u.partition_id, u.lease_id) AS released "
        "FROM (SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::uuid[]) "
        "WITH ORDINALITY u (group_id, partition_id, lease_id, position) "
        "ORDER BY u.group_id, u.partition_id, u.position) u OFFSET 0) r",
        _leases(wanted.leases),
        scalar,
    )


@statement(Sweep)
def sweep(wanted: Sweep) -> Call[SweepResult | None]:
    return Call(
        "SELECT s.*, extract(epoch FROM s.next_due - clock_timestamp())::float8 "
        "FROM penstock.sweep(%s::integer, coalesce(%s::timestamptz, '-infinity'), %s::boolean) s",
        (wanted.max_timers, wanted.since, wanted.durable),
        lambda rows: SweepResult(*rows[0]) if rows else None,
    )


@cache
def select_claims(source: str, first: str = "") -> str:
    """Return the statement for what `claims_of` reads of a function that claims."""
    return select_slices(
        f"{first} group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to, "
        "entry_level, entry_seq, shared, extract(epoch FROM lease_until - pg_catalog.clock_timestamp())::float8",
        source,
    )


def claims_of(queue: str, rows: Sequence[Row]) -> list[Claim]:
    """Read the claims that a pop got, from one row per slice."""
    claims: dict[tuple[int, int], Claim] = {}
    for row in rows:
        claim = claims.get((row[1], row[6]))
        if claim is None:
            claim = claims[row[1], row[6]] = Claim(*row[:12])
        found = slice_of(row[12:])
        claim.size += len(found.body)
        claim.messages += unpack(queue, claim.partition, claim.partition_id, found, claim.attempt)
    return list(claims.values())


# Not by way of pop_claims: a call of a function with so many columns costs as much as a look at a table.
_POP = select_claims(
    "ack_and_pop(NULL, NULL, NULL, NULL, NULL, %s::text, %s::text, %s::text, %s::integer, %s::bigint, %s::integer, "
    "%s::float8, %s::text, %s::boolean, %s::bigint[], %s::boolean, first_use => true)"
)
_MANY = (
    "pop_claims_batch(%s::text[], %s::text[], %s::text[], %s::integer[], %s::bigint[], %s::integer[], "
    "%s::float8[], %s::text[], %s::boolean[], %s::text[])"
)
_POP_MANY = select_claims(_MANY, "request,")
# Of use at the commit, so it does not matter when it is set; where there is no row, nothing was written.
_POP_MANY_RELAXED = select_claims(f"{_MANY}, pg_catalog.set_config('synchronous_commit', 'off', true)", "request,")
_ACK_AND_POP = select_claims(
    "ack_and_pop(%s::integer[], %s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[], %s::text, %s::text, %s::text, "
    "%s::integer, %s::bigint, %s::integer, %s::float8, %s::text, %s::boolean, %s::bigint[], %s::boolean)",
    "acked,",
)
_POP_AHEAD = _POP.replace("first_use => true)", "first_use => true, ahead => true)")
# By whether it is ahead, and whether it creates what is not there.
_POPS = {
    (False, True): _POP,
    (True, True): _POP_AHEAD,
    (False, False): _POP.replace("first_use => true", "first_use => NULL"),
    (True, False): _POP_AHEAD.replace("first_use => true", "first_use => NULL"),
}
_ACK_AND_POP_AHEAD = _ACK_AND_POP.replace("%s::bigint[], %s::boolean)", "%s::bigint[], %s::boolean, ahead => true)")


def pop_columns(wanted: Pop) -> tuple[Any, ...]:
    return (
        wanted.queue,
        wanted.group,
        wanted.partition,
        wanted.max_messages,
        wanted.max_bytes,
        wanted.max_partitions,
        wanted.lease,
        wanted.consumer,
        wanted.auto_ack,
        None if wanted.ready_from is None else list(wanted.ready_from),
        wanted.durable,
    )


def _leases(claims: Sequence[Lease] | Sequence[ClaimRange]) -> tuple[list[int], list[int], list[Any]]:
    return (
        [claim.group_id for claim in claims],
        [claim.partition_id for claim in claims],
        [claim.lease_id for claim in claims],
    )
