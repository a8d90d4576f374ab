"""Calls that answer many callers at once, and the check that idle consumers make. Like `calls`, it runs none.

Where a call of several may have to wait for locks it can be hurried: `penstock.lock_timeout` is set for its own
transaction, in the same statement. The functions are made to depend on that, so that it happens first.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.broker.messages import PushResult
from penstock.broker.packing import Segment
from penstock.broker.producers import Stamp
from penstock.postgres.statements import calls, group_calls
from penstock.postgres.statements.calls import Call, Place, Row, names
from penstock.postgres.statements.group_calls import Claim, Settling

# How long a call of several waits for a lock: longer than a commit, and less than a caller notices.
HURRY = "50ms"

_PUSH = (
    "SELECT p.* FROM set_config('penstock.lock_timeout', %s, true) AS hurry, LATERAL penstock.push_segments("
    "CASE WHEN hurry <> '' THEN %s::text[] END, %s::text[], %s::integer[], %b::bytea[], %b::bytea[], "
    "%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %s::uuid, %s::bigint) p"
)
# By the statement that is not in a hurry.
_SETTLING = {
    group_calls.ACK: (
        "SELECT penstock.ack_claims(CASE WHEN hurry <> '' THEN %s::integer[] END, %s::bigint[], %s::uuid[], "
        "%s::bigint[], %s::bigint[]) FROM set_config('penstock.lock_timeout', %s, true) AS hurry"
    ),
    group_calls.RENEW: (
        "SELECT penstock.renew_claims(CASE WHEN hurry <> '' THEN %s::integer[] END, %s::bigint[], %s::uuid[], "
        "%s::float8) FROM set_config('penstock.lock_timeout', %s, true) AS hurry"
    ),
}


class PopRequest(NamedTuple):
    """What a caller wants to pop."""

    queue: str
    group: str
    partition: str | None
    max_messages: int
    max_bytes: int
    max_partitions: int
    lease: float | None
    consumer: str
    auto_ack: bool

    def alone(self, lows: list[int] | None) -> Call[list[Claim]]:
        """Return the call of this request by itself."""
        return group_calls.pop(*self, lows)


def push(segments: Sequence[tuple[Place, Segment]], stamp: Stamp, hurried: bool) -> Call[list[PushResult]]:
    """Push packed segments of several callers, under one stamp."""
    call = calls.push(segments, stamp)
    if not hurried:
        return call
    return Call(
        _PUSH,
        (
            HURRY,
            [place.queue for place, _ in segments],
            [place.partition for place, _ in segments],
            *calls.segment_arrays([segment for _, segment in segments]),
            *stamp,
        ),
        call.parse,
        call.repeatable,
        call.stamped,
    )


def pop(requests: Sequence[PopRequest], lows: Sequence[list[int] | None]) -> Call[list[list[Claim] | None]]:
    """Claim what is next for many; None for a request that must be made again, alone."""

    def parse(rows: Sequence[Row]) -> list[list[Claim] | None]:
        found: list[list[Row]] = [[] for _ in requests]
        again: set[int] = set()
        for row in rows:
            if row[2] is None:
                again.add(row[0] - 1)
            else:
                found[row[0] - 1].append(row[1:])
        return [
            None if index in again else group_calls.claims_of(request.queue, found[index])
            for index, request in enumerate(requests)
        ]

    columns = [list(column) for column in zip(*requests, strict=True)]
    # A list has one type for the driver.
    columns[6] = [None if lease is None else float(lease) for lease in columns[6]]
    return Call(
        group_calls.select_claims(
            "pop_claims_batch(%s::text[], %s::text[], %s::text[], %s::integer[], %s::bigint[], %s::integer[], "
            "%s::float8[], %s::text[], %s::boolean[], %s::text[])",
            "request,",
        ),
        (*columns, [None if low is None else f"{{{','.join(map(str, low))}}}" for low in lows]),
        parse,
    )


def settle(parts: Sequence[Settling], hurried: bool) -> Call[list[BaseException | None]]:
    """Settle claims of several callers; an error for each whose lease was lost."""
    first = parts[0]
    arrays = len(first.parameters) - first.rest
    joined = [[entry for part in parts for entry in part.parameters[column]] for column in range(arrays)]

    def parse(rows: Sequence[Row]) -> list[BaseException | None]:
        answers: list[BaseException | None] = []
        begin = 0
        for part in parts:
            end = begin + len(part.parameters[0])
            try:
                part.parse([(rows[0][0][begin:end],)])
                answers.append(None)
            except Exception as error:
                answers.append(error)
            begin = end
        return answers

    parameters: tuple[Any, ...] = (*joined, *first.parameters[arrays:])
    if hurried:
        return Call(_SETTLING[first.sql], (*parameters, HURRY), parse)
    return Call(first.sql, parameters, parse)


def has_pending_messages(queue: str, partition: str | None, group: str, lows: list[int] | None) -> Call[bool]:
    """Ask whether a pop could get something now."""
    return Call(
        "SELECT penstock.has_pending_messages(%s::text, %s::text, %s::text, %s::bigint[])",
        (*names(queue), partition, *names(group, what=("group",)), lows),
        lambda rows: bool(rows[0][0]),
        True,
    )
