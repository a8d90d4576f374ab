"""Every call of the SQL engine that is about groups: claiming, settling, operating. Like `calls`, it runs none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, delay_time, lease_time
from penstock.broker.messages import StoredMessage
from penstock.broker.packing import unpack
from penstock.broker.texts import storable
from penstock.errors import InvalidInput, LeaseLost
from penstock.postgres.statements.calls import (
    Call,
    Row,
    encode_config,
    group_names,
    names,
    nothing,
    scalar,
    select_slices,
    slice_of,
)

# The size of a pop, of each partition: about what a handler can hold.
MAX_BYTES = 8 << 20


@dataclass(slots=True)
class Claim:
    """A leased range of offsets of one partition."""

    group_id: int
    partition_id: int
    partition: str
    lease_id: UUID | None
    lease_until: datetime | None
    attempt: int
    start: int
    stop: int
    level: int
    line_seq: int
    shared: bool
    # How long it is leased for, by the server's clock: this machine's may be wrong.
    lease_seconds: float | None
    messages: list[StoredMessage] = field(default_factory=list)


class Settling(Call[None], frozen=True):
    """A call that settles claims, each for itself: any number of them can be sent as one.

    Its parameters are arrays with an entry per claim, but for the last few, as many as `rest` says. The third array
    holds the lease ids. The answer is one array, with an entry per claim.
    """

    rest: int = 0


class GroupInfo(msgspec.Struct, frozen=True):
    """A group: what waits (`lag`, `depth`), what is held, since when, and what is dead."""

    queue: str
    name: str
    mode: str
    subscription: str
    created_at: datetime
    config: dict[str, Any]
    settings: dict[str, Any]
    lag: int
    depth: int
    ready: int
    claimed: int
    waiting: int
    enrolling: bool
    oldest_since: datetime | None
    dead_letters: int


class ClaimInfo(msgspec.Struct, frozen=True):
    """A claim that is held now. Whoever knows the lease id can settle it: only admins are told."""

    queue: str
    group: str
    partition: str
    group_id: int
    partition_id: int
    lease_id: UUID | None
    consumer: str | None
    attempt: int
    start: int
    stop: int
    acquired_at: datetime
    expires_at: datetime
    shared: bool


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that exhausted its attempts in a group, with a copy of its own."""

    dead_letter_id: int
    group: str
    partition: str
    offset: int
    message_id: UUID
    timestamp: datetime
    value: bytes | None
    key: str | None
    headers: dict[str, str] | None
    reason: str
    attempts: int
    first_error: str | None
    last_error: str | None
    consumer: str | None
    died_at: datetime
    traceback: str | None = None


class DeadReason(msgspec.Struct, frozen=True):
    """How many dead letters a group has for one reason."""

    group: str
    reason: str
    letters: int
    first_died_at: datetime
    last_died_at: datetime


class Seek(NamedTuple):
    """What a chunk of a seek did, or would do."""

    visited: int
    moved: int
    redelivered: int
    skipped: int
    revoked: int
    busy: int
    next_partition: int | None


class Sweep(NamedTuple):
    """What a sweep did, when the next timer is due (if soon), where the next sweep may begin (if this one saw all).

    `due_in` is how many seconds the next timer is away, by the server's clock.
    """

    woken: int
    trimmed: int
    enrolled: int
    next_due: datetime | None
    swept_to: datetime | None
    due_in: float | None = None


class Resync(NamedTuple):
    """What a chunk of a resync repaired."""

    visited: int
    repaired: int
    busy: int
    next_partition: int | None


class FailingTimer(NamedTuple):
    """A timer that the sweep could not serve and put off: what it is, since when, how often, and what went wrong."""

    kind: str
    queue: str | None
    group: str | None
    partition: str | None
    place: int | None
    since: datetime
    failures: int
    retry_at: datetime
    sqlstate: str
    error: str


class Check(msgspec.Struct, frozen=True):
    """One check of `verify`: how many violate it. All must be 0."""

    name: str
    violations: int
    meaning: str


class Transition(msgspec.Struct, frozen=True):
    """One step in the life of a partition in a group."""

    version: int
    at: datetime
    state: str
    committed: int
    claimed_to: int
    skipped: int
    attempt: int
    due_at: datetime | None
    lease_id: UUID | None
    consumer: str | None
    error: str | None


def pop(
    queue: str,
    group: str,
    partition: Name | None,
    max_messages: int,
    max_bytes: int,
    max_partitions: int,
    lease: Seconds | None,
    consumer: str | None,
    auto_ack: bool,
    lows: list[int] | None,
) -> Call[list[Claim]]:
    """Claim what is next."""
    group_names(queue, group, partition)
    partition = as_text(partition)

    return Call(
        select_claims(
            "pop_claims(%s::text, %s::text, %s::text, %s::integer, %s::bigint, %s::integer, %s::float8, %s::text, "
            "%s::boolean, %s::bigint[])"
        ),
        (queue, group, partition, max_messages, max_bytes, max_partitions, lease_time(lease), consumer, auto_ack, lows),
        lambda rows: claims_of(queue, rows),
        hot=True,
    )


@cache
def select_claims(source: str, first: str = "") -> str:
    """Return the statement for what `claims_of` reads of a function that claims."""
    return select_slices(
        f"{first} group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to, "
        "line_level, line_seq, shared, extract(epoch FROM lease_until - pg_catalog.clock_timestamp())::float8",
        source,
    )


def claims_of(queue: str, rows: Sequence[Row]) -> list[Claim]:
    """Read the claims that a pop got, from one row per slice."""
    claims: dict[tuple[int, int], Claim] = {}
    for row in rows:
        claim = claims.get((row[1], row[6]))
        if claim is None:
            claim = claims[row[1], row[6]] = Claim(*row[:12])
        claim.messages += unpack(queue, claim.partition, claim.partition_id, slice_of(row[12:]), claim.attempt)
    return list(claims.values())


# By id, in groups of either mode: the engine looks at the group's mode itself.
ACK = "SELECT penstock.ack_claims(%s::integer[], %s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[])"
RENEW = "SELECT penstock.renew_claims(%s::integer[], %s::bigint[], %s::uuid[], %s::float8)"


def ack(claims: Sequence[Claim], up_to: int | None) -> Settling:
    """Acknowledge claims; raises LeaseLost for those whose lease is not live."""
    return Settling(
        ACK,
        (*_leases(claims), [None] * len(claims), [up_to] * len(claims)),
        lambda rows: _require(claims, rows[0][0]),
        hot=True,
    )


def ack_message(claim: Claim, offset: int) -> Settling:
    """Acknowledge one message of a shared claim."""
    return Settling(
        ACK,
        (*_leases([claim]), [offset], [offset + 1]),
        lambda rows: _require([claim], rows[0][0]),
        hot=True,
    )


def nack(
    claim: Claim,
    offset: int | None,
    error: str | None,
    reason: str | None,
    delay: Seconds | None,
    traceback: str | None = None,
) -> Call[str]:
    """Say that a claim failed; raises LeaseLost when its lease is not live. Any texts are stored."""

    def parse(rows: Sequence[Row]) -> str:
        _require([claim], [rows[0][0] is not None])
        outcome: str = rows[0][0]
        return outcome

    texts = [None if text is None else storable(text) for text in (error, reason, traceback)]
    arguments = (claim.group_id, claim.partition_id, claim.lease_id, offset, *texts[:2], delay_time(delay), texts[2])
    return Call(
        "SELECT penstock.nack_claim(%s::integer, %s::bigint, %s::uuid, %s::bigint, %s::text, %s::text, %s::float8, "
        "%s::text)",
        arguments,
        parse,
    )


def renew(claims: Sequence[Claim], lease: Seconds | None) -> Settling:
    """Give claims a new deadline; raises LeaseLost for those whose lease is not live."""
    lease = lease_time(lease)

    def parse(rows: Sequence[Row]) -> None:
        for claim, until in zip(claims, rows[0][0], strict=True):
            if until is not None:
                claim.lease_until = until
        _require(claims, [until is not None for until in rows[0][0]])

    return Settling(RENEW, (*_leases(claims), lease), parse, rest=1)


def release(group_id: int, partition_id: int, lease_id: UUID | None) -> Call[bool]:
    """Give a claim back without counting an attempt; without a lease id, take it from whoever holds it."""
    return Call(
        "SELECT penstock.release_claim(%s::integer, %s::bigint, %s::uuid)",
        (group_id, partition_id, lease_id),
        lambda rows: bool(rows[0][0]),
    )


def sweep(since: datetime | None = None) -> Call[Sweep | None]:
    """Do what time brings, or what it brought since then; None when another process is at it."""
    return Call(
        "SELECT s.*, extract(epoch FROM s.next_due - clock_timestamp())::float8 "
        "FROM penstock.sweep(since => coalesce(%s::timestamptz, '-infinity')) s",
        (since,),
        lambda rows: Sweep(*rows[0]) if rows else None,
        True,
    )


def create_group(
    queue: str, group: str, mode: str, subscription: str | datetime, config: Mapping[str, Any]
) -> Call[int]:
    """Create a group."""
    moment = subscription if isinstance(subscription, datetime) else None
    if moment is not None and moment.tzinfo is None:
        raise InvalidInput(f"{moment!r} has no time zone; say datetime(…, tzinfo=UTC)")
    return Call(
        "SELECT penstock.create_group(%s::text, %s::text, %s::jsonb, %s::text, %s::timestamptz, %s::text)",
        (*group_names(queue, group), encode_config(config), subscription if moment is None else "time", moment, mode),
        scalar,
    )


def configure_group(queue: str, group: str, changes: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Change a group's settings."""
    return Call(
        "SELECT penstock.configure_group(%s::text, %s::text, %s::jsonb)::text",
        (*group_names(queue, group), encode_config(changes)),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
        True,
    )


def delete_group(queue: str, group: str) -> Call[None]:
    """Delete a group."""
    return Call("SELECT penstock.delete_group(%s::text, %s::text)", group_names(queue, group), nothing)


def seek(
    queue: str,
    group: str,
    partition: str | None,
    to: int | str | datetime,
    preview: bool,
    after: int,
) -> Call[Seek]:
    """Move a group in a chunk of partitions."""
    if isinstance(to, bool) or not isinstance(to, int | str | datetime):
        raise InvalidInput(f"seek goes to an offset, a time, 'earliest' or 'latest', not to {to!r}")
    if isinstance(to, datetime) and to.tzinfo is None:
        raise InvalidInput(f"{to!r} has no time zone; say datetime(…, tzinfo=UTC)")
    return Call(
        "SELECT * FROM penstock.seek_partitions(%s::text, %s::text, %s::text, %s::bigint, %s::timestamptz, %s::text, "
        "%s::boolean, %s::bigint)",
        (
            *group_names(queue, group),
            partition,
            to if isinstance(to, int) else None,
            to if isinstance(to, datetime) else None,
            to if isinstance(to, str) else None,
            preview,
            after,
        ),
        lambda rows: Seek(*map(_whole, rows[0])),
    )


def lag(queue: str, group: str) -> Call[int]:
    """Ask how far a group is behind."""
    return Call("SELECT penstock.lag(%s::text, %s::text)", group_names(queue, group), scalar, True)


def groups(queue: str | None) -> Call[list[GroupInfo]]:
    """Describe the groups of a queue, or all."""
    return Call(
        "SELECT queue, name, mode, subscription, created_at, config::text, settings::text, lag, depth, ready, claimed, "
        "waiting, enrolling, oldest_since, dead_letters FROM penstock.list_groups(%s::text)",
        (queue,),
        lambda rows: [GroupInfo(*row[:5], *map(msgspec.json.decode, row[5:7]), *row[7:]) for row in rows],
        True,
    )


def claims(queue: str | None, group: str | None) -> Call[list[ClaimInfo]]:
    """List the claims that are held now."""
    return Call(
        "SELECT * FROM penstock.list_claims(%s::text, %s::text)",
        (queue, group),
        lambda rows: [ClaimInfo(*row) for row in rows],
        True,
    )


def history(queue: str, group: str, partition: str, limit: int) -> Call[list[Transition]]:
    """Tell what happened to a partition in a group, newest first."""
    return Call(
        "SELECT * FROM penstock.history(%s::text, %s::text, %s::text, %s::integer)",
        (*group_names(queue, group, partition), limit),
        lambda rows: [Transition(*row) for row in rows],
        True,
    )


def dead_letters(queue: str, group: str | None, reason: str | None, after: int, limit: int) -> Call[list[DeadLetter]]:
    """List dead letters, oldest first."""
    return Call(
        "SELECT * FROM penstock.list_dead_letters(%s::text, %s::text, %s::text, %s::bigint, %s::integer)",
        (*names(queue), group, reason, after, limit),
        lambda rows: [DeadLetter(*row) for row in rows],
        True,
    )


def dead_reasons(queue: str, group: str | None) -> Call[list[DeadReason]]:
    """Count dead letters by reason."""
    return Call(
        "SELECT * FROM penstock.count_dead_letters(%s::text, %s::text)",
        (*names(queue), group),
        lambda rows: [DeadReason(*row) for row in rows],
        True,
    )


def redrive(queue: str, group: str | None, reason: str | None, ids: list[int] | None, limit: int) -> Call[int]:
    """Deliver a chunk of dead letters again, to the group that failed."""
    return Call(
        "SELECT penstock.redrive(%s::text, %s::text, %s::text, %s::bigint[], %s::integer)",
        (*names(queue), group, reason, ids, limit),
        scalar,
    )


def discard(queue: str, group: str | None, reason: str | None, ids: list[int] | None, limit: int) -> Call[int]:
    """Throw a chunk of dead letters away."""
    return Call(
        "SELECT penstock.discard(%s::text, %s::text, %s::text, %s::bigint[], %s::integer)",
        (*names(queue), group, reason, ids, limit),
        scalar,
    )


def verify() -> Call[list[Check]]:
    """Compare state and log."""
    return Call("SELECT * FROM penstock.verify()", (), lambda rows: [Check(*row) for row in rows], True)


def failing_timers() -> Call[list[FailingTimer]]:
    """List the timers that failed and were put off."""
    return Call(
        "SELECT * FROM penstock.list_failing_timers()", (), lambda rows: [FailingTimer(*row) for row in rows], True
    )


def resync(after: int) -> Call[Resync]:
    """Repair readiness in a chunk of partitions."""
    return Call("SELECT * FROM penstock.resync(%s::bigint)", (after,), lambda rows: Resync(*rows[0]), True)


def _leases(claims: Sequence[Claim]) -> tuple[list[int], list[int], list[UUID | None]]:
    return (
        [claim.group_id for claim in claims],
        [claim.partition_id for claim in claims],
        [claim.lease_id for claim in claims],
    )


def _require(claims: Sequence[Claim], live: Sequence[bool]) -> None:
    lost = [claim.partition for claim, ok in zip(claims, live, strict=True) if not ok]
    if lost:
        raise LeaseLost(
            f"the lease of {', '.join(map(repr, lost))} has expired or is another consumer's; nothing was changed "
            "there and the messages are delivered again. Renew in time, or give the group a longer lease_time."
        )


def _whole(number: Any) -> Any:
    """Return sums, which PostgreSQL gives as numeric, as ints."""
    return None if number is None else int(number)
