"""The part of an asynchronous client that consumes: pop, consume, process."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from penstock import forks
from penstock.batching.batcher import Batcher, M, R, Work
from penstock.batching.flushes import Pops, Settlings, Sweeps
from penstock.broker.arguments import Name, Seconds, as_text, lease_time, patience, positive
from penstock.broker.counters import Counters
from penstock.broker.messages import StoredMessage
from penstock.consuming import wakes
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.handlers import AsyncHook
from penstock.consuming.outages import Outage, is_outage
from penstock.consuming.polling import ReadyCursor, Sweeping, make_consumer_id, sweep_failed, wait_for_each
from penstock.consuming.signals import Catcher
from penstock.consuming.tasks import Renewals, Signal, pause
from penstock.consuming.waiting import Key, Step, WaitGroups
from penstock.consuming.worker_tasks import WorkerPool
from penstock.errors import AlreadyExists, InvalidInput, PenstockError
from penstock.postgres import hints
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.hints import Hints
from penstock.postgres.statements import group_calls
from penstock.postgres.statements.batch_calls import PopRequest, has_pending_messages
from penstock.postgres.statements.calls import Call, Place, group_names, once
from penstock.postgres.statements.group_calls import MAX_BYTES, Claim, Settling, Sweep

log = logging.getLogger("penstock.consumer")

# Renewals by many different lease times are sent one by one.
_MOST_SETTLERS = 64  # async only


class AsyncConsumer:
    """The part of a client that consumes."""

    _database: AsyncDatabase
    pop_batching: bool
    pending_check: bool
    notify: bool

    def __init__(self) -> None:
        self._renewals = Renewals()
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process."""
        self.consumer_id = make_consumer_id()
        self._ready_cursors: dict[tuple[str, str], ReadyCursor] = {}
        self._subscribed: set[tuple[str, str]] = set()
        self._sweeping = Sweeping()
        self._waits = WaitGroups()
        self._counters = Counters()
        self._registered_at: str | None = None
        self._hints: Hints | None = None
        self._begin_batching()  # async only

    async def pop(
        self,
        queue: str,
        group: str = "default",
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
        batch: int | None = None,
        partitions: int | None = None,
    ) -> AsyncBatch | None:
        """Claim the next messages of any partition, or of a named one; None when there are none.

        Queue and group come into being on first use, the group with `mode` ('ordered' or 'shared') and `subscription`:
        'all', 'new', or a time. `wait` looks again for so many seconds. The claim is leased for `lease` seconds, or the
        group's or queue's lease time; what is not acknowledged by then is delivered again. With `auto_ack` it counts as
        done at once: at most once. `batch` and `partitions` are short for `max_messages` and `max_partitions`.
        """
        return await self._take(
            queue,
            group,
            partition=partition,
            max_messages=max_messages,
            max_partitions=max_partitions,
            max_bytes=max_bytes,
            lease=lease,
            wait=wait,
            auto_ack=auto_ack,
            mode=mode,
            subscription=subscription,
            batch=batch,
            partitions=partitions,
        )

    async def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        stop: asyncio.Event | None = None,
        idle_timeout: Seconds | None = None,
        lease: Seconds | None = None,
        give_up_after: Seconds | None = None,
        on_error: Callable[[AsyncBatch, BaseException], object] | None = None,
        **options: Any,
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Yield batches as they come, and keep their leases alive in the background.

        Settle each one, most simply with `async with batch:`. One that is not settled when the next is asked for, or
        when the loop is left, is given back. Ends when `stop` is set, or when nothing came for `idle_timeout` seconds;
        the other options are those of `pop`.

        It goes on through any outage of the database, or raises what went wrong after `give_up_after` seconds of one. A
        batch is settled through an outage for as long as its lease lasts; then its messages are delivered again.
        `on_error` is called with a batch and the exception that its `with` block raised, before it is failed.
        """
        give_up, lease = positive("give_up_after", give_up_after), lease_time(lease)
        hook = None if on_error is None else AsyncHook(on_error)
        options["wait"] = wait_for_each(idle_timeout, **options)
        owner = self.consumer_id
        outage = Outage(f"pop from {queue} for {group}", give_up)
        sleep = partial(pause, stop)
        while stop is None or not stop.is_set():
            try:
                batch = await self._take(queue, group, stop, outage, lease=lease, **options)
            except PenstockError as error:
                await sleep(outage.pause(error))
                continue
            outage.over()
            if batch is None:
                return
            log.debug("took %s", batch)
            batch.settle_through_outages(sleep, hook)
            try:
                with self._renewals.keep(batch, lease):
                    yield batch
            finally:
                if not batch.settled and not batch.abandoned and self.consumer_id == owner:
                    await self._give_back(batch)

    async def process(
        self,
        queue: str,
        handler: Callable[[StoredMessage], object],
        *,
        group: str = "default",
        concurrency: int = 1,
        stop: asyncio.Event | None = None,
        idle_timeout: Seconds | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - for each handler, and not for the whole
        grace: Seconds = 8.0,
        handle_signals: bool = True,
        on_error: Callable[[StoredMessage, BaseException], object] | None = None,
        **options: Any,
    ) -> int:
        """Await a function for each message, in `concurrency` tasks; returns how many were handled.

        One that is not a coroutine function is called in a thread. A message whose handler raises, or takes
        longer than `timeout` seconds, is retried after the backoff and finally becomes a dead letter; the messages
        before it in its batch are done. `on_error` is called with the message and the exception before that.

        Ends like `consume`, and on Ctrl-C or SIGTERM if it is called in the main thread: handlers under way have
        `grace` seconds to end, what is done is acknowledged, and the rest is given back.
        """
        if concurrency < 1:
            raise InvalidInput(f"concurrency is {concurrency} but must be at least 1")
        allowed, ending = positive("timeout", timeout), positive("grace", grace)
        hook = None if on_error is None else AsyncHook(on_error)

        def consume(stop: asyncio.Event) -> AsyncGenerator[AsyncBatch, None]:
            return self.consume(queue, group, stop=stop, idle_timeout=idle_timeout, **options)

        pool = WorkerPool(consume, handler, allowed, concurrency, hook, stop or asyncio.Event(), ending)
        with Catcher(pool.interrupt, wanted=handle_signals) as signals:
            handled = await pool.run()
        signals.hand_on()
        # Where the signal cancels the main task, and this is it, it ends here.
        await asyncio.sleep(0)  # async only
        return handled

    async def sweep(self) -> Sweep | None:
        """Do what time brings: expired leases, delays, backoffs. Consumers do this by themselves."""
        return await self._sweep_since(None)

    def stats(self) -> dict[str, int]:
        """Count what this client has done: batches, checks, sweeps, hints.

        Batches stay at 0 where each call is made by itself.
        """
        return self._counters.read()

    async def _take(
        self,
        queue: str,
        group: str,
        stop: asyncio.Event | None = None,
        outage: Outage | None = None,
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
        batch: int | None = None,
        partitions: int | None = None,
    ) -> AsyncBatch | None:
        partition, lease, wait = as_text(partition), lease_time(lease), patience("wait", wait)
        group_names(queue, group, partition)
        await self._subscribe(queue, group, mode, subscription)
        request = PopRequest(
            queue,
            group,
            partition,
            max_messages if batch is None else batch,
            max_bytes,
            max_partitions if partitions is None else partitions,
            lease,
            self.consumer_id,
            auto_ack,
        )
        if outage is not None and outage.begun:
            # Nothing else is tried before this works.
            found = await self._pop(request, outage)
            outage.over()
            if found is not None:
                return found
        if wait > 0:
            return await self._wait(request, self._waits.now() + wait, stop, outage)
        return await self._look(request)

    async def _look(self, request: PopRequest) -> AsyncBatch | None:
        """Look once, and again where a sweep brought work."""
        while True:
            if self._sweeping.due():
                await self._sweep()
            batch = await self._pop(request)
            if batch is not None or not await self._sweep():
                return batch

    async def _wait(
        self, request: PopRequest, deadline: float, stop: asyncio.Event | None, outage: Outage | None = None
    ) -> AsyncBatch | None:
        """Look, alone or through those who wait for the same, until something is found, or time is up."""
        signal = Signal()
        await self._register_for_wakes()
        waiter = self._waits.enter(Key(request.queue, request.partition, request.group), deadline, signal.give)
        try:
            while stop is None or not stop.is_set():
                step, seconds = self._waits.step(waiter, pending_check=self.pending_check)
                match step:
                    case Step.POP:
                        if self._waits.sweep_due():
                            await self._sweep(outage)
                        began = self._waits.now()
                        batch = await self._pop(request, outage)
                        self._waits.popped(waiter, began, batch is not None)
                        if batch is not None:
                            return batch
                    case Step.CHECK:
                        began = self._waits.now()
                        self._waits.checked(waiter, began, await self._has_pending(request, outage))
                    case Step.SWEEP:
                        await self._sweep(outage)
                    case Step.SLEEP:
                        await signal.wait(seconds, stop)
                    case Step.OVER:
                        return None
            return None
        finally:
            self._waits.leave(waiter)

    async def _pop(self, request: PopRequest, outage: Outage | None = None) -> AsyncBatch | None:
        ready = self._ready_cursor(request.queue, request.group)
        asked_at = time.monotonic()
        claims = await self._run_pop(request, ready, _left(outage))
        if not claims:
            return None
        ready.took(claims)
        self._waits.stir()
        return AsyncBatch(request.queue, request.group, claims, self._settle, asked_at)

    async def _settle(self, call: Call[Any]) -> Any:
        """Run what a batch settles itself with."""
        done = await self._run_settling(call)
        # Given back, or failed: it may be ready again, now or in a while.
        self._waits.stir(look=not isinstance(call, Settling))
        return done

    async def _give_back(self, batch: AsyncBatch) -> None:
        """Give back what the loop that has it did not settle; what cannot be given back comes when its lease ends."""
        log.debug("giving back %s", batch)
        try:
            await batch.release()
        except PenstockError as error:
            log.warning("%s could not be given back, and comes again when its lease ends: %s", batch, error)

    async def _has_pending(self, request: PopRequest, outage: Outage | None = None) -> bool:
        """Ask whether a pop could get something; one that cannot be asked may."""
        ready = self._ready_cursor(request.queue, request.group)
        self._counters.add("has_pending_checks", 1)
        try:
            pending = await self._database.run(
                # Not tried again here: the pop that follows an error says what is wrong.
                once(has_pending_messages(request.queue, request.partition, request.group, ready.lows())),
                _left(outage),
            )
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            pending = True
        self._counters.add("has_pending_hits" if pending else "has_pending_misses", 1)
        if pending:
            # The check may have been the one that looks at the front; the pop that follows must see the same.
            ready.begin_at_front()
        return pending

    async def _sweep(self, outage: Outage | None = None) -> bool:
        """Sweep, and say whether that may have brought work; others' timers must not keep this one from popping."""
        try:
            return self._sweeping.did(await self._run_sweep(outage))
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            sweep_failed(error)
            return False

    async def _sweep_since(self, since: datetime | None, outage: Outage | None = None) -> Sweep | None:
        self._counters.add("sweeps", 1)
        self._waits.sweep_begins()
        swept = None
        try:
            call = group_calls.sweep(since)
            # A loop has its own way to try again.
            swept = await self._database.run(call if outage is None else once(call), _left(outage))
            return swept
        finally:
            self._waits.swept(swept)

    async def _register_for_wakes(self) -> None:
        """Hear of the pushes of other clients of this process, and of hints from others."""
        if not self._database.opened:
            await self._database.open()
        dsn = self._database.address.dsn
        if self._registered_at != dsn:
            self._unregister_for_wakes()
            self._registered_at = dsn
            wakes.register(dsn, self._waits)
        if self.notify:
            self._with_hints()

    def _unregister_for_wakes(self) -> None:
        if self._registered_at is not None:
            wakes.unregister(self._registered_at, self._waits)
            self._registered_at = None
        if self._hints is not None:
            hints.leave(self._hints, self._counters)
            self._hints = None

    def _pushed(self, places: Collection[Place]) -> None:
        """Wake those who wait for what was pushed: here at once, elsewhere with a hint."""
        wakes.wake(self._database.address.dsn, places)
        if self.notify and places:
            self._with_hints().pushed(place.queue for place in places)

    def _with_hints(self) -> Hints:
        if self._hints is None:
            self._hints = hints.join(self._database.address, self._counters)
        return self._hints

    def _ready_cursor(self, queue: str, group: str) -> ReadyCursor:
        return self._ready_cursors.setdefault((queue, group), ReadyCursor())

    async def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._subscribed:
            return
        with suppress(AlreadyExists):
            await self._database.run(group_calls.create_group(queue, group, mode, subscription, {}))
        self._subscribed.add((queue, group))

    # The calls that may be batched.

    async def _run_pop(self, request: PopRequest, ready: ReadyCursor, within: float | None) -> list[Claim]:
        # One whose time is limited cannot wait with others.
        if self.pop_batching and within is None:  # async only
            return await self._pops.submit(request)
        return await self._database.run(request.alone(ready.lows()), within)

    async def _run_settling(self, call: Call[Any]) -> Any:
        if (
            self.pop_batching and isinstance(call, Settling) and (batcher := self._settler(call)) is not None
        ):  # async only
            return await batcher.submit(call)
        return await self._database.run(call)

    async def _run_sweep(self, outage: Outage | None) -> Sweep | None:
        if _left(outage) is None:  # async only
            return await self._sweeps.submit(None)
        return await self._sweep_since(self._sweeping.since(), outage)

    def _begin_batching(self) -> None:  # async only
        self._pops: Batcher[PopRequest, list[Claim]] = self._batcher("pop", Pops(self._database, self._ready_cursor))
        self._sweeps: Batcher[None, Sweep | None] = Batcher("sweep", Sweeps(self._sweep_on), None, 1)
        self._settlings = Settlings(self._database)
        self._settlers: dict[tuple[Any, ...], Batcher[Settling, None]] = {}

    async def _close_batchers(self) -> None:  # async only
        """Take no more calls, and let those under way end."""
        await self._pops.close()
        await self._sweeps.close()
        for settler in self._settlers.values():
            await settler.close()

    async def _sweep_on(self) -> Sweep | None:  # async only
        """Sweep from where the last one of this process says."""
        return await self._sweep_since(self._sweeping.since())

    def _settler(self, call: Settling) -> Batcher[Settling, None] | None:  # async only
        """Return what joins a call with others of its kind; None for one kind too many."""
        kind = (call.sql, *call.parameters[len(call.parameters) - call.rest :])
        settler = self._settlers.get(kind)
        if settler is None and len(self._settlers) < _MOST_SETTLERS:
            settler = self._settlers[kind] = self._batcher("renew" if call.rest else "ack", self._settlings)
        return settler

    def _batcher(self, name: str, work: Work[M, R]) -> Batcher[M, R]:  # async only
        # One connection is left for all that is not batched.
        return Batcher(name, work, self._counters, max(2, self._database.settings.pool_size - 1))


def _left(outage: Outage | None) -> float | None:
    return None if outage is None else outage.left()
