"""Threads and tasks that consume: how many at once, how they end, and what they give back."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import AsyncClient, Client

from .groups import SOON, offsets, values


@pytest.fixture(autouse=True)
def sound(client: Client) -> Iterator[None]:
    """After the test, state and log must agree."""
    yield
    assert [check for check in client.verify() if check.violations] == []


def test_leaving_the_loop_gives_back_what_is_not_settled(client: Client, dsn: str) -> None:
    client.push("q", [1, 2])

    def leave_by(error: BaseException | None) -> None:
        for _batch in client.consume("q", "g"):
            if error is not None:
                raise error
            break

    def fail() -> None:
        for batch in client.consume("q", "g"):
            with batch:
                raise RuntimeError("a failure counts")

    leave_by(None)
    assert client.claims("q") == []
    with pytest.raises(KeyboardInterrupt):
        leave_by(KeyboardInterrupt())
    assert client.claims("q") == []
    assert client.history("q", "g", "0", limit=1)[0].attempt == 0
    with pytest.raises(RuntimeError, match="counts"):
        fail()
    assert client.history("q", "g", "0", limit=1)[0].attempt == 1

    async def leave() -> None:
        async with AsyncClient(dsn) as twin:
            twin_batches = twin.consume("q", "other")
            async for _batch in twin_batches:
                break
            await twin_batches.aclose()

    asyncio.run(leave())
    assert client.claims("q", "other") == []
    assert values(client.pop("q", "other")) == [1, 2]


def test_process_ends_when_it_is_told_to_and_gives_back_the_rest(client: Client, dsn: str) -> None:
    client.push("q", list(range(10)))
    stop = threading.Event()
    seen: list[int] = []

    def handler(message: Any) -> None:
        seen.append(message.offset)
        if len(seen) == 4:
            stop.set()

    assert client.process("q", handler, group="g", stop=stop) == 4
    assert (client.claims("q"), client.lag("q", "g")) == ([], 6)

    async def twin() -> int:
        ending = asyncio.Event()

        async def async_handler(message: Any) -> None:
            seen.append(message.offset)
            if len(seen) == 8:
                ending.set()

        async with AsyncClient(dsn) as other:
            return await other.process("q", async_handler, group="g", stop=ending)

    assert asyncio.run(twin()) == 4
    assert (client.claims("q"), client.lag("q", "g")) == ([], 2)
    assert seen == list(range(8))


def test_process_works_on_as_many_partitions_at_once_as_it_has_workers(client: Client, dsn: str) -> None:
    client.push_many("q", [(f"p{number}", number) for number in range(3)])
    together = threading.Barrier(3, timeout=SOON)
    assert client.process("q", lambda message: together.wait(), group="sync", concurrency=3, idle_timeout=0) == 3

    async def twin() -> int:
        gathered = asyncio.Barrier(3)

        async def handler(message: Any) -> None:
            async with asyncio.timeout(SOON):
                await gathered.wait()

        async with AsyncClient(dsn) as other:
            return await other.process("q", handler, group="async", concurrency=3, idle_timeout=0)

    assert asyncio.run(twin()) == 3


def test_a_cancelled_process_gives_back_what_is_not_done(client: Client, dsn: str) -> None:
    client.push("q", [1, 2])

    async def cancelled() -> None:
        entered = asyncio.Event()

        async def handler(message: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

        async with AsyncClient(dsn) as client:
            task = asyncio.create_task(client.process("q", handler, group="g"))
            await entered.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert client.claims("q") == []
    batch: Any = client.pop("q", "g")
    assert (offsets(batch), batch.messages[0].attempt) == ([0, 1], 1)
