"""The loops of an asynchronous client: batches as they come, and handlers that are called for each message."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakSet

from penstock.broker.arguments import Name, Seconds, as_text, lease_time, positive, truth, whole
from penstock.broker.claims import MAX_BYTES
from penstock.broker.messages import StoredMessage
from penstock.broker.names import check_group_names
from penstock.broker.operations.claiming import Pop
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.async_consumer import AsyncConsumer, AsyncLast
from penstock.consuming.async_feeding import AsyncFeeder
from penstock.consuming.claimed import waited
from penstock.consuming.handlers import LAST_MOMENT, AsyncHook
from penstock.consuming.outages import Outage
from penstock.consuming.polling import wait_for_each
from penstock.consuming.signals import Catcher
from penstock.consuming.tallies import Tally
from penstock.consuming.tasks import Renewals, is_cancelled, pause
from penstock.consuming.worker_tasks import WorkerPool
from penstock.errors import InvalidInput, PenstockError

log = logging.getLogger("penstock.consumer")

# More threads or tasks than this are a mistake, and would take the machine down before anybody saw it.
_MOST_CONCURRENT = 10_000
# How often a loop that its breaker stops looks whether somebody has reset it.
_HELD = 5.0
# How many seconds a loop that was told to stop has for its last acks.
_LAST_CALLS = 8.0
# What a breaker that is half open lets through.
_PROBE = {"max_messages": 1, "max_partitions": 1}


class AsyncLoops:
    """Runs loops over what a consumer takes. `AsyncClient` has its public face, with the full descriptions."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._renewals = Renewals()
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._feeders: WeakSet[AsyncFeeder] = WeakSet()

    async def close(self) -> None:
        """Give back what is claimed ahead."""
        for feeder in list(self._feeders):
            await feeder.close(PenstockError("this client is closed; make a new one"), _LAST_CALLS)

    def consume(
        self, queue: str, group: str = "default", *, prefetch: int = 0, **options: Any
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Yield batches as they come, and keep their leases alive in the background."""
        check_group_names(queue, group)
        if _ahead(prefetch, options) == 0:
            return self._consume_each(queue, group, **options)
        return self._consume_ahead(queue, group, prefetch, **options)

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
        prefetch: int = 0,
        **options: Any,
    ) -> int:
        """Await a function for each message, in `concurrency` tasks; returns how many were handled."""
        concurrency = whole("concurrency", concurrency, _MOST_CONCURRENT)
        check_group_names(queue, group)
        allowed, ending = positive("timeout", timeout), positive("grace", grace)
        _ahead(prefetch, options)

        # Nobody sees a batch between its last message and the next pop.
        options.setdefault("defer_acks", True)
        stop = stop or asyncio.Event()
        feeder: AsyncFeeder | None = None

        def consume(stop: asyncio.Event) -> AsyncGenerator[AsyncBatch, None]:
            if feeder is None:
                return self._consume_each(queue, group, stop=stop, idle_timeout=idle_timeout, **options)
            return self._consume_from(feeder, stop, wait, None)

        with AsyncHook.of(on_error) as hook:
            pool = WorkerPool(consume, handler, allowed, concurrency, hook, stop, ending)
            if prefetch:
                wait = wait_for_each(idle_timeout, **options)
                options = {name: value for name, value in options.items() if name not in ("defer_acks", "wait")}
                feeder = self._feeder(queue, group, prefetch, stop, None, **options)
            # Cancelled, or interrupted again: at once.
            within: float | None = LAST_MOMENT
            try:
                with Catcher(pool.interrupt, wanted=handle_signals) as signals:
                    handled = await pool.run()
                within = pool.time_left if stop.is_set() else None
            except Exception:
                within = pool.time_left
                raise
            finally:
                if feeder is not None:
                    await feeder.close(within=within)
        signals.hand_on()
        # Where the signal cancels the main task, and this is it, it ends here.
        await asyncio.sleep(0)  # async only
        return handled

    async def _consume_each(
        self,
        queue: str,
        group: str,
        *,
        stop: asyncio.Event | None = None,
        idle_timeout: Seconds | None = None,
        lease: Seconds | None = None,
        give_up_after: Seconds | None = None,
        on_error: Callable[[AsyncBatch, BaseException], object] | None = None,
        defer_acks: bool | None = None,
        **options: Any,
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Take one batch after the other, each when it is asked for."""
        give_up, lease = positive("give_up_after", give_up_after), lease_time(lease)
        options["wait"] = wait_for_each(idle_timeout, **options)
        owner, tally, idle_for = self._consumer.id, self._consumer.reports.enter(queue, group), 0.0
        outage = Outage(f"pop from {queue} for {group}", give_up)
        sleep = partial(pause, stop)
        last = AsyncLast()
        with AsyncHook.of(on_error) as hook:
            try:
                while stop is None or not stop.is_set():
                    if owner != self._consumer.id:
                        # A process that was forked from this one: what it takes from now on is its own.
                        owner, tally = self._consumer.id, self._consumer.reports.enter(queue, group)
                        last, outage = AsyncLast(), Outage(f"pop from {queue} for {group}", give_up)
                    held_for, probe = tally.admit()
                    if held_for:
                        # An ack must not wait for the breaker.
                        await self._consumer.ack_now(last, stop)
                        idle_for += min(held_for, _HELD)
                        if idle_for > options["wait"]:
                            return
                        await sleep(min(held_for, _HELD))
                        continue
                    taking = {**options, **_PROBE} if probe else options
                    try:
                        batch = await self._consumer.take(queue, group, stop, outage, last, lease=lease, **taking)
                    except PenstockError as error:
                        if probe:
                            tally.no_probe()
                        await sleep(outage.pause(error))
                        continue
                    outage.over()
                    if batch is None:
                        if probe:
                            tally.no_probe()
                        return
                    idle_for = 0.0
                    if not (probe or tally.breaker.is_closed or batch.settled):
                        # It opened while this loop waited.
                        await self._give_back(batch)
                        continue
                    log.debug("took %s", batch)
                    batch.settle_through_outages(sleep, hook, give_up)
                    batch.defers = bool(defer_acks)
                    try:
                        with self._renewals.keep(batch, lease), self._counted(tally, batch, probe):
                            yield batch
                    finally:
                        if self._consumer.id == owner:
                            if batch.deferred:
                                last.note(batch)
                            elif not batch.settled and not batch.abandoned:
                                await self._give_back(batch)
            finally:
                if self._consumer.id == owner:
                    self._consumer.reports.leave(tally)
                    await self._consumer.ack_now(last, stop)

    @contextmanager
    def _counted(self, tally: Tally, batch: AsyncBatch, probe: bool) -> Iterator[None]:
        """Count what becomes of a batch in the body."""
        batch.tally, batch.probe = tally, probe
        tally.took(len(batch.messages), waited(batch))
        began = time.monotonic()
        try:
            yield
        finally:
            done = batch.handled if batch.handled is not None else len(batch.messages) if batch.settled else 0
            tally.handled(done, time.monotonic() - began, probe=probe)

    async def _consume_ahead(
        self,
        queue: str,
        group: str,
        prefetch: int,
        *,
        stop: asyncio.Event | None = None,
        idle_timeout: Seconds | None = None,
        on_error: Callable[[AsyncBatch, BaseException], object] | None = None,
        **options: Any,
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Take batches from a feeder, which claims them ahead and sends their acks."""
        wait = wait_for_each(idle_timeout, **options)
        options = {name: value for name, value in options.items() if name not in ("defer_acks", "wait")}
        owner: str | None = None
        with AsyncHook.of(on_error) as hook:
            try:
                while stop is None or not stop.is_set():
                    if owner != self._consumer.id:
                        # A process that was forked from this one claims for itself.
                        owner, feeder = self._consumer.id, self._feeder(queue, group, prefetch, stop, hook, **options)
                    async with aclosing(self._consume_from(feeder, stop, wait, hook)) as batches:
                        async for batch in batches:
                            yield batch
                            if owner != self._consumer.id:
                                break
                        else:
                            return
            finally:
                if owner == self._consumer.id:
                    stopped = stop is not None and stop.is_set()
                    await feeder.close(within=LAST_MOMENT if is_cancelled() else _LAST_CALLS if stopped else None)

    async def _consume_from(
        self, feeder: AsyncFeeder, stop: asyncio.Event | None, wait: float, hook: AsyncHook | None
    ) -> AsyncGenerator[AsyncBatch, None]:
        owner, tally = self._consumer.id, self._consumer.reports.enter(feeder.queue, feeder.group)
        sleep = partial(pause, stop)
        try:
            while stop is None or not stop.is_set():
                batch = await feeder.take(wait, stop)
                if batch is None:
                    return
                if not (batch.probe or tally.breaker.is_closed) or not await feeder.begin(batch):
                    if batch.probe:
                        tally.no_probe()
                    feeder.let_go(batch)
                    await self._give_back(batch)
                    continue
                log.debug("took %s", batch)
                batch.settle_through_outages(sleep, hook, feeder.give_up_after)
                try:
                    with self._counted(tally, batch, batch.probe):
                        yield batch
                finally:
                    if self._consumer.id == owner:
                        feeder.let_go(batch)
                        if not batch.settled and not batch.abandoned:
                            await self._give_back(batch)
        finally:
            if self._consumer.id == owner:
                self._consumer.reports.leave(tally)

    def _feeder(
        self,
        queue: str,
        group: str,
        prefetch: int,
        stop: asyncio.Event | None,
        hook: AsyncHook | None,
        *,
        give_up_after: Seconds | None = None,
        partition: Name | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: Seconds | None = None,
        auto_ack: bool = False,
        mode: str = "ordered",
        subscription: str | datetime = "all",
    ) -> AsyncFeeder:
        """Begin to claim ahead."""
        if truth("auto_ack", auto_ack):
            raise InvalidInput(
                "prefetch and auto_ack exclude each other: what was prefetched would be lost when the loop ends"
            )
        wanted = Pop(
            queue,
            group,
            as_text(partition),
            whole("max_messages", max_messages),
            max_bytes,
            whole("max_partitions", max_partitions),
            lease_time(lease),
            self._consumer.id,
            durable=False,
            ahead=True,
        )
        outage = Outage(f"pop from {queue} for {group}", positive("give_up_after", give_up_after))
        prepare = partial(self._consumer.prepare, queue, group, mode, subscription)
        tally = self._consumer.reports.tally(queue, group)
        feeder = AsyncFeeder(self._consumer, wanted, prefetch, stop, outage, hook, prepare, self._renewals, tally)
        self._feeders.add(feeder)
        return feeder

    async def _give_back(self, batch: AsyncBatch) -> None:
        """Give back what the loop that has it did not settle; what cannot be given back comes when its lease ends."""
        log.debug("giving back %s", batch)
        try:
            await batch.release()
        except PenstockError as error:
            log.warning("%s could not be given back, and comes again when its lease ends: %s", batch, error)


def _ahead(prefetch: int, options: dict[str, Any]) -> int:
    """Return how many messages are claimed ahead; refuse what is no such number, and what does not go with it."""
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 0:
        raise InvalidInput(f"prefetch is {prefetch!r} but must be 0 or more messages")
    if prefetch and options.get("defer_acks") is False:
        raise InvalidInput("prefetch sends acks in the background: leave out defer_acks=False, or call batch.ack()")
    return prefetch
