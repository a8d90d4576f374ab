"""Takes messages for an asynchronous client: looks for them, waits for them, settles them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, lease_time, patience, truth, whole
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import MAX_BYTES, AckedAndPopped, Claim, ClaimRange
from penstock.broker.counters import Counters
from penstock.broker.infos import SweepResult
from penstock.broker.items import SettledItems  # async only
from penstock.broker.operations.claiming import Ack, AckAndPop, HasPending, Pop, Release, Renew
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.items import SettleItems  # async only
from penstock.broker.operations.operation import Operation
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.async_reporter import AsyncReporter
from penstock.consuming.async_sweeps import AsyncSweeps
from penstock.consuming.outages import Outage, is_outage
from penstock.consuming.polling import ReadyCursor, make_consumer_id
from penstock.consuming.reporting import Reports
from penstock.consuming.tasks import Signal, finished, finished_or_undone
from penstock.consuming.waiting import Key, Step, WaitGroups
from penstock.consuming.wakes import Wakes
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    LeaseLost,
    NotFound,
    PenstockError,
    ReadOnlyServer,
    SetupError,
)

log = logging.getLogger("penstock.consumer")

# In bytes.
_LONGEST_NAME = 255


class AsyncLast:
    """The batch that a loop has handled last, if its ack is still to be sent."""

    def __init__(self) -> None:
        self._batch: AsyncBatch | None = None

    def note(self, batch: AsyncBatch) -> None:
        """Take note that a batch is to be acknowledged."""
        self._batch = batch

    @property
    def waits(self) -> bool:
        """Whether there is one."""
        return self._batch is not None

    def take(self) -> AsyncBatch | None:
        """Return it, to be acknowledged now."""
        batch, self._batch = self._batch, None
        return batch


class AsyncConsumer:
    """Takes messages through a transport. `AsyncClient` has its public face, with the full descriptions."""

    def __init__(
        self,
        transport: AsyncTransport,
        waits: WaitGroups,
        wakes: Wakes,
        counters: Counters,
        pending_check: bool,
        reports: Reports,
    ) -> None:
        self.pending_check = pending_check
        self._transport = transport
        self._waits = waits
        self._wakes = wakes
        self._counters = counters
        self._sweeps = AsyncSweeps(transport, waits, counters)
        self._begin()
        self.reports = reports
        self._reporter = AsyncReporter(transport, reports, self.id)

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._sweeps.reset()
        self._begin()
        self._reporter.reset(self.id)

    def rename(self, name: str) -> None:
        """Take another name, before anything is claimed under the first one."""
        if not 1 <= len(name.encode()) <= _LONGEST_NAME:
            raise InvalidInput(f"the name of a consumer is {name!r} but must have 1 to {_LONGEST_NAME} bytes")
        self.id = name
        self._reporter.reset(name)

    def _begin(self) -> None:
        self.id = make_consumer_id()
        self._ready_cursors: dict[tuple[str, str], ReadyCursor] = {}
        # Groups that are not just the default kind: how to create them.
        self._kinds: dict[tuple[str, str], CreateGroup] = {}
        # Whether pushes are heard of.
        self._hears = False
        # Whether the schema tells what is begun from what is claimed ahead; that of the version before does not.
        self._knows_ahead = True

    async def close(self) -> None:
        """Sweep no more, and report for the last time."""
        await self._sweeps.close()
        await self._reporter.close()

    async def prepare(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Connect, create the group where it is not just the default kind, and hear of pushes."""
        await self._transport.open()
        await self._subscribe(queue, group, mode, subscription)
        self._wakes.listen()

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with this client."""
        return self._waits

    async def claim(self, wanted: Pop, done: Sequence[ClaimRange], outage: Outage) -> AckedAndPopped:
        """Acknowledge and pop, in one call."""
        if not self._knows_ahead:
            wanted = msgspec.structs.replace(wanted, ahead=False)
        ready = self._ready_cursor(wanted.queue, wanted.group)
        if (begin := ready.lows()) is not None:
            wanted = msgspec.structs.replace(wanted, ready_from=begin)
        try:
            if done:
                reply = await self._transport.run(AckAndPop(done, wanted), _left(outage), retry=False)
            else:
                reply = AckedAndPopped([], await self._run_pop(wanted, outage))
        except SetupError as error:
            if not wanted.ahead or isinstance(error, ReadOnlyServer):
                raise
            self._knows_ahead = False
            return await self.claim(wanted, done, outage)
        if reply.claims:
            ready.took(reply.claims)
        self._waits.stir()
        self._sweeps.ensure()
        return reply

    async def begin(self, claims: Sequence[Claim], lease: float | None = None) -> list[bool]:
        """Say that what was claimed ahead, and delivered before, is handled from now on; for each, whether it may be.

        Of a first delivery it need not be said: see `expire_claim`.
        """
        retried = [claim.lease for claim in claims if claim.attempt > 1]
        if not retried or not self._knows_ahead:
            return [True] * len(claims)
        deadlines = await self._transport.run(Renew(retried, lease, durable=False, begun=True))
        live = {of.lease_id for of, deadline in zip(retried, deadlines, strict=True) if deadline is not None}
        return [claim.attempt == 1 or claim.lease_id in live for claim in claims]

    async def settle_items(self, operation: SettleItems, outage: Outage) -> SettledItems:  # async only
        """Settle items of claims, and pop, in one call."""
        pop = operation.pop
        if pop is not None and (begin := self._ready_cursor(pop.queue, pop.group).lows()) is not None:
            operation = msgspec.structs.replace(operation, pop=msgspec.structs.replace(pop, ready_from=begin))
        reply = await self._transport.run(operation, _left(outage), retry=False)
        if pop is not None and reply.claims:
            self._ready_cursor(pop.queue, pop.group).took(reply.claims)
        # Failed or given back: it may be ready again, now or in a while.
        self._waits.stir(look=any(claim.outcomes or claim.release_rest for claim in operation.claims))
        self._sweeps.ensure()
        return reply

    async def sweep(self) -> SweepResult | None:
        """Fire due timers: expired leases, delays, backoffs."""
        return await self._sweeps.sweep_all()

    async def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""
        brought = self._sweeps.brought
        await self._sweeps.sweep()
        return self._sweeps.brought != brought

    def forget_group(self, queue: str, group: str) -> None:
        """Take note that a group may be gone, so that it is created again."""
        self._kinds.pop((queue, group), None)

    def forget_groups(self) -> None:
        """Take note that any group may be gone."""
        self._kinds.clear()

    def remember_group(self, kind: CreateGroup) -> None:
        """Take note how to create a group, should somebody delete it."""
        self._kinds[kind.queue, kind.group] = kind

    async def take(
        self,
        queue: str,
        group: str,
        stop: asyncio.Event | None = None,
        outage: Outage | None = None,
        last: AsyncLast | None = None,
        *,
        partition: Name | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: Seconds | None = None,
        wait: Seconds = 0.0,
        auto_ack: bool = False,
        mode: str = "ordered",
        subscription: str | datetime = "all",
    ) -> AsyncBatch | None:
        """Claim the next messages, and acknowledge the `last` ones; with `wait`, look again for so many seconds."""
        partition, lease, wait = as_text(partition), lease_time(lease), patience("wait", wait)
        max_messages, max_partitions = whole("max_messages", max_messages), whole("max_partitions", max_partitions)
        auto_ack = truth("auto_ack", auto_ack)
        # What is handed out need not survive a crash, unless it counts as done.
        wanted = Pop(
            queue, group, partition, max_messages, max_bytes, max_partitions, lease, self.id, auto_ack, durable=auto_ack
        )
        await self._subscribe(queue, group, mode, subscription)
        if outage is not None and outage.begun:
            # Nothing else is tried before this works. An ack that could not be sent goes along.
            found = await self._pop(wanted, outage, last)
            outage.over()
            if found is not None:
                return found
        if wait > 0:
            return await self._wait(wanted, self._waits.now() + wait, stop, outage, last)
        return await self._look(wanted, last)

    async def _look(self, wanted: Pop, last: AsyncLast | None) -> AsyncBatch | None:
        """Look once, and where there is nothing, once more after a sweep that brought work."""
        while True:
            brought = self._sweeps.brought
            batch = await self._pop(wanted, None, last)
            if batch is not None:
                return batch
            await self._sweeps.sweep()
            if self._sweeps.brought == brought:
                return None

    async def _wait(
        self,
        wanted: Pop,
        deadline: float,
        stop: asyncio.Event | None,
        outage: Outage | None = None,
        last: AsyncLast | None = None,
    ) -> AsyncBatch | None:
        """Look, alone or through those who wait for the same, until something is found, or time is up."""
        key = Key(wanted.queue, wanted.partition, wanted.group)
        looked_at: float | None = None
        if self._hears and not self._waits.has(key) and not (stop is not None and stop.is_set()):
            # Nobody waits for it, so that it may be there: waiting costs more than such a look.
            settles = last is not None and last.waits
            looked_at = self._waits.now()
            batch = await self._pop(wanted, outage, last)
            if settles:
                # A push that met this one left its messages to the next look, which comes at once.
                looked_at = None
            if batch is not None:
                self._waits.found()
                return batch
        signal = Signal()
        await self._transport.open()
        self._wakes.listen()
        self._hears = True
        waiter = self._waits.enter(key, deadline, signal.give)
        if looked_at is not None:
            self._waits.popped(waiter, looked_at, False)
            self._sweeps.ensure()
        try:
            while stop is None or not stop.is_set():
                step, seconds = self._waits.step(waiter, pending_check=self.pending_check)
                if step is not Step.POP and last is not None:
                    await self.ack_now(last, stop)
                match step:
                    case Step.POP:
                        began = self._waits.now()
                        batch = await self._pop(wanted, outage, last)
                        self._waits.popped(waiter, began, batch is not None)
                        self._sweeps.ensure()
                        if batch is not None:
                            return batch
                    case Step.CHECK:
                        began = self._waits.now()
                        self._waits.checked(waiter, began, await self.has_pending(wanted, outage))
                        self._sweeps.ensure()
                    case Step.SLEEP:
                        await signal.wait(seconds, stop)
                    case Step.OVER:
                        return None
            return None
        finally:
            self._waits.leave(waiter)

    async def _pop(self, wanted: Pop, outage: Outage | None = None, last: AsyncLast | None = None) -> AsyncBatch | None:
        ready = self._ready_cursor(wanted.queue, wanted.group)
        if (begin := ready.lows()) is not None:
            wanted = msgspec.structs.replace(wanted, ready_from=begin)
        done = None if last is None else last.take()
        asked_at = time.monotonic()
        try:
            popping = self._ack_and_pop(done, wanted, outage) if done is not None else self._run_pop(wanted, outage)
            claims = await popping
        except BaseException:
            if last is not None and done is not None and not done.settled:
                last.note(done)
            raise
        if not claims:
            return None
        ready.took(claims)
        self._waits.stir()
        self._sweeps.ensure()
        return AsyncBatch(wanted.queue, wanted.group, claims, self.settle, asked_at)

    async def _run_pop(self, wanted: Pop, outage: Outage | None) -> list[Claim]:
        """Pop. A group that somebody deleted comes back as the kind that it was."""
        kind = self._kinds.get((wanted.queue, wanted.group))
        if kind is None:
            return await self._transport.run(wanted, _left(outage))
        wanted = msgspec.structs.replace(wanted, creates=False)
        try:
            return await self._transport.run(wanted, _left(outage))
        except NotFound:
            with suppress(AlreadyExists):
                await self._transport.run(kind)
            return await self._transport.run(wanted, _left(outage))

    async def _ack_and_pop(self, done: AsyncBatch, wanted: Pop, outage: Outage | None) -> list[Claim]:
        """Acknowledge a batch and pop, in one call; where that fails, one after the other."""
        acks = done.undeferred()
        both = AckAndPop(acks.ranges, wanted)
        try:
            running = self._transport.run(both, _left(outage), retry=False)
            # A cancellation must not lose what is done, nor keep what nobody is there to handle.
            reply = await finished_or_undone(running, partial(self._undo, done))  # async only
            # sync only: reply = running
        except PenstockError as error:
            log.debug("%s is acknowledged by itself, because that and the next pop in one call failed: %s", done, error)
            await self._ack(done)
            return await self._run_pop(wanted, outage)
        try:
            done.acked_with_pop(acks, reply.acked)
        except LeaseLost as lost:
            log.warning("%s", lost)
        return reply.claims

    async def _undo(self, done: AsyncBatch, reply: AckedAndPopped) -> None:  # async only
        done.settled = True
        for claim in reply.claims:
            if claim.lease_id is not None:
                # Else its lease expires.
                with suppress(PenstockError):
                    await self._transport.run(Release(claim.lease))

    async def ack_now(self, last: AsyncLast, stop: asyncio.Event | None) -> None:
        """Send an ack that is not followed by a pop."""
        done = last.take()
        if done is None:
            return
        done.undeferred()
        try:
            # A cancellation must not lose what is done.
            await finished(self._ack(done))  # async only
            # sync only: self._ack(done)
        except Exception:
            done.abandoned = True
            if stop is None or not stop.is_set():
                raise
            log.warning("%s could not be settled; its messages come again when its lease ends", done, exc_info=True)

    async def _ack(self, done: AsyncBatch) -> None:
        try:
            await done.ack()
        except LeaseLost as lost:
            log.warning("%s", lost)

    async def settle(self, operation: Operation[Any], within: float | None = None) -> Any:
        """Run what a batch settles itself with, waiting so long for a connection."""
        done = await self._transport.run(operation, within)
        # Given back, or failed: it may be ready again, now or in a while.
        self._waits.stir(look=not isinstance(operation, Ack | Renew))
        return done

    async def has_pending(self, wanted: Pop, outage: Outage | None = None) -> bool:
        """Ask whether a pop could get something; one that cannot be asked may."""
        ready = self._ready_cursor(wanted.queue, wanted.group)
        self._counters.add("has_pending_checks", 1)
        self.reports.tally(wanted.queue, wanted.group).checked()
        try:
            check = HasPending(wanted.queue, wanted.group, wanted.partition, ready.lows())
            # Not tried again here: the pop that follows an error says what is wrong.
            pending = await self._transport.run(check, _left(outage), retry=False)
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            pending = True
        self._counters.add("has_pending_hits" if pending else "has_pending_misses", 1)
        if pending:
            # The check may have been the one that looks at the front; the pop that follows must see the same.
            ready.begin_at_front()
        return pending

    def _ready_cursor(self, queue: str, group: str) -> ReadyCursor:
        return self._ready_cursors.setdefault((queue, group), ReadyCursor())

    async def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._kinds:
            return
        kind = CreateGroup.reading(queue, group, mode, subscription)
        with suppress(AlreadyExists):
            await self._transport.run(kind)
        self.remember_group(kind)


def _left(outage: Outage | None) -> float | None:
    return None if outage is None else outage.left()
