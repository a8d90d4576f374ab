"""The ack of one batch goes with the request for the next: one call, and never later than it has to."""

import asyncio
import logging
import threading
import time
from contextlib import aclosing, closing, suppress
from typing import Any

import pytest

from databases import Connection
from penstock import AsyncClient, Client, settings
from penstock.broker.operations.claiming import Ack, AckAndPop
from penstock.broker.operations.operation import Operation
from penstock.consuming import threads
from penstock.consuming.async_consumer import AsyncLast
from penstock.errors import Unavailable
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.database import Database

COUNT = 6


class Recorded(Database):
    """The transport of PostgreSQL, which keeps the operations that it ran, and may fail at some."""

    def __init__(self, dsn: str) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.ran: list[type[Operation[Any]]] = []
        self.failures = 0

    def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:
        self.ran.append(type(operation))
        if isinstance(operation, AckAndPop) and self.failures:
            self.failures -= 1
            raise Unavailable("the server is gone for a moment")
        return super().run(operation, timeout, retry=retry)


class AsyncRecorded(AsyncDatabase):
    """The asynchronous twin."""

    def __init__(self, dsn: str) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.ran: list[type[Operation[Any]]] = []

    async def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:  # noqa: ASYNC109
        self.ran.append(type(operation))
        return await super().run(operation, timeout, retry=retry)


def eventually(client: Client, lag: int) -> None:
    deadline = time.monotonic() + 30
    while client.lag("q") != lag:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fill(client: Client) -> None:
    client.create_group("q", "default")
    client.push_many("q", [(f"p{number}", number) for number in range(COUNT)])


def test_process_acknowledges_together_with_the_next_pop_and_the_last_one_at_once(penstock_dsn: str) -> None:
    transport = Recorded(penstock_dsn)
    stop = threading.Event()
    seen: list[Any] = []
    with Client(transport=transport) as client, Client(penstock_dsn) as other:
        fill(other)
        thread = threading.Thread(
            target=lambda: client.process(
                "q", lambda message: seen.append(message.json()), stop=stop, handle_signals=False
            )
        )
        thread.start()
        # The consumer waits for more, and has nothing left to acknowledge.
        eventually(other, 0)
        stop.set()
        thread.join(30)
    assert sorted(seen) == list(range(COUNT))
    assert transport.ran.count(AckAndPop) == COUNT
    assert transport.ran.count(Ack) == 0


async def test_the_asynchronous_process_does_so_too(penstock_dsn: str) -> None:
    transport = AsyncRecorded(penstock_dsn)
    seen: list[Any] = []
    async with AsyncClient(transport=transport) as client:
        await client.push_many("q", [(f"p{number}", number) for number in range(COUNT)])

        async def handle(message: Any) -> None:
            seen.append(message.json())

        await client.process("q", handle, idle_timeout=0.1, handle_signals=False)
        assert await client.lag("q") == 0
    assert sorted(seen) == list(range(COUNT))
    assert transport.ran.count(AckAndPop) == COUNT


async def test_workers_that_meet_share_acks_and_pops_with_each_other(penstock_dsn: str) -> None:
    transport = AsyncRecorded(penstock_dsn)
    seen: list[Any] = []
    async with AsyncClient(transport=transport) as client:
        await client.push_many("q", [(f"p{number}", number) for number in range(100)])

        async def handle(message: Any) -> None:
            seen.append(message.json())

        await client.process("q", handle, concurrency=20, idle_timeout=0.2, handle_signals=False)
        assert await client.lag("q") == 0
    assert sorted(seen) == list(range(100))
    assert len(transport.ran) < 200


def test_a_plain_loop_acknowledges_at_the_end_of_the_block(penstock_dsn: str) -> None:
    with Client(penstock_dsn) as client, closing(client.consume("q", max_messages=1)) as batches:
        fill(client)
        for number, batch in enumerate(batches, 1):
            with batch:
                pass
            assert client.lag("q") == COUNT - number
            if number == COUNT:
                break


def test_a_loop_that_defers_acknowledges_with_the_next_batch_and_when_it_is_left(penstock_dsn: str) -> None:
    transport = Recorded(penstock_dsn)
    with Client(transport=transport) as client:
        fill(client)
        for number, batch in enumerate(client.consume("q", defer_acks=True), 1):
            assert client.lag("q") == COUNT - number + 1
            with batch:
                pass
            if number == 3:
                break
        assert client.lag("q") == COUNT - 3

        def fail_after_the_block() -> None:
            for batch in client.consume("q", defer_acks=True):
                with batch:
                    pass
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_the_block()
        eventually(client, COUNT - 4)
    assert transport.ran.count(AckAndPop) == 2
    assert transport.ran.count(Ack) == 2


async def test_an_asynchronous_loop_that_defers_acknowledges_when_it_is_closed(penstock_dsn: str) -> None:
    async with AsyncClient(penstock_dsn) as client:
        await client.push_many("q", [(f"p{number}", number) for number in range(COUNT)])
        async with aclosing(client.consume("q", defer_acks=True)) as batches:
            async for batch in batches:
                async with batch:
                    pass
                break
        assert await client.lag("q") == COUNT - 1


async def test_a_task_that_is_cancelled_keeps_no_claim_and_loses_no_ack(penstock_dsn: str) -> None:
    async with AsyncClient(penstock_dsn) as client:
        await client.push_many("q", [(f"p{number}", number) for number in range(200)])
        seen = 0

        async def handle(message: Any) -> None:
            nonlocal seen
            seen += 1

        for _ in range(5):
            working = asyncio.create_task(client.process("q", handle, concurrency=2, handle_signals=False))
            await asyncio.sleep(0.05)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
        async with asyncio.timeout(30):
            while await client.claims("q"):
                pass
        assert await client.lag("q") == 200 - seen


def test_an_ack_whose_call_fails_is_sent_by_itself(penstock_dsn: str) -> None:
    transport = Recorded(penstock_dsn)
    transport.failures = 2
    seen: list[Any] = []
    with Client(transport=transport) as client:
        fill(client)
        client.process("q", lambda message: seen.append(message.json()), idle_timeout=0.1, handle_signals=False)
        assert client.lag("q") == 0
    assert sorted(seen) == list(range(COUNT))
    assert transport.ran.count(Ack) == 2


def test_a_lost_lease_is_logged_and_the_loop_goes_on(penstock_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with Client(penstock_dsn) as client, Client(penstock_dsn) as operator:
        fill(client)
        seen = 0

        def handle(message: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                (claim,) = operator.claims("q")
                assert operator.release_claim(claim)

        with caplog.at_level(logging.WARNING):
            client.process("q", handle, idle_timeout=0.2, handle_signals=False)
        assert client.lag("q") == 0
    assert seen == COUNT + 1
    assert any("lease of" in record.getMessage() for record in caplog.records)


async def test_an_ack_that_waits_when_its_task_is_cancelled_is_not_lost(dsn: str, sql: Connection) -> None:
    async with AsyncClient(dsn) as client:
        await client.push("q", 1)
        batch = await client.pop("q", "g")
        assert batch is not None
        last = AsyncLast()
        last.note(batch)
        with sql.transaction():
            sql.execute("LOCK TABLE penstock.journal IN ACCESS EXCLUSIVE MODE")
            acking = asyncio.create_task(client._consumer.ack_now(last, None))
            while not batch.settled and not acking.done():
                if await waits_for_lock(sql):
                    break
            acking.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await acking
        assert await client.lag("q", "g") == 0


async def waits_for_lock(sql: Connection) -> bool:
    await asyncio.sleep(0.01)
    return bool(sql.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())


@pytest.mark.parametrize("pop_batching", [True, False])
async def test_what_a_cancelled_pop_has_claimed_is_given_back(dsn: str, pop_batching: bool) -> None:
    async with AsyncClient(dsn, pop_batching=pop_batching) as client:
        await client.push("q", 1)
        await client.create_group("q", "g")
        for pause in range(30):
            popping = asyncio.create_task(client.pop("q", "g"))
            await asyncio.sleep(pause / 10_000)
            popping.cancel()
            with suppress(asyncio.CancelledError):
                if (batch := await popping) is not None:
                    await batch.release()
        batch = await client.pop("q", "g", wait=5)
        assert batch is not None
        assert batch.messages[0].attempt == 1


def test_the_thread_that_renews_ends_when_there_is_nothing_to_renew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_LINGER", 0.05)
    renewals = client._loops._renewals
    for number in range(2):
        client.push("q", number)
        for batch in client.consume("q", "g", idle_timeout=0):
            with batch:
                assert renewals._thread is not None
        deadline = time.monotonic() + 30
        while renewals._thread is not None:
            assert time.monotonic() < deadline
