"""The asynchronous client, `penstock.AsyncClient`.

A thin, typed layer: each method builds a call and runs it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from penstock import settings as settings_module
from penstock.batching.batcher import Batcher
from penstock.batching.flushes import Parcel, Pushes
from penstock.broker.arguments import Name, Seconds, patience
from penstock.broker.messages import Message, PushResult, StoredMessage
from penstock.broker.producers import Producer
from penstock.client import pushes
from penstock.client.async_operating import AsyncOperator
from penstock.client.async_transaction import AsyncTransaction
from penstock.client.spreads import Spreads
from penstock.client.tailing import Tail
from penstock.consuming.async_batch import AsyncRun
from penstock.consuming.async_consumer import AsyncConsumer
from penstock.postgres import savepoints, user_connections
from penstock.postgres.address import redact
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.failures import translated
from penstock.postgres.statements import calls, option_calls
from penstock.postgres.statements.calls import Call, Maintenance, PartitionInfo, Place, QueueInfo, Slices
from penstock.postgres.statements.option_calls import Due, ScheduledInfo


class AsyncClient(AsyncConsumer, AsyncOperator):
    """A connection pool to one penstock.

    `url` is a `postgresql://…` address. Without it, and without `PENSTOCK_URL`, the client uses the embedded
    PostgreSQL of `home`, starting it if it is not running. Safe to share between tasks. Close it, or use it as a
    context manager.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        home: str | Path | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        pool_size: int | None = None,
        push_batching: bool | None = None,
        pop_batching: bool | None = None,
        pending_check: bool | None = None,
        notify: bool | None = None,
    ) -> None:
        self.settings = settings_module.resolve(
            {
                "url": url,
                "home": home,
                "timeout": timeout,
                "connect_timeout": connect_timeout,
                "pool_size": pool_size,
                "push_batching": push_batching,
                "pop_batching": pop_batching,
                "pending_check": pending_check,
                "notify": notify,
            }
        )
        self.push_batching = self.settings.push_batching
        self.pop_batching = self.settings.pop_batching
        self.pending_check = self.settings.pending_check
        self.notify = self.settings.notify
        self._database = AsyncDatabase(self.settings)
        self._spreads = Spreads()
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._producer = Producer()
        batched = Pushes(self._database, self._producer)  # async only
        self._pushes: Batcher[Parcel, list[PushResult]] = self._batcher("push", batched)  # async only

    @property
    def dsn(self) -> str:
        """The address in use, with its password; what is shown or logged has none."""
        return self._database.address.dsn

    def __repr__(self) -> str:
        # sync only: return f"Client({redact(self.dsn)!r})"
        return f"AsyncClient({redact(self.settings.url or '') or str(self.settings.home)!r})"  # async only

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
        await self._database.open()

    async def close(self) -> None:
        """Close all connections; an embedded server stops soon after its last user."""
        self._unregister_for_wakes()
        await self._pushes.close()  # async only
        await self._close_batchers()  # async only
        await self._database.close()

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
    ) -> PushResult:
        """Push one message or a list of them, in one transaction, to one partition.

        Queue and partition come into being on first use. When this returns, the messages are durable. A key without a
        partition picks one, the same for ever as long as the queue's `spread` stays.

        With `delay` (seconds) or `at` they are kept aside, and get their offsets when they are due. With a `dedupe_id`
        a message is stored once within the queue's `dedupe_window`. The result tells of both.
        """
        due = option_calls.due(delay, at)
        values = pushes.plain(message_or_list) if due is None and dedupe_id is None else None
        if values is not None:
            if partition is None:
                partition = pushes.only_partition(key, await self._known_spread(queue))
            return await self._push_values(Place(queue, partition), values, key, headers)
        messages = pushes.gather(message_or_list, partition, key, headers, dedupe_id)
        placed = pushes.place(queue, messages, await self._spread(queue, messages))
        pushes.only_place(placed)
        return (await self._push_placed(placed, due))[0]

    async def push_many(
        self,
        queue: str,
        messages: Iterable[tuple[Name, Any] | Message],
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
    ) -> list[PushResult]:
        """Push (partition, message) pairs, or Messages, in one transaction; one result per partition."""
        due = option_calls.due(delay, at)
        gathered = pushes.gather_many(messages)
        placed = pushes.place(queue, gathered, await self._spread(queue, gathered))
        return await self._push_placed(placed, due)

    async def scheduled(
        self,
        queue: str | None = None,
        *,
        partition: Name | None = None,
        after: ScheduledInfo | None = None,
        limit: int = 100,
    ) -> list[ScheduledInfo]:
        """List what is scheduled, the one that is due first at the front; `after` is the last of the page before."""
        return await self._database.run(option_calls.scheduled(queue, partition, after, limit))

    async def cancel(self, *ids: int) -> list[int]:
        """Cancel what is scheduled, by the ids of `PushResult.scheduled`; returns those for which it was in time.

        What was cancelled is never delivered. For the others it was too late: they are in the log, or were cancelled
        before.
        """
        return await self._database.run(option_calls.cancel(ids))

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[AsyncTransaction]:
        """Begin a transaction in which pushes commit together with the caller's own SQL.

        Pushes are gathered and written at the end of the block. Without a connection, one is lent as
        `tx.connection` and the block's end commits. On a connection of your own (psycopg, SQLAlchemy, asyncpg)
        they are written into your transaction, which commits when you commit it.
        """
        if connection is not None:
            tx = AsyncTransaction(connection, self.consumer_id)
            with tx.outcome():
                async with user_connections.async_transaction_on(connection, tx.effects) as execute:
                    with tx.begin(_translating(execute)).block():
                        yield tx
                    await self._write(tx)
            return
        async with self._database.connection() as own:

            async def execute_own(call: Call[Any]) -> list[Any]:
                return await self._database.execute(own, call)

            tx = AsyncTransaction(own, self.consumer_id)
            tx.effects.begin_later()
            with tx.outcome():
                async with self._database.transaction(own):
                    with savepoints.async_watch_psycopg(own, tx.effects), tx.begin(_translating(execute_own)).block():
                        yield tx
                    await self._write(tx)
        self._pushed([Place(queue, "") for queue in tx.gathered.queues()])

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
            found += calls.unpack_page(Place(queue, partition), page).messages
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
            for message in calls.unpack_page(Place(queue, partition), page).messages:
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
        return await self._database.run(calls.get(message_id))

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
        return await self._database.run(calls.queues())

    async def partitions(self, queue: str, partition: Name | None = None) -> list[PartitionInfo]:
        """Describe the partitions of a queue, or the one that is named."""
        return await self._database.run(calls.partitions(queue, partition))

    async def describe(self, queue: str) -> QueueInfo:
        """Describe one queue; raises NotFound."""
        return (await self._database.run(calls.queues(queue)))[0]

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
            calls.no_priority(priority)
            await self._database.run(calls.create_queue(queue, settings, description))
        else:
            calls.no_settings(settings, description)
            await self._database.run(calls.create_partition(Place(queue, partition), priority))

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
            calls.no_settings(settings, description)
            await self._database.run(calls.configure_partition(Place(queue, partition), priority))
        else:
            calls.no_priority(priority)
        self._spreads.forget(queue)
        return await self._database.run(calls.configure_queue(queue, settings, description))

    async def purge(self, queue: str, *, partition: Name | None = None) -> int:
        """Drop all messages of a queue or partition and return how many; offsets go on where they were."""
        return await self._database.run(calls.purge(queue, partition))

    async def delete(self, queue: str, *, partition: Name | None = None) -> int:
        """Delete a queue or partition with all that belongs to it; returns how many messages went."""
        self._spreads.forget(queue)
        self._subscribed.clear()
        return await self._database.run(calls.delete(queue, partition))

    async def maintain(self, *, min_segments: int = 64) -> AsyncIterator[Maintenance]:
        """Drop what retention says and merge small segments, in short transactions; yields what each did.

        `penstock maintain` and `penstock up` do this all the time. Ends at once where another process is at it.
        """
        after: int | None = 0
        while after is not None:
            done = await self._database.run(calls.maintain(after, 1000, min_segments))
            if done is None:
                return
            yield done
            after = done.next_partition

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
        pages = calls.Paging(Place(queue, partition), start, stop, start_time, stop_time, limit)
        while (call := pages.next_call()) is not None:
            yield pages.took(await self._database.run(call))

    async def _push_values(
        self, place: Place, values: list[bytes | None], key: Name | None, headers: Mapping[str, str] | None
    ) -> PushResult:
        """Push values that share their partition, key and headers."""
        if self.push_batching:  # async only
            return (await self._push_batched(Parcel.plain(place, values, key, headers)))[0]
        packed = pushes.pack_plain(place, values, key, headers)
        results = await self._database.run(calls.push(packed, self._producer.stamp()))
        self._pushed([place])
        return results[0]

    async def _push_placed(self, placed: dict[Place, list[Message]], due: Due | None) -> list[PushResult]:
        """Push messages by partition."""
        # Those that come later or count once go by themselves.
        if self.push_batching and due is None and not pushes.counts_once(placed):  # async only
            return await self._push_batched(Parcel.of(placed))
        results = await self._database.run(pushes.call(placed, due, self._producer.stamp()))
        self._pushed(list(placed))
        return results

    async def _push_batched(self, parcel: Parcel) -> list[PushResult]:  # async only
        """Push, together with others who do so at the same time."""
        for place in parcel.places:
            calls.new_names(*place)
        results = await self._pushes.submit(parcel)
        self._pushed(list(parcel.places))
        return results

    async def _spread(self, queue: str, messages: list[Message]) -> int:
        return await self._known_spread(queue) if pushes.needs_spread(messages) else 1

    async def _known_spread(self, queue: str) -> int:
        known = self._spreads.get(queue)
        return known or self._spreads.put(queue, await self._database.run(calls.spread(queue)))

    async def _write(self, tx: AsyncTransaction) -> None:
        await tx.check()
        # On the transaction's own connection: the pool may have no other.
        spreads = {}
        for queue in tx.gathered.queues_to_spread():
            spreads[queue] = self._spreads.get(queue) or self._spreads.put(queue, await tx.run(calls.spread(queue)))
        if (call := tx.gathered.write(spreads)) is not None:
            await tx.run(call)


def _translating(execute: user_connections.AsyncExecute) -> AsyncRun:
    async def run(call: Call[Any]) -> Any:
        with translated():
            return call.parse(await execute(call))

    return run
