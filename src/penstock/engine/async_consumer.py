"""Consuming with an asynchronous client: the twin of `consumer`, which has the full descriptions."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

from penstock.engine import group_calls
from penstock.engine.batch import AsyncBatch
from penstock.engine.consumer import make_consumer_id
from penstock.engine.database import AsyncDatabase
from penstock.engine.group_calls import MAX_BYTES
from penstock.engine.messages import StoredMessage
from penstock.engine.polling import Line, Sweeping, Waiting
from penstock.engine.renewing import keep_renewed
from penstock.errors import AlreadyExists, InvalidInput, LeaseLost


class AsyncConsumer:
    """The part of a client that consumes."""

    _database: AsyncDatabase

    def __init__(self) -> None:
        self.consumer_id = make_consumer_id()
        self._lines: dict[tuple[str, str], Line] = {}
        self._subscribed: set[tuple[str, str]] = set()
        self._sweeping = Sweeping()

    async def pop(
        self,
        queue: str,
        group: str = "default",
        *,
        partition: str | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: float | None = None,
        wait: float = 0.0,
        auto_ack: bool = False,
        mode: str = "ordered",
        subscription: str | datetime = "all",
        batch: int | None = None,
        partitions: int | None = None,
    ) -> AsyncBatch | None:
        """Claim the next messages of any partition, or of a named one; None when there are none."""
        await self._subscribe(queue, group, mode, subscription)
        line = self._lines.setdefault((queue, group), Line())
        waiting = Waiting(wait)
        while True:
            if self._sweeping.due():
                await self._sweep()
            call = group_calls.pop(
                queue,
                group,
                partition,
                max_messages if batch is None else batch,
                max_bytes,
                max_partitions if partitions is None else partitions,
                lease,
                self.consumer_id,
                auto_ack,
                line.lows(),
            )
            claims = await self._database.run(call)
            if claims:
                line.took(claims)
                return AsyncBatch(queue, group, claims, self._database.run)
            if await self._sweep():
                continue
            pause = waiting.pause()
            if pause is None:
                return None
            await asyncio.sleep(pause)

    async def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        stop: asyncio.Event | None = None,
        idle_timeout: float | None = None,
        lease: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Yield batches as they come, and keep their leases alive in the background."""
        waiting = Waiting(idle_timeout)
        while stop is None or not stop.is_set():
            batch = await self.pop(queue, group, lease=lease, **options)
            if batch is None:
                pause = waiting.pause()
                if pause is None:
                    return
                await asyncio.sleep(pause)
                continue
            renewals = asyncio.create_task(keep_renewed(batch, lease))
            try:
                yield batch
            finally:
                renewals.cancel()
                if not batch.settled:
                    with suppress(LeaseLost):
                        await batch.release()
            waiting = Waiting(idle_timeout)

    async def process(
        self,
        queue: str,
        handler: Callable[[StoredMessage], Awaitable[object]],
        *,
        group: str = "default",
        concurrency: int = 1,
        stop: asyncio.Event | None = None,
        idle_timeout: float | None = None,
        **options: Any,
    ) -> int:
        """Await a function for each message, in `concurrency` tasks; returns how many were handled."""
        if concurrency < 1:
            raise InvalidInput(f"concurrency is {concurrency} but must be at least 1")
        ending = stop or asyncio.Event()

        async def work() -> int:
            handled = 0
            batches = self.consume(queue, group, stop=ending, idle_timeout=idle_timeout, **options)
            # Closed here and not when it is collected: by then the client may be closed, and nothing is given back.
            async with aclosing(batches):
                async for batch in batches:
                    handled += await handle(batch, handler, ending)
            return handled

        try:
            async with asyncio.TaskGroup() as tasks:
                workers = [tasks.create_task(work()) for _ in range(concurrency)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return sum(worker.result() for worker in workers)

    async def sweep(self) -> group_calls.Sweep | None:
        """Do what time brings: expired leases, delays, backoffs. Consumers do this by themselves."""
        return await self._database.run(group_calls.sweep())

    async def _sweep(self) -> bool:
        return self._sweeping.did(await self._database.run(group_calls.sweep(self._sweeping.since())))

    async def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._subscribed:
            return
        with suppress(AlreadyExists):
            await self._database.run(group_calls.create_group(queue, group, mode, subscription, {}))
        self._subscribed.add((queue, group))


async def handle(batch: AsyncBatch, handler: Callable[[StoredMessage], Awaitable[object]], stop: asyncio.Event) -> int:
    """Await the handler for each message of a batch and settle it; returns how many were handled."""
    for index, message in enumerate(batch.messages):
        if stop.is_set() and len(batch.claims) == 1:
            with suppress(LeaseLost):
                if index:
                    await batch.ack(up_to=message.offset)
                await batch.release()
            return index
        try:
            await handler(message)
        except Exception as error:
            with suppress(LeaseLost):
                await batch.nack_message(message, error)
            return index
    with suppress(LeaseLost):
        await batch.ack()
    return len(batch.messages)
