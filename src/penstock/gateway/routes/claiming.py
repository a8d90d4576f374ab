"""Take messages and settle them: pop with a long poll, ack, nack, snooze, renew, release, and transactions."""

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from penstock.broker.claims import MAX_BYTES, ClaimRange
from penstock.broker.items import ItemOutcome, SettledClaim
from penstock.broker.messages import Message
from penstock.broker.operations.claiming import Ack, Nack, ReleaseMany, Renew
from penstock.broker.operations.items import SettleItems
from penstock.consuming.async_batch import AsyncBatch
from penstock.errors import InvalidInput, LeaseLost, PenstockError
from penstock.gateway.call import Call, Reply
from penstock.gateway.envelopes import envelope, lease_of, message_of, read_lease
from penstock.gateway.pages import Number, Wait
from penstock.gateway.routes.messages import PushedTo, pushed_to
from penstock.gateway.scopes import Scope
from penstock.operations.envelopes import Envelope, PushedEnvelope

Seconds = Annotated[float, msgspec.Meta(gt=0, le=604_800)]
Some = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Outcome = Literal["done", "lost"]


class PopOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to claim, for how long, and how long to wait for it."""

    partition: str | None = None
    max_messages: Some = 100
    max_partitions: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = MAX_BYTES
    lease: Seconds | None = None
    wait: Wait = 0.0
    auto_ack: bool = False
    mode: Literal["ordered", "shared"] = "ordered"
    subscription: str = "all"


class OnePop(PopOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pop of a group; `wait` is that of the whole request."""

    queue: str
    group: str = "default"


class PopMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pops of several groups or queues."""

    pops: Annotated[list[OnePop], msgspec.Meta(min_length=1, max_length=100)]
    wait: Wait = 0.0


class PoppedClaim(msgspec.Struct, frozen=True):
    """Messages of one partition, leased until `lease_until`; `lease` settles them. With `auto_ack` there is none."""

    partition: str
    attempt: int
    start: int
    stop: int
    lease: str | None
    lease_until: datetime | None
    messages: list[Envelope]


class Popped(msgspec.Struct, frozen=True):
    """What was claimed, in order within each partition."""

    queue: str
    group: str
    claims: list[PoppedClaim]


class PoppedMany(msgspec.Struct, frozen=True):
    """What came of each pop, in the order given; null where there was nothing."""

    results: list[Popped | None]


class Settle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of a claim: offsets from `start` up to and without `stop`, by default all of them.

    In an ordered group all before `stop` is done, whatever `start` is.
    """

    lease: str
    start: Number | None = None
    stop: Number | None = None


class Acks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done."""

    acks: Annotated[list[Settle], msgspec.Meta(min_length=1, max_length=1000)]


class Settled(msgspec.Struct, frozen=True):
    """For each lease `done`, or `lost`: it had ended, nothing changed, and its messages are delivered again."""

    results: list[Outcome]


class Nacks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim that failed, at `failed_offset` if that is known: all before it is done."""

    lease: str
    failed_offset: Number | None = None
    error: str | None = None
    reason: str | None = None
    delay: Annotated[float, msgspec.Meta(ge=0, le=3_155_760_000)] | None = None


class Failed(msgspec.Struct, frozen=True):
    """What becomes of the messages: `retry`, `dead letter`, or `lost` where the lease had ended."""

    result: Literal["retry", "dead letter", "lost"]


class Snooze(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim that is to come back in a while: all before `offset` is done. It counts no attempt."""

    lease: str
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3_155_760_000)]
    offset: Number | None = None


class Renewals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Leases to extend from now, by `seconds` or the lease time of the group."""

    leases: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)]
    seconds: Seconds | None = None


class Renewed(msgspec.Struct, frozen=True):
    """Until when each lease lasts now; null where it had ended."""

    lease_until: list[datetime | None]


class Leases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claims to give back."""

    leases: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)]


class QueuePush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages for one queue."""

    queue: str
    messages: Annotated[list[PushedEnvelope], msgspec.Meta(min_length=1)]


class Together(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Acknowledgements and pushes that take effect together, or not at all."""

    acks: Annotated[list[Settle], msgspec.Meta(max_length=1000)] = []
    pushes: Annotated[list[QueuePush], msgspec.Meta(max_length=1000)] = []


class DoneTogether(msgspec.Struct, frozen=True):
    """Where the messages of each push went."""

    results: list[list[PushedTo]]


async def pop(call: Call) -> Reply:
    """Claim the next messages of a group; 204 when there are none, after `wait` seconds."""
    queue, group = call.path["queue"], call.path["group"]
    taking = _take(call, queue, group, call.query, call.query.wait)
    batch = await (_unless_gone(call, taking) if call.query.wait > 0 else taking)
    return Reply(status=204) if batch is None else Reply(_popped(batch))


async def pop_many(call: Call) -> Reply:
    """Claim the next messages of several groups at once; with `wait`, as soon as one of them has some."""
    for each in call.body.pops:
        await call.authorize(Scope.POP, each.queue)
    found = await _all_now(call, 0.0)
    if call.body.wait > 0 and not any(found):
        found = await _unless_gone(call, _first_of(call)) or found
    if not any(found):
        return Reply(status=204)
    return Reply(PoppedMany([None if batch is None else _popped(batch) for batch in found]))


async def _all_now(call: Call, wait: float) -> list[AsyncBatch | None]:
    # Side by side, so that they share calls to the database.
    taking = [_take(call, each.queue, each.group, each, wait) for each in call.body.pops]
    found = await asyncio.gather(*taking, return_exceptions=True)
    failed = next((each for each in found if isinstance(each, BaseException)), None)
    if failed is not None:
        for each in found:
            if isinstance(each, AsyncBatch):
                await each.release()
        raise failed
    return [each for each in found if not isinstance(each, BaseException)]


async def _first_of(call: Call) -> list[AsyncBatch | None]:
    """Wait until one of several groups has something, and take what the others have by then."""
    waiting = [
        asyncio.ensure_future(_take(call, each.queue, each.group, each, call.body.wait)) for each in call.body.pops
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    return [each if isinstance(each, AsyncBatch) else None for each in ended]


async def _take(call: Call, queue: str, group: str, wanted: PopOptions, wait: float) -> AsyncBatch | None:
    return await call.gateway.client.pop(
        queue,
        group,
        partition=wanted.partition,
        max_messages=wanted.max_messages,
        max_partitions=wanted.max_partitions,
        max_bytes=wanted.max_bytes,
        lease=wanted.lease,
        wait=wait,
        auto_ack=wanted.auto_ack,
        mode=wanted.mode,
        subscription=_subscription(wanted.subscription),
    )


def _subscription(given: str) -> str | datetime:
    if given in ("all", "new"):
        return given
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(f"subscription is {given!r:.100} but must be all, new or a time such as …Z") from None


async def _unless_gone(call: Call, taking: Coroutine[Any, Any, Any]) -> Any:
    """Wait for messages, as long as the caller is there and the gateway is not ending.

    What is claimed for a caller who is gone is given back at once, and no attempt counts.
    """
    task = asyncio.ensure_future(taking)
    gone = asyncio.ensure_future(call.disconnected())
    ending = asyncio.ensure_future(call.gateway.stopping.wait())
    try:
        await asyncio.wait([task, gone, ending], return_when=asyncio.FIRST_COMPLETED)
        if not gone.done() and task.done():
            return await _if_still_allowed(call, task.result())
        task.cancel()
        found: Any = (await asyncio.gather(task, return_exceptions=True))[0]
        if not gone.done():
            if isinstance(found, PenstockError):
                raise found
            return None if isinstance(found, BaseException) else await _if_still_allowed(call, found)
        await _release(found)
        return None
    finally:
        for other in (task, gone, ending):
            other.cancel()


async def _if_still_allowed(call: Call, found: Any) -> Any:
    """Return what was claimed, unless the key was revoked or the token has expired while the caller waited."""
    try:
        await call.gateway.authority.recheck(call.request)
    except PenstockError:
        await _release(found)
        raise
    return found


async def _release(found: Any) -> None:
    for batch in found if isinstance(found, list) else [found]:
        if isinstance(batch, AsyncBatch):
            await batch.release()


def _popped(batch: AsyncBatch) -> Popped:
    return Popped(
        batch.queue,
        batch.group,
        [
            PoppedClaim(
                claim.partition,
                claim.attempt,
                claim.start,
                claim.stop,
                None if claim.lease_id is None else lease_of(claim),
                claim.lease_until,
                [envelope(message) for message in claim.messages],
            )
            for claim in batch.claims
        ],
    )


async def ack(call: Call) -> Settled:
    """Acknowledge messages: they are done."""
    done = await call.gateway.client.run(Ack([_range(each) for each in call.body.acks]))
    return Settled(["done" if each else "lost" for each in done])


def _range(given: Settle) -> ClaimRange:
    if given.start is not None and given.stop is not None and given.start > given.stop:
        raise InvalidInput(f"start is {given.start} and must not be after stop, which is {given.stop}")
    return ClaimRange(*read_lease(given.lease).lease, given.start, given.stop)


async def nack(call: Call) -> Failed:
    """Say that a claim failed: it is delivered again after the backoff, and finally becomes a dead letter."""
    given = call.body
    lease = read_lease(given.lease).lease
    result = await call.gateway.client.run(Nack(lease, given.failed_offset, given.error, given.reason, given.delay))
    return Failed("lost" if result is None else "dead letter" if result == "dead letter" else "retry")


async def snooze(call: Call) -> Settled:
    """Let messages come back in a while, without counting an attempt; all before `offset` is done."""
    found = read_lease(call.body.lease)
    offset = found.start if call.body.offset is None else call.body.offset
    if offset < found.start:
        raise InvalidInput(f"the claim begins at offset {found.start}, and {offset} is before it")
    done = [(found.start, offset)] if offset > found.start else []
    claim = SettledClaim(found.lease, done, [ItemOutcome(offset, "snoozed", call.body.seconds)], release_rest=True)
    reply = await call.gateway.client.run(SettleItems([claim]))
    return Settled(["done" if each == "settled" else "lost" for each in reply.settled])


async def renew(call: Call) -> Renewed:
    """Extend leases."""
    leases = [read_lease(each).lease for each in call.body.leases]
    return Renewed(await call.gateway.client.run(Renew(leases, call.body.seconds)))


async def release(call: Call) -> Settled:
    """Give claims back: they are delivered again at once, and no attempt counts."""
    leases = [read_lease(each).lease for each in call.body.leases]
    released = await call.gateway.client.run(ReleaseMany(leases))
    return Settled(["done" if each else "lost" for each in released])


async def together(call: Call) -> DoneTogether:
    """Acknowledge and push in one transaction: all of it takes effect, or nothing does."""
    for each in call.body.pushes:
        await call.authorize(Scope.PUSH, each.queue)
    ranges = [_range(each) for each in call.body.acks]
    pending = []
    async with call.gateway.client.transaction() as tx:
        if ranges:
            acked = await tx.run(Ack(ranges))
            if not all(acked):
                lost = call.body.acks[acked.index(False)].lease
                raise LeaseLost(f"the lease {lost} has ended; nothing was changed")
        for each in call.body.pushes:
            messages: list[Message] = [message_of(given) for given in each.messages]
            pending.append(tx.push_many(each.queue, messages))
    return DoneTogether([[pushed_to(result) for result in each.results] for each in pending])
