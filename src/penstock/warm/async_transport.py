"""The transport that serves groups with a window from Valkey, and wraps the one that serves everything else.

A take that finds nothing in a window asks PostgreSQL, and so does every take while there is no window, its dispatcher
is silent, or Valkey cannot be used. That is always right: what lies in a window is claimed in PostgreSQL, so nobody
else gets it. Acknowledgements go to the window, whose dispatcher tells PostgreSQL; all else is settled there at once.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from penstock.broker.async_transport import AsyncTransactionScope, AsyncTransport
from penstock.broker.claims import AckedAndPopped, Claim, ClaimRange, Lease
from penstock.broker.hints import HintListener, Hints
from penstock.broker.items import SETTLED, SettledItems
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
from penstock.broker.operations.items import NoteItems, ReadNotes, SaveStep, SettleItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.errors import PenstockError, ValkeyUnavailable, ValkeyUnusable
from penstock.warm.async_relaying import AWAY, AsyncRelay
from penstock.warm.async_scopes import AsyncWarmScope, translated
from penstock.warm.async_settling import AsyncSettling, is_plain, without
from penstock.warm.async_taking import PATIENCE, SPARE, AsyncTaking
from penstock.warm.async_window import AsyncWindows, Part
from penstock.warm.hearing import WarmHints
from penstock.warm.leases import is_warm, new_token, token_of
from penstock.warm.links import AsyncLink, Refused

log = logging.getLogger("penstock.warm")

R = TypeVar("R")
# What need not see the acknowledgements that this process has just made.
_UNCONCERNED = (Sweep, NoteItems, SaveStep, ReadNotes)


class AsyncWarmTransport:
    """Routes operations to windows and to PostgreSQL."""

    def __init__(self, transport: AsyncTransport, link: AsyncLink) -> None:
        self._transport = transport
        self._link = link
        self.windows = AsyncWindows(link, transport)
        self._settling = AsyncSettling(self.windows)
        self._relay = AsyncRelay(self.windows, self._settling)
        self._taking = AsyncTaking(self.windows, self._settling, self._relay)

    def __repr__(self) -> str:
        return repr(self._transport)

    @property
    def address(self) -> str:
        """What identifies the broker within this process, once it is open."""
        return self._transport.address

    async def open(self) -> None:
        """Find the broker and see that it is ready."""
        await self._transport.open()

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[AsyncTransactionScope]:
        """Begin a transaction; what is settled in it is settled in PostgreSQL."""
        return self._transaction(connection)

    @property
    def can_listen(self) -> bool:
        """Whether hints of other processes arrive here."""
        return self._transport.can_listen

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes, and hear when something is loaded into a window."""
        return WarmHints(self._transport.listen(listener), listener, self._link.address)

    async def close(self) -> None:
        """Close all connections."""
        await self._link.close()
        await self._transport.close()

    async def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,  # noqa: ASYNC109 - for the connection, and not for the whole
        *,
        retry: bool = True,
    ) -> R:
        """Run an operation where it belongs."""

        async def inner(wanted: Operation[Any]) -> Any:
            return await self._transport.run(wanted, timeout, retry=retry)

        answer: Any
        match operation:
            case Pop():
                answer = await self._pop(operation, inner)
            case PopMany():
                answer = await self._pop_many(operation, inner)
            case Ack() if any(is_warm(each.lease_id) for each in operation.ranges):
                answer = await self._ack(operation, inner)
            case AckAndPop():
                answer = await self._ack_and_pop(operation, inner)
            case SettleItems():
                answer = await self._settle(operation, inner)
            case Nack() if is_warm(operation.lease.lease_id):
                answer, following = await self._settling.nack(operation, inner)
                await self._relay.follow(following)
            case Renew() if any(is_warm(lease.lease_id) for lease in operation.leases):
                answer = await self._renew(operation, inner)
            case Release() if is_warm(operation.lease.lease_id):
                answer = (await self._release([operation.lease]))[0]
            case ReleaseMany() if any(is_warm(lease.lease_id) for lease in operation.leases):
                answer = await self._release_many(operation, inner)
            case HasPending():
                answer = await self._has_pending(operation, inner)
            case HasPendingMany():
                answer = await self._has_pending_many(operation.asks, inner)
            case NoteItems() | SaveStep() | ReadNotes():
                answer = await inner(await translated(operation, self._settling))
            case _:
                answer = await self._pass_on(operation, inner)
        return cast(R, answer)

    async def _pop(self, wanted: Pop, inner: Any) -> list[Claim]:
        claims, loading = await self._taking.take(wanted, inner)
        return claims or await self._pop_elsewhere(wanted, inner, loading)

    async def _pop_elsewhere(self, wanted: Pop, inner: Any, loading: bool) -> list[Claim]:
        """Pop from PostgreSQL, after a window had nothing. What is just being loaded must not be overtaken."""
        claims = await self._taking.take_late(wanted, inner) if loading else []
        claims = claims or await inner(wanted) or await self._taking.take_late(wanted, inner)
        if not claims and self._relay.waits:
            # What was acknowledged here may be before it.
            await self._relay.until_reported()
            claims = await inner(wanted) or await self._taking.take_late(wanted, inner)
        return claims

    async def _pop_many(self, wanted: PopMany, inner: Any) -> list[list[Claim] | None]:
        await self._look_for(wanted.pops)
        answers: list[list[Claim] | None] = [(await self._taking.take(pop, inner))[0] or None for pop in wanted.pops]
        rest = [number for number, answer in enumerate(answers) if answer is None]
        if rest:
            found = await inner(PopMany([wanted.pops[number] for number in rest]))
            for number, claims in zip(rest, found, strict=True):
                answers[number] = claims
                if claims is not None and not claims:
                    answers[number] = await self._taking.take_late(wanted.pops[number], inner)
        return answers

    async def _ack(self, wanted: Ack, inner: Any) -> list[bool]:
        acked = [False] * len(wanted.ranges)
        cold: list[int] = []
        by_group: dict[int, list[int]] = {}
        for number, each in enumerate(wanted.ranges):
            if is_warm(each.lease_id):
                by_group.setdefault(each.group_id, []).append(number)
            else:
                cold.append(number)
        if cold:
            # First, because it may raise: then nothing was acknowledged.
            rest = msgspec.structs.replace(wanted, ranges=[wanted.ranges[number] for number in cold])
            for number, answer in zip(cold, await inner(rest), strict=True):
                acked[number] = answer
        for group_id, numbers in by_group.items():
            ranges = [wanted.ranges[number] for number in numbers]
            try:
                answers = await self._ack_in_window(group_id, ranges, inner)
            except AWAY:
                answers = await self._taking.ack_in_postgres(ranges, inner)
            for number, answer in zip(numbers, answers, strict=True):
                acked[number] = answer
        return acked

    async def _ack_in_window(self, group_id: int, ranges: Sequence[ClaimRange], inner: Any) -> list[bool]:
        parts = self._settling.parts_of(ranges)
        reported, answers = await self.windows.settle(group_id, "ack", parts.parts)
        self._relay.note(group_id, reported)
        return await self._ack_unknown(ranges, self._settling.live(parts, answers), inner)

    async def _ack_unknown(self, ranges: Sequence[ClaimRange], live: list[bool], inner: Any) -> list[bool]:
        """Acknowledge in PostgreSQL what the window does not know of, because it was attached after the take."""
        unknown = [
            number
            for number, (each, alive) in enumerate(zip(ranges, live, strict=True))
            if not alive and await self._settling.unknown(Lease(each.group_id, each.partition_id, each.lease_id))
        ]
        if unknown:
            answers = await self._taking.ack_in_postgres([ranges[number] for number in unknown], inner)
            for number, answer in zip(unknown, answers, strict=True):
                live[number] = answer
        return live

    async def _ack_and_pop(self, wanted: AckAndPop, inner: Any) -> AckedAndPopped:
        if not any(is_warm(each.lease_id) for each in wanted.ranges):
            claims, _ = await self._taking.take(wanted.pop, inner)
            if not claims:
                both: AckedAndPopped = await inner(wanted)
                return both if both.claims else both._replace(claims=await self._taking.take_late(wanted.pop, inner))
            return AckedAndPopped(await inner(Ack(wanted.ranges, durable=wanted.pop.durable)), claims)
        done = await self._ack_and_take(wanted.ranges, wanted.pop, inner)
        if done is not None:
            return done
        acked = await self._ack(Ack(wanted.ranges, durable=wanted.pop.durable), inner)
        return AckedAndPopped(acked, await self._pop_after(wanted.pop, inner))

    async def _pop_after(self, wanted: Pop, inner: Any, loading: bool | None = None) -> list[Claim]:
        """Pop after something was settled, which must not be lost; if it fails, the next pop says what is wrong."""
        try:
            if loading is None:
                return await self._pop(wanted, inner)
            return await self._pop_elsewhere(wanted, inner, loading)
        except PenstockError:
            log.debug("what was settled stays settled; the next pop says what is wrong", exc_info=True)
            return []

    async def _ack_and_take(self, ranges: Sequence[ClaimRange], pop: Pop, inner: Any) -> AckedAndPopped | None:
        """Acknowledge and take in one call, and from PostgreSQL what the window does not have.

        None where it is not all of one window: nothing was done then.
        """
        group_id = ranges[0].group_id
        if pop.auto_ack or not all(is_warm(each.lease_id) and each.group_id == group_id for each in ranges):
            return None
        parts = self._settling.parts_of(ranges)
        token, asked_at = new_token(), time.monotonic()
        try:
            if await self.windows.find(pop.queue, pop.group) != group_id:
                return None
            reported, answers, taken = await self.windows.settle_and_take(group_id, parts.parts, token, pop)
        except Refused:
            return None
        except (ValkeyUnavailable, ValkeyUnusable):
            # The reply may have been lost: what was taken with it is still there.
            responds = time.monotonic() < asked_at + PATIENCE
            acked = await self._taking.ack_in_postgres(ranges, inner)
            with suppress(*AWAY):
                if responds:
                    found = await self.windows.take(group_id, token, pop)
                    return AckedAndPopped(acked, (await self._taking.received(group_id, token, found, pop, inner))[0])
            return AckedAndPopped(acked, await self._pop_after(pop, inner))
        self._relay.note(group_id, reported)
        live = await self._ack_unknown(ranges, self._settling.live(parts, answers), inner)
        if taken is None:
            self.windows.forget(pop.queue, pop.group)
            return AckedAndPopped(live, await self._pop_after(pop, inner, False))
        claims, loading = await self._taking.received(group_id, token, taken, pop, inner)
        return AckedAndPopped(live, claims or await self._pop_after(pop, inner, loading))

    async def _settle(self, wanted: SettleItems, inner: Any) -> SettledItems:
        if not any(is_warm(claim.lease.lease_id) for claim in wanted.claims):
            claims = [] if wanted.pop is None else (await self._taking.take(wanted.pop, inner))[0]
            answer: SettledItems = await inner(without(wanted) if claims else wanted)
            return answer._replace(claims=claims) if claims else answer
        busy = {each.claim for each in wanted.outputs} | {each.claim for each in wanted.results}
        plain = all(
            is_warm(claim.lease.lease_id) and is_plain(claim) and number not in busy
            for number, claim in enumerate(wanted.claims)
        )
        if plain and wanted.pop is not None and not any(claim.release_rest for claim in wanted.claims):
            done = await self._settle_and_take(wanted, wanted.pop, inner)
            if done is not None:
                return done
        answer = await (self._settle_plainly(wanted) if plain else self._settle_all(wanted, inner))
        if wanted.pop is not None:
            answer = answer._replace(claims=await self._pop_after(wanted.pop, inner))
        return answer

    async def _settle_and_take(self, wanted: SettleItems, pop: Pop, inner: Any) -> SettledItems | None:
        """Acknowledge items and take the next ones in one call; None where that cannot be."""
        ranges, of = [], []
        for number, claim in enumerate(wanted.claims):
            for start, stop in claim.done:
                ranges.append(ClaimRange(*claim.lease, start, stop))
                of.append(number)
        done = await self._ack_and_take(ranges, pop, inner) if ranges else None
        if done is None:
            return None
        lost = {number for number, alive in zip(of, done.acked, strict=True) if not alive}
        settled = [None if number in lost else SETTLED for number in range(len(wanted.claims))]
        return SettledItems(settled, [[] for _ in settled], done.claims)

    async def _settle_plainly(self, wanted: SettleItems) -> SettledItems:
        """Acknowledge and give back in the window."""
        settled: list[str | None] = []
        for claim in wanted.claims:
            group_id, ranges = (
                claim.lease.group_id,
                [ClaimRange(*claim.lease, start, stop) for start, stop in claim.done],
            )
            try:
                live = all(await self._ack_in_window(group_id, ranges, self._transport.run)) if ranges else True
                if claim.release_rest:
                    live = (await self._release([claim.lease]))[0] and live
            except AWAY:
                return await self._settle_all(wanted, self._transport.run)
            settled.append(SETTLED if live else None)
        return SettledItems(settled, [[] for _ in settled], [])

    async def _settle_all(self, wanted: SettleItems, inner: Any) -> SettledItems:
        answer, following = await self._settling.settle(without(wanted), inner)
        await self._relay.follow(following)
        return answer

    async def _renew(self, wanted: Renew, inner: Any) -> list[datetime | None]:
        answers: list[datetime | None] = [None] * len(wanted.leases)
        cold: list[int] = []
        by_group: dict[int, list[int]] = {}
        for number, lease in enumerate(wanted.leases):
            if is_warm(lease.lease_id):
                by_group.setdefault(lease.group_id, []).append(number)
            else:
                cold.append(number)
        if cold:
            rest = msgspec.structs.replace(wanted, leases=[wanted.leases[number] for number in cold])
            for number, answer in zip(cold, await inner(rest), strict=True):
                answers[number] = answer
        for group_id, numbers in by_group.items():
            runs = [token_of(cast(Any, wanted.leases[number].lease_id)) for number in numbers]
            try:
                lasting, granted, live = await self.windows.renew(group_id, runs, wanted.lease, wanted.begun)
            except AWAY:
                lasting, granted, live = True, 0.0, [False] * len(numbers)
            moment = datetime.now(UTC) + timedelta(seconds=granted)
            for number, run, alive in zip(numbers, runs, live, strict=True):
                lease = wanted.leases[number]
                if not alive:
                    # Lost, or the window cannot be asked, or was attached after the take: what PostgreSQL has counts.
                    answers[number] = await self._renew_behind(wanted, lease, inner)
                    continue
                if not lasting:
                    # The dispatcher does not know of leases so long, or there is none: its claims must outlast them.
                    behind = await self._settling.lease_in_postgres(lease)
                    if behind is not None and (await inner(Renew([behind], granted + SPARE, durable=False)))[0] is None:
                        continue
                answers[number] = moment
                self._settling.renewed(run.text, granted)
        return answers

    async def _renew_behind(self, wanted: Renew, lease: Lease, inner: Any) -> datetime | None:
        """Renew the claim in PostgreSQL behind a lease that only this process remembers."""
        held = await self._settling.unknown(lease)
        if held is None or lease.lease_id is None:
            return None
        behind = Lease(lease.group_id, lease.partition_id, held.note.lease_id)
        # Others may have something of the claim, or nobody: what this worker does not have must not end with its lease.
        token = token_of(lease.lease_id).text
        seconds = self._settling.lease_time(token) if wanted.lease is None else wanted.lease
        (until,) = await inner(msgspec.structs.replace(wanted, leases=[behind], lease=seconds + SPARE))
        if until is None:
            return None
        self._settling.renewed(token, seconds)
        return datetime.now(UTC) + timedelta(seconds=seconds)

    async def _release(self, leases: Sequence[Lease]) -> list[bool]:
        answers = []
        for lease in leases:
            part = Part(*token_of(cast(Any, lease.lease_id)))
            try:
                _, live = await self.windows.settle(lease.group_id, "release", [part])
            except AWAY:
                live = [False]
            if live[0]:
                self._settling.settled(part)
            answers.append(live[0])
        return answers

    async def _release_many(self, wanted: ReleaseMany, inner: Any) -> list[bool]:
        cold = [lease for lease in wanted.leases if not is_warm(lease.lease_id)]
        answers = iter(await inner(ReleaseMany(cold)) if cold else [])
        warm = iter(await self._release([lease for lease in wanted.leases if is_warm(lease.lease_id)]))
        return [next(warm) if is_warm(lease.lease_id) else next(answers) for lease in wanted.leases]

    async def _has_pending(self, wanted: HasPending, inner: Any) -> bool:
        return await self._is_ready(wanted) or cast(bool, await inner(wanted))

    async def _has_pending_many(self, asks: Sequence[HasPending], inner: Any) -> list[bool]:
        await self._look_for(asks)
        answers = [await self._is_ready(each) for each in asks]
        rest = [number for number, ready in enumerate(answers) if not ready]
        if rest:
            for number, answer in zip(rest, await inner(HasPendingMany([asks[each] for each in rest])), strict=True):
                answers[number] = answer
        return answers

    async def _look_for(self, wanted: Sequence[Pop | HasPending]) -> None:
        """Find out in one call which of these groups have windows, however many they are."""
        with suppress(*AWAY):
            await self.windows.look_for([(each.queue, each.group) for each in wanted])

    async def _is_ready(self, wanted: HasPending) -> bool:
        """Return whether a window has something that can be taken."""
        try:
            group_id = await self.windows.find(wanted.queue, wanted.group)
            if group_id is not None and wanted.partition is None:
                fill = await self.windows.fill(group_id)
                return bool(fill.live and fill.ready)
        except AWAY:
            self.windows.forget(wanted.queue, wanted.group)
        return False

    async def _pass_on(self, operation: Operation[Any], inner: Any) -> Any:
        """Run on PostgreSQL, which knows what was acknowledged here, and tell windows what does not hold any more."""
        if self._relay.waits and _is_concerned(operation):
            await self._relay.until_reported()
        answer = await inner(operation)
        # Also where the last call to Valkey has failed: its dispatcher would find out by itself, but seconds later.
        await self._relay.changed(operation, answer)
        return answer

    @asynccontextmanager
    async def _transaction(self, connection: Any) -> AsyncIterator[AsyncTransactionScope]:
        async with self._transport.transaction(connection) as scope:
            warm = AsyncWarmScope(scope, self._settling, self.windows)
            yield warm
        if connection is None:
            await self._relay.follow(warm.following)


def _is_concerned(operation: Operation[Any]) -> bool:
    if isinstance(operation, Push):
        # Whether a message with the same unique key is done follows from what was acknowledged.
        return any(batch.unique_keys is not None for batch in operation.batches)
    return not isinstance(operation, _UNCONCERNED)
