"""The steps of consumers, each on a connection that the test chooses, so that it decides what is committed when.

Nobody waits for time to pass: `pass_time` moves deadlines into the past instead.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from log.interleaving import Running

from databases import Connection
from penstock.broker.claims import Claim
from penstock.broker.infos import SweepResult
from penstock.broker.operations.claiming import Ack, Nack, Pop, Release, Renew, Sweep
from penstock.broker.operations.groups import CreateGroup, Verify
from penstock.broker.operations.operation import Operation
from penstock.errors import LeaseLost
from penstock.postgres.statements.call import call_for

T = TypeVar("T")
MODES = ["ordered", "shared"]
# Messages "x" with offsets as many as asked for, to one partition, as one segment.
PUSH_SOME = (
    "SELECT first_offset FROM penstock.push_segment('q', %s, %s::integer, repeat('x', %s)::bytea,"
    " (SELECT string_agg(penstock.int32_pack(n::integer), '' ORDER BY n) FROM generate_series(1, %s) n))"
)


def run(connection: Connection, operation: Operation[T]) -> T:
    """Run an operation of the clients, in whatever transaction the connection is in."""
    call = call_for(operation)
    return reply(operation, connection.execute(call.sql.encode(), call.parameters, binary=True).fetchall())


def start(connection: Connection, operation: Operation[Any]) -> Running:
    """Run an operation in a thread."""
    call = call_for(operation)
    return Running(connection, call.sql, *call.parameters)


def reply(operation: Operation[T], rows: list[Any]) -> T:
    """Read the reply to an operation; a lease that was lost raises, as it does in a client."""
    found = call_for(operation).parse(rows)
    if isinstance(operation, Ack | Renew) and isinstance(found, list) and not all(found):
        raise LeaseLost("lost")
    if isinstance(operation, Nack) and found is None:
        raise LeaseLost("lost")
    return found


def ack_of(claims: list[Claim], up_to: int | None = None) -> Ack:
    """Return the acknowledgement of claims, or of all below an offset."""
    return Ack([claim.done(stop=up_to) for claim in claims])


def create_group(connection: Connection, group: str = "g", mode: str = "ordered", **settings: Any) -> int:
    """Create a group of queue q that reads all there is."""
    return run(connection, CreateGroup("q", group, mode, config=settings))


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
) -> Operation[list[Claim]]:
    """Return a pop."""
    return Pop("q", group, partition, most, 8 << 20, partitions, lease, "c", auto_ack)


def pop(connection: Connection, group: str = "g", **options: Any) -> Claim | None:
    """Claim what is next in the ready list."""
    claims = run(connection, pop_call(group, **options))
    return claims[0] if claims else None


def must_pop(connection: Connection, group: str = "g", **options: Any) -> Claim:
    """Claim what is next in the ready list; there must be something."""
    claim = pop(connection, group, **options)
    assert claim is not None, "nothing was ready"
    return claim


def ack(connection: Connection, claim: Claim) -> None:
    """Acknowledge a claim."""
    run(connection, ack_of([claim]))


def nack(connection: Connection, claim: Claim) -> str | None:
    """Say that a claim failed."""
    return run(connection, Nack(claim.lease, None, "oops", None, 0.0))


def renew(connection: Connection, claim: Claim) -> None:
    """Extend a lease."""
    run(connection, Renew([claim.lease]))


def release(connection: Connection, claim: Claim) -> bool:
    """Take a claim away from whoever holds it."""
    return run(connection, Release(claim.lease if claim.shared else claim.lease._replace(lease_id=None)))


SETTLING: dict[str, Callable[[Claim], Operation[Any]]] = {
    "ack": lambda claim: ack_of([claim]),
    "nack": lambda claim: Nack(claim.lease, None, "oops", None, 0.0),
    "renew": lambda claim: Renew([claim.lease]),
}


def sweep(connection: Connection) -> SweepResult | None:
    """Do what time brings."""
    return run(connection, Sweep())


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
            run(connection, ack_of(claims))
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
    return {check.name: check.violations for check in run(connection, Verify()) if check.violations}
