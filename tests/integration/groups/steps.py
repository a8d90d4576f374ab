"""The steps of consumers, each on a connection that the test chooses, so that it decides what is committed when.

Nobody waits for time to pass: `pass_time` moves deadlines into the past instead.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from log.interleaving import Running

from databases import Connection
from penstock.errors import LeaseLost
from penstock.postgres.statements import group_calls
from penstock.postgres.statements.calls import Call
from penstock.postgres.statements.group_calls import Claim, Sweep

T = TypeVar("T")
MODES = ["ordered", "shared"]
# Messages "x" with offsets as many as asked for, to one partition, as one segment.
PUSH_SOME = (
    "SELECT first_offset FROM penstock.push_segment('q', %s, %s::integer, repeat('x', %s)::bytea,"
    " (SELECT string_agg(penstock.int32_pack(n::integer), '' ORDER BY n) FROM generate_series(1, %s) n))"
)


def run(connection: Connection, call: Call[T]) -> T:
    """Run a call of the clients, in whatever transaction the connection is in."""
    return call.parse(connection.execute(call.sql.encode(), call.parameters, binary=True).fetchall())


def start(connection: Connection, call: Call[Any]) -> Running:
    """Run a call in a thread."""
    return Running(connection, call.sql, *call.parameters)


def create_group(connection: Connection, group: str = "g", mode: str = "ordered", **settings: Any) -> int:
    """Create a group of queue q that reads all there is."""
    return run(connection, group_calls.create_group("q", group, mode, "all", settings))


def push_some(connection: Connection, count: int, partition: str = "p") -> None:
    """Push so many messages as one segment."""
    connection.execute(PUSH_SOME.encode(), (partition, count, count, count))


def push_to_many(connection: Connection, partitions: int, name: str = "n") -> None:
    """Push one message to each of so many partitions: n1, n2 …"""
    connection.execute(
        "SELECT penstock.push_segments(array_agg('q'::text), array_agg(%s || n), array_agg(1), array_agg('x'::bytea),"
        " array_agg('\\x01000000'::bytea)) FROM generate_series(1, %s) n",
        (name, partitions),
    )


def pop_call(
    group: str = "g",
    *,
    partition: str | None = None,
    most: int = 100,
    partitions: int = 1,
    lease: float | None = None,
    auto_ack: bool = False,
) -> Call[list[Claim]]:
    """Return the call of a pop."""
    return group_calls.pop("q", group, partition, most, 8 << 20, partitions, lease, "c", auto_ack, None)


def pop(connection: Connection, group: str = "g", **options: Any) -> Claim | None:
    """Claim what is next in line."""
    claims = run(connection, pop_call(group, **options))
    return claims[0] if claims else None


def must_pop(connection: Connection, group: str = "g", **options: Any) -> Claim:
    """Claim what is next in line; there must be something."""
    claim = pop(connection, group, **options)
    assert claim is not None, "nothing was in line"
    return claim


def ack(connection: Connection, claim: Claim) -> None:
    """Acknowledge a claim."""
    run(connection, group_calls.ack([claim], None))


def nack(connection: Connection, claim: Claim) -> str:
    """Say that a claim failed."""
    return run(connection, group_calls.nack(claim, None, "oops", None, 0.0))


def renew(connection: Connection, claim: Claim) -> None:
    """Extend a lease."""
    run(connection, group_calls.renew([claim], None))


def release(connection: Connection, claim: Claim) -> bool:
    """Take a claim away from whoever holds it."""
    lease = claim.lease_id if claim.shared else None
    return run(connection, group_calls.release(claim.group_id, claim.partition_id, lease))


SETTLING: dict[str, Callable[[Claim], Call[Any]]] = {
    "ack": lambda claim: group_calls.ack([claim], None),
    "nack": lambda claim: group_calls.nack(claim, None, "oops", None, 0.0),
    "renew": lambda claim: group_calls.renew([claim], None),
}


def sweep(connection: Connection) -> Sweep | None:
    """Do what time brings."""
    return run(connection, group_calls.sweep())


def pass_time(connection: Connection, *states: str) -> None:
    """Make timers due, all of them or those of the states that are named."""
    wanted = list(states or "ctp")
    connection.execute(
        "UPDATE penstock.journal SET due_at = due_at - interval '1 day'"
        " WHERE due_at > '-infinity' AND state::text = ANY (%s)",
        (wanted,),
    )
    if "c" in wanted:
        connection.execute("UPDATE penstock.claims SET due_at = due_at - interval '1 day' WHERE due_at > '-infinity'")


def drain(connection: Connection, group: str = "g", **options: Any) -> list[tuple[str, int]]:
    """Consume until nothing comes any more, however long one waits; return what came, in order."""
    came: list[tuple[str, int]] = []
    while True:
        while claims := run(connection, pop_call(group, **options)):
            came += [(message.partition, message.offset) for claim in claims for message in claim.messages]
            run(connection, group_calls.ack(claims, None))
        pass_time(connection, "t", "p")
        swept = sweep(connection)
        assert swept is not None, "another sweep is at work"
        if swept.woken + swept.enrolled + swept.trimmed == 0:
            return came


def offsets(came: list[tuple[str, int]], partition: str = "p") -> list[int]:
    """Return the offsets of one partition, in the order they came."""
    return [offset for where, offset in came if where == partition]


def outcome(action: Callable[[], object]) -> str:
    """Say how settling a claim ended."""
    try:
        action()
    except LeaseLost:
        return "lost"
    return "done"


def newest(connection: Connection, group: str = "g", partition: str = "p") -> tuple[Any, ...]:
    """Return the state of a partition in a group."""
    rows = connection.execute(
        "SELECT j.version, j.state::text, j.committed, j.claimed_to, j.lease_id FROM penstock.journal j"
        " JOIN penstock.consumer_groups g USING (group_id) JOIN penstock.partitions p USING (partition_id)"
        " WHERE g.name = %s AND p.name = %s ORDER BY j.version DESC LIMIT 1",
        (group, partition),
    ).fetchall()
    return tuple(rows[0]) if rows else ()


def violations(connection: Connection) -> dict[str, int]:
    """Return the checks of verify that found something."""
    return {check.name: check.violations for check in run(connection, group_calls.verify()) if check.violations}
