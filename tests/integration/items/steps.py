"""The steps of workers: settle items of claims, with outputs, on a connection that the test chooses."""

from collections.abc import Sequence
from typing import Any

from groups.steps import run

from databases import Connection
from penstock.broker.claims import Claim
from penstock.broker.items import ItemOutcome, Output, SettledClaim, SettledItems
from penstock.broker.messages import Message
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.items import SettleItems
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch

ALL = ((None, None),)


def failed(offset: int, error: str = "oops", wait: float | None = 0.0, **more: Any) -> ItemOutcome:
    """Say that an item failed."""
    return ItemOutcome(offset, "failed", wait, error, **more)


def snoozed(offset: int, wait: float = 0.0) -> ItemOutcome:
    """Say that an item comes back later."""
    return ItemOutcome(offset, "snoozed", wait)


def dead(offset: int, reason: str | None = None, **more: Any) -> ItemOutcome:
    """Say that an item is a dead letter."""
    return ItemOutcome(offset, "dead", reason=reason, **more)


def settled(
    claim: Claim,
    *outcomes: ItemOutcome,
    done: Sequence[tuple[int | None, int | None]] = (),
    release: bool = False,
) -> SettledClaim:
    """Say what became of a claim."""
    return SettledClaim(claim.lease, done, outcomes, release)


def output(claim: int, *values: str, queue: str = "out", partition: str = "o") -> Output:
    """Return the output of a claim."""
    return Output(claim, PushBatch.of(Place(queue, partition), [Message(value.encode()) for value in values]))


def settle(
    connection: Connection, *claims: SettledClaim, outputs: Sequence[Output] = (), pop: Pop | None = None
) -> SettledItems:
    """Settle claims."""
    return run(connection, SettleItems(claims, outputs, pop))


def settle_one(connection: Connection, claim: Claim, *outcomes: ItemOutcome, **more: Any) -> str | None:
    """Settle one claim and say how that went."""
    return settle(connection, settled(claim, *outcomes, **more)).settled[0]


def values(connection: Connection, queue: str = "out", partition: str = "o") -> list[str]:
    """Return what lies in a partition."""
    rows = connection.execute(
        "SELECT payload FROM penstock.messages WHERE queue_name = %s AND partition_name = %s ORDER BY message_offset",
        (queue, partition),
    ).fetchall()
    return [bytes(value).decode() for (value,) in rows]


def segments(connection: Connection, queue: str = "out") -> list[int]:
    """Return how many messages each segment of a queue has."""
    rows = connection.execute(
        "SELECT s.count FROM penstock.segments s JOIN penstock.partitions p USING (partition_id)"
        " JOIN penstock.queues q USING (queue_id) WHERE q.name = %s ORDER BY s.partition_id, s.base_offset",
        (queue,),
    ).fetchall()
    return [count for (count,) in rows]
