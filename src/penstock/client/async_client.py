"""The asynchronous client, `penstock.AsyncClient`.

A thin, typed layer: each method builds a call and runs it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from penstock import forks
from penstock import settings as settings_module
from penstock import tracing as traces
from penstock.batching.transport import Batching
from penstock.broker.arguments import Name, Seconds, as_text, patience
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import MAX_BYTES
from penstock.broker.counters import Counters
from penstock.broker.ids import parse_id
from penstock.broker.infos import MaintenanceResult, PartitionInfo, QueueInfo, ScheduledInfo, SweepResult
from penstock.broker.messages import Message, PushResult, StoredMessage
from penstock.broker.operations.log import (
    ConfigurePartition,
    ConfigureQueue,
    CreatePartition,
    CreateQueue,
    Delete,
    GetSpread,
    ListPartitions,
    ListQueues,
    Maintain,
    Purge,
)
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import ListScheduled, Push
from penstock.broker.operations.reading import Get
from penstock.broker.places import Place, Slices
from penstock.broker.pushing import Producer, PushBatch, due, uniqueness
from penstock.client import pushes, transports
from penstock.client.async_items import AsyncItems
from penstock.client.async_monitoring import AsyncMonitoring
from penstock.client.async_operating import AsyncOperator
from penstock.client.async_transaction import AsyncTransaction
from penstock.client.paging import Paging
from penstock.client.tailing import Tail
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.async_consumer import AsyncConsumer
from penstock.consuming.async_loops import AsyncLoops
from penstock.consuming.async_results import AsyncResults
from penstock.consuming.reporting import Reports
from penstock.consuming.waiting import WaitGroups
from penstock.consuming.wakes import Wakes
from penstock.errors import InvalidInput
from penstock.scheduling.async_scheduler import AsyncScheduler, FiredSchedules

R = TypeVar("R")


class AsyncClient(AsyncOperator, AsyncItems, AsyncMonitoring):
    """A connection pool to one penstock.

    `url` is a `postgresql://…` address, or that of a gateway, `http://…`. Without it, and without `PENSTOCK_URL`, the
    client uses the embedded PostgreSQL of `home`, starting it if it is not running, and `valkey_url` is the Valkey
    beside it. With it, there is no Valkey unless `valkey_url` or `PENSTOCK_VALKEY_URL` names one.
    Safe to share between tasks. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        home: str | Path | None = None,
        valkey_url: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        pool_size: int | None = None,
        push_batching: bool | None = None,  # async only
        pop_batching: bool | None = None,  # async only
        pending_check: bool | None = None,
        notify: bool | None = None,
        metrics: bool | None = None,
        tracing: bool | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        self.settings = settings_module.resolve(
            {
                "url": url,
                "home": home,
                "valkey_url": valkey_url,
                "timeout": timeout,
                "connect_timeout": connect_timeout,
                "pool_size": pool_size,
                "push_batching": push_batching,  # async only
                "pop_batching": pop_batching,  # async only
                "pending_check": pending_check,
                "notify": notify,
                "metrics": metrics,
                "tracing": tracing,
            }
        )
        if self.settings.tracing:
            traces.enable()
        self._counters = Counters()
        own = transport or transports.async_transport_for(self.settings)
        self._batching = Batching(own, self._counters, self.settings)  # async only
        super().__init__(self._batching)  # async only
        # sync only: super().__init__(own)
        self._waits = WaitGroups()
        self._wakes = Wakes(self._transport, self._waits, self._counters, self.settings.notify)
        self._reports = Reports(enabled=self.settings.metrics)
        self._consumer = AsyncConsumer(
            self._transport, self._waits, self._wakes, self._counters, self.settings.pending_check, self._reports
        )
        self._results = AsyncResults(self._transport, self._waits, self._wakes)
        self._loops = AsyncLoops(self._consumer)
        self._spreads = pushes.Spreads()
        self._producer = Producer()
        self._scheduler = AsyncScheduler(self._transport)
        forks.renew_in_children(self._reset)

    def _reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._counters.reset()
        self._waits.reset()
        self._wakes.reset()
        self._consumer.reset()
        self._loops.reset()
        self._producer = Producer()
        self._scheduler = AsyncScheduler(self._transport)

    @property
    def consumer_id(self) -> str:
        """The name under which operators find the claims of this client."""
        return self._consumer.id

    @consumer_id.setter
    def consumer_id(self, name: str) -> None:
        self._consumer.rename(name)

    @property
    def reports(self) -> Reports:
        """What this client counts of its work and reports; workers add to it."""
        return self._reports

    @property
    def push_batching(self) -> bool:  # async only
        """Whether pushes that come at the same time share a call."""
        return self._batching.pushes

    @push_batching.setter
    def push_batching(self, on: bool) -> None:  # async only
        self._batching.pushes = on

    @property
    def pop_batching(self) -> bool:  # async only
        """Whether pops, acknowledgements and renewals that come at the same time share a call."""
        return self._batching.pops

    @pop_batching.setter
    def pop_batching(self, on: bool) -> None:  # async only
        self._batching.pops = on

    @property
    def pending_check(self) -> bool:
        """Whether idle consumers ask if something is pending before they pop."""
        return self._consumer.pending_check

    @pending_check.setter
    def pending_check(self, on: bool) -> None:
        self._consumer.pending_check = on

    @property
    def notify(self) -> bool:
        """Whether pushes hint to waiting consumers of other processes: by default, if there is a way to reach them."""
        return self._wakes.notify

    @notify.setter
    def notify(self, on: bool | None) -> None:
        self._wakes.notify = on

    @property
    def dsn(self) -> str:
        """The address in use, with its password; what is shown or logged has none."""
        return self._transport.address

    def __repr__(self) -> str:
        return f"AsyncClient({self._transport!r})"

    async def __aenter__(self) -> Self:
        await self.open()  # async only
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:  # async only
        """Connect now; without this, the first call does."""
        await self._transport.open()

    async def close(self) -> None:
        """Close all connections; an embedded server stops soon after its last user."""
        self._wakes.close()
        await self._loops.close()
        await self._consumer.close()
        await self._transport.close()

    def prepare_operations(self, prepare: Callable[[Operation[Any]], Operation[Any]]) -> None:  # async only
        """Let a front end such as the gateway change each operation before it runs."""
        self._batching.prepare = prepare

    async def run(self, operation: Operation[R]) -> R:
        """Run an operation as it is, and wake those who wait for what it brings: for front ends such as the gateway.

        A push that has a stamp keeps it: whoever sent it may send it again.
        """
        alone = isinstance(operation, Push) and operation.stamped  # async only
        operation = self._wakes.with_hint(operation)
        reply = await (self._batching.run_alone if alone else self._transport.run)(operation)  # async only
        # sync only: reply = self._transport.run(operation)
        self._wakes.ran(operation)
        return reply

    def pushes_followed(self, follower: Callable[[Collection[str]], None]) -> AbstractContextManager[None]:
        """Tell somebody the queues of every push, as far as hints arrive; called from any thread, until it is left."""
        return self._wakes.followed(follower)

    # Pushing

    async def push(
        self,
        queue: str,
        message_or_list: Any,
        *,
        partition: Name | None = None,
        key: Name | None = None,
        headers: Mapping[str, str] | None = None,
        dedupe_id: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique_key: str | None = None,
        unique_for: Seconds | None = None,
        unique_until: str | None = None,
        replace: bool = False,
        result: bool | Seconds = False,
    ) -> PushResult:
        """Push one message or a list of them, in one transaction, to one partition.

        Queue and partition come into being on first use. When this returns, the messages are durable. A key without a
        partition picks one, the same for ever as long as the queue's `spread` stays.

        With `delay` (seconds) or `at` they are kept aside, and get their offsets when they are due. With a `dedupe_id`
        a message is stored once within the queue's `dedupe_window`. The result tells of both.

        With a `unique_key` it is not stored while the last one of the queue with that key counts: for `unique_for`
        seconds, or until it is 'taken' or 'done' (`unique_until`); if both are given, while both hold. With `replace`
        an earlier one that still waits gives way to this one. The result says which one it was.

        With `result` what the handlers of actions return is kept for `client.result`: for an hour, or so many seconds.
        """
        when = due(delay, at)
        once = dedupe_id is not None or unique_key is not None or unique_for is not None or unique_until is not None
        with traces.sending(queue):
            if result is not False:
                headers = pushes.asking_for_result(headers, result)
            values = pushes.plain(message_or_list) if when is None and not once and not replace else None
            if values is not None:
                if partition is None:
                    partition = pushes.only_partition(key, await self._known_spread(queue))
                return (await self._push([pushes.pack_plain(Place(queue, partition), values, key, headers)]))[0]
            messages = pushes.gather(message_or_list, partition, key, headers, dedupe_id, unique_key)
            unique = uniqueness(messages, unique_for, unique_until, replace)
            if result is not False:
                messages = pushes.all_asking_for_result(messages, result)
            placed = pushes.place(queue, messages, await self._spread(queue, messages))
            pushes.only_place(placed)
            return (await self._push(pushes.batches(placed, when, unique)))[0]

    async def push_many(
        self,
        queue: str,
        messages: Iterable[tuple[Name, Any] | Message],
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique_for: Seconds | None = None,
        unique_until: str | None = None,
        replace: bool = False,
    ) -> list[PushResult]:
        """Push (partition, message) pairs, or Messages, in one transaction; one result per partition.

        `unique_for`, `unique_until` and `replace` are for messages that have a `unique_key`, as in `push`.
        """
        when = due(delay, at)
        with traces.sending(queue):
            gathered = pushes.gather_many(messages)
            unique = uniqueness(gathered, unique_for, unique_until, replace)
            placed = pushes.place(queue, gathered, await self._spread(queue, gathered))
            return await self._push(pushes.batches(placed, when, unique))

    async def scheduled(
        self,
        queue: str | None = None,
        *,
        partition: Name | None = None,
        after: ScheduledInfo | None = None,
        limit: int = 100,
    ) -> list[ScheduledInfo]:
        """List what is scheduled, the one that is due first at the front; `after` is the last of the page before."""
        if after is None:
            return await self._transport.run(ListScheduled(queue, as_text(partition), limit=limit))
        if not isinstance(after, ScheduledInfo):
            raise InvalidInput(f"after is the last one of the page before, and {after!r} is not")
        page = ListScheduled(queue, as_text(partition), after.due_at, after.scheduled_id, limit)
        return await self._transport.run(page)

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[AsyncTransaction]:
        """Begin a transaction in which pushes commit together with the caller's own SQL.

        Pushes are gathered and written at the end of the block. Without a connection, one is lent as
        `tx.connection` and the block's end commits. On a connection of your own (psycopg, SQLAlchemy, asyncpg)
        they are written into your transaction, which commits when you commit it.
        """
        with traces.sending("transaction"):
            async with self._transport.transaction(connection) as scope:
                tx = AsyncTransaction(scope, self._consumer, lent=connection is None)
                try:
                    with tx.block():
                        yield tx
                    await tx.write(self._spreads)
                finally:
                    tx.end()
        # In a transaction of the caller's own it is not committed yet. But it soon will be, and whoever hears of it now
        # looks again and again, with pauses that are short at first.
        self._wakes.pushed([Place(queue, "") for queue in tx.gathered.queues()])
        for operation in tx.ran:
            self._wakes.ran(operation)
        if connection is None:
            for queue, count in tx.gathered.counts().items():
                self._reports.pushed(queue, count)

    # Consuming

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
    ) -> AsyncBatch | None:
        """Claim the next messages of any partition, or of a named one; None when there are none.

        Queue and group come into being on first use, the group with `mode` ('ordered' or 'shared') and `subscription`:
        'all', 'new', or a time. `wait` looks again for so many seconds. The claim is leased for `lease` seconds, or the
        group's or queue's lease time; what is not acknowledged by then is delivered again. With `auto_ack` it counts as
        done at once: at most once.
        """
        began = time.time_ns() if traces.is_on() else 0
        batch = await self._consumer.take(
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
        )
        if batch is not None and (tally := self._reports.visit(queue, group)) is not None:
            batch.count_for(tally)
        if began and batch is not None:
            traces.received(queue, group, batch.messages, began)
        return batch

    def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        stop: asyncio.Event | None = None,
        idle_timeout: Seconds | None = None,
        lease: Seconds | None = None,
        give_up_after: Seconds | None = None,
        on_error: Callable[[AsyncBatch, BaseException], object] | None = None,
        defer_acks: bool | None = None,
        prefetch: int = 0,
        **options: Any,
    ) -> AsyncGenerator[AsyncBatch, None]:
        """Yield batches as they come, and keep their leases alive in the background.

        Settle each one, most simply with `async with batch:`. One that is not settled when the next is asked for, or
        when the loop is left, is given back. Ends when `stop` is set, or when nothing came for `idle_timeout` seconds;
        the other options are those of `pop`.

        It goes on through any outage of the database, or raises what went wrong after `give_up_after` seconds of one. A
        batch is settled through an outage for as long as its lease lasts; then its messages are delivered again.
        `on_error` is called with a batch and the exception that its `with` block raised, before it is failed.

        With `defer_acks` the acknowledgement at the end of an `async with batch:` is sent when the next batch is asked
        for, together with that request: one round trip and one commit instead of two. It is also sent when the loop
        ends or is closed. A process that is killed in between has its messages delivered again.

        With `prefetch` up to so many messages, and about 32 MiB, are claimed ahead in the background while this
        program works on a batch, and acks are sent there, too: several batches share a call. The end of an `async
        with batch:` does not wait for its ack then. A lease that turns out to be lost is logged, and given to
        `on_error`. Leaving the loop waits for all acks, and gives back what was claimed ahead, without counting an
        attempt.
        """
        return self._loops.consume(
            queue,
            group,
            stop=stop,
            idle_timeout=idle_timeout,
            lease=lease,
            give_up_after=give_up_after,
            on_error=on_error,
            defer_acks=defer_acks,
            prefetch=prefetch,
            **options,
        )

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
        """Await a function for each message, in `concurrency` tasks; returns how many were handled.

        One that is not a coroutine function is called in a thread. A message whose handler raises, or takes
        longer than `timeout` seconds, is retried after the backoff and finally becomes a dead letter; the messages
        before it in its batch are done. `on_error` is called with the message and the exception before that.

        Ends like `consume`, and on Ctrl-C or SIGTERM if it is called in the main thread: handlers under way have
        `grace` seconds to end, what is done is acknowledged, and the rest is given back. With `prefetch` up to so many
        messages are claimed ahead, for all workers together.
        """
        return await self._loops.process(
            queue,
            traces.handled_by(handler, group),
            group=group,
            concurrency=concurrency,
            stop=stop,
            idle_timeout=idle_timeout,
            timeout=timeout,
            grace=grace,
            handle_signals=handle_signals,
            on_error=on_error,
            prefetch=prefetch,
            **options,
        )

    async def sweep(self) -> SweepResult | None:
        """Fire due timers: expired leases, delays, backoffs. Consumers do this by themselves."""
        return await self._consumer.sweep()

    def stats(self) -> dict[str, int]:
        """Count what this client has done: batches, checks, sweeps, hints.

        Batches stay at 0 where each call is made by itself.
        """
        return self._counters.read()

    # Reading

    async def read(
        self,
        queue: str,
        partition: Name,
        start: int = 0,
        stop: int | None = None,
        *,
        start_time: datetime | None = None,
        stop_time: datetime | None = None,
        limit: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages of a range: offsets from `start` up to and without `stop`, or by time, or both."""
        found: list[StoredMessage] = []
        async for page in self._pages(queue, partition, start, stop, start_time, stop_time, limit):
            found += page.unpack(Place(queue, partition))
        return found

    async def scan(
        self,
        queue: str,
        partition: Name,
        start: int = 0,
        stop: int | None = None,
        *,
        start_time: datetime | None = None,
        stop_time: datetime | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of a range, a page at a time: `read` for what does not fit into memory."""
        async for page in self._pages(queue, partition, start, stop, start_time, stop_time, None):
            for message in page.unpack(Place(queue, partition)):
                yield message

    async def read_arrow(
        self,
        queue: str,
        partition: Name,
        start: int = 0,
        stop: int | None = None,
        *,
        start_time: datetime | None = None,
        stop_time: datetime | None = None,
    ) -> Any:
        """Return a range as a `pyarrow.Table`, with no work per message; needs `penstock[arrow]`."""
        from penstock.broker.arrow import table

        pages = self._pages(queue, partition, start, stop, start_time, stop_time, None)
        # sync only: return table(*Place(queue, partition), pages)
        return table(*Place(queue, partition), [page async for page in pages])  # async only

    async def get(self, message_id: UUID | str) -> StoredMessage:
        """Return the message with this id; raises NotFound."""
        return await self._transport.run(Get(parse_id(message_id)))

    async def tail(
        self,
        queue: str,
        *,
        partition: Name | None = None,
        last: int = 10,
        follow: bool = True,
        idle_timeout: Seconds | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Yield the last messages of a queue, then new ones as they come.

        Without `follow` it ends after the last ones; with `idle_timeout`, when nothing came for so many seconds. It
        polls: a poll costs one query that visits the queue's partitions.
        """
        tail = Tail(queue, last, patience("idle_timeout", idle_timeout))
        while True:
            for place, start, stop in tail.changes(await self.partitions(queue, partition)):
                tail.add(await self.read(*place, start, stop))
            for message in tail.take():
                yield message
            if not follow or tail.idle():
                return
            await asyncio.sleep(tail.pause())

    # Queues and partitions

    async def queues(self) -> list[QueueInfo]:
        """Describe all queues."""
        return await self._transport.run(ListQueues())

    async def partitions(self, queue: str, partition: Name | None = None) -> list[PartitionInfo]:
        """Describe the partitions of a queue, or the one that is named."""
        return await self._transport.run(ListPartitions(queue, as_text(partition)))

    async def describe(self, queue: str) -> QueueInfo:
        """Describe one queue; raises NotFound."""
        return (await self._transport.run(ListQueues(queue)))[0]

    async def create(
        self,
        queue: str,
        *,
        partition: Name | None = None,
        priority: int = 0,
        description: str | None = None,
        **settings: Any,
    ) -> None:
        """Create a queue with settings, or a partition with a priority; raises AlreadyExists."""
        if partition is None:
            _refuse_priority(priority)
            await self._transport.run(CreateQueue(queue, settings, description))
        else:
            _refuse_settings(settings, description)
            await self._transport.run(CreatePartition(Place(queue, partition), priority))

    async def configure(
        self,
        queue: str,
        *,
        partition: Name | None = None,
        priority: int | None = None,
        description: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Change a queue's settings (None sets one back to its default), or a partition's priority.

        Returns all settings of the queue as they now hold.
        """
        if partition is not None:
            _refuse_settings(settings, description)
            await self._transport.run(ConfigurePartition(Place(queue, partition), priority))
        else:
            _refuse_priority(priority)
        self._spreads.forget(queue)
        return await self._transport.run(ConfigureQueue(queue, settings, description))

    async def purge(self, queue: str, *, partition: Name | None = None) -> int:
        """Drop all messages of a queue or partition and return how many; offsets go on where they were."""
        return await self._transport.run(Purge(queue, as_text(partition)))

    async def delete(self, queue: str, *, partition: Name | None = None) -> int:
        """Delete a queue or partition with all that belongs to it; returns how many messages went."""
        self._spreads.forget(queue)
        self._consumer.forget_groups()
        return await self._transport.run(Delete(queue, as_text(partition)))

    async def maintain(self, *, min_segments: int = 64) -> AsyncIterator[MaintenanceResult]:
        """Apply retention and merge small segments, in short transactions; yields what each did.

        `penstock maintain` and `penstock up` do this all the time. Ends at once where another process is at it.
        """
        after: int | None = 0
        while after is not None:
            done = await self._transport.run(Maintain(after, 1000, min_segments))
            if done is None:
                return
            yield done
            after = done.next_partition

    async def fire_schedules(self) -> FiredSchedules:
        """Push what schedules have due, each slot once whoever else does the same; says when to call this again.

        Workers, `penstock maintain` and `penstock up` do this all the time. With nothing due it writes nothing.
        """
        fired = await self._scheduler.run()
        if fired.queues:
            self._wakes.pushed([Place(queue, "") for queue in fired.queues])
        return fired

    async def _pages(
        self,
        queue: str,
        partition: Name,
        start: int,
        stop: int | None,
        start_time: datetime | None,
        stop_time: datetime | None,
        limit: int | None,
    ) -> AsyncIterator[Slices]:
        pages = Paging(Place(queue, partition), start, stop, start_time, stop_time, limit)
        while (page := pages.next_page()) is not None:
            yield pages.took(await self._transport.run(page))

    async def _push(self, batches: list[PushBatch]) -> list[PushResult]:
        """Push, and wake those who wait for it."""
        push = self._wakes.with_hint(Push(batches, self._producer.stamp()))
        results = await self._transport.run(push)
        self._wakes.ran(push)
        for batch in batches:
            self._reports.pushed(batch.place.queue, sum(segment.count for segment in batch.segments))
        return results

    async def _spread(self, queue: str, messages: list[Message]) -> int:
        return await self._known_spread(queue) if pushes.needs_spread(messages) else 1

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group with its positions and dead letters."""
        await super().delete_group(queue, group)
        self._consumer.forget_group(queue, group)

    async def _known_spread(self, queue: str) -> int:
        known = self._spreads.get(queue)
        return known or self._spreads.put(queue, await self._transport.run(GetSpread(queue)))


def _refuse_settings(settings: Mapping[str, Any], description: str | None) -> None:
    """Refuse a queue's settings where a partition is meant."""
    if settings or description is not None:
        given = ", ".join([*settings, *(["description"] if description is not None else [])])
        raise InvalidInput(f"a partition has a priority and no other settings; {given} belongs to the queue")


def _refuse_priority(priority: int | None) -> None:
    """Refuse a partition's priority where a queue is meant."""
    if priority:
        raise InvalidInput("a queue has no priority: say which partition is meant")
