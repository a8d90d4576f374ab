"""Claiming ahead while the database is away: a loop ends in time, and no ack is lost without a word."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import AsyncClient, Client, StoredMessage, settings
from penstock.broker.operations.claiming import Ack, AckAndPop, Pop
from penstock.broker.operations.operation import Operation
from penstock.errors import Unavailable
from penstock.postgres.database import Database

from .outages import Line, line

# Far less than a call may take to time out.
SOON = 15
OPTIONS: dict[str, Any] = {"max_messages": 1, "prefetch": 4}

HOLDER = """
import logging, signal, sys, threading
from penstock import Client
# Ignored where the tests run in the background of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
def handle(message):
    print("in hand", flush=True)
    threading.Event().wait(600)
Client(sys.argv[1]).process("q", handle, prefetch=4, max_messages=1, grace=600)
"""


@pytest.fixture
def way(dsn: str) -> Iterator[Line]:
    with line(dsn) as way:
        yield way


@pytest.fixture(autouse=True)
def messages(client: Client) -> None:
    client.create_group("q", "default")
    client.push_many("q", [(f"p{number}", number) for number in range(12)])


@pytest.mark.parametrize("outage", ["cut", "silence"])
def test_process_ends_in_its_grace_when_it_is_stopped_in_an_outage(way: Line, outage: str) -> None:
    stop = threading.Event()

    def handle(message: StoredMessage) -> None:
        getattr(way, outage)()
        stop.set()

    client = Client(way.dsn, notify=False)

    def work() -> None:
        client.process("q", handle, stop=stop, grace=0.5, handle_signals=False, **OPTIONS)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(SOON)
    assert not working.is_alive()
    way.open()
    client.close()


def test_a_second_interrupt_ends_process_at_once_also_in_an_outage(way: Line) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, way.dsn], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        said = iter(holder.stdout)
        assert any("in hand" in text for text in said)
        way.silence()
        holder.send_signal(signal.SIGINT)
        assert any("ending" in text for text in said)
        holder.send_signal(signal.SIGINT)
        try:
            assert holder.wait(SOON) == -signal.SIGINT
        finally:
            holder.kill()


async def test_process_ends_when_it_is_cancelled_in_an_outage(way: Line) -> None:
    begun = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        way.silence()
        begun.set()

    client = AsyncClient(way.dsn, notify=False)
    working = asyncio.create_task(client.process("q", handle, **OPTIONS))
    await begun.wait()
    working.cancel()
    done, _ = await asyncio.wait({working}, timeout=SOON)
    assert done
    way.open()
    await client.close()


async def test_a_loop_gives_up_when_it_was_told_to(way: Line) -> None:
    client = Client(way.dsn, notify=False)

    def consume() -> None:
        for batch in client.consume("q", give_up_after=0.5, **OPTIONS):
            with batch:
                way.cut()

    with pytest.raises(Unavailable):
        await asyncio.wait_for(asyncio.to_thread(consume), SOON)
    way.open()
    await asyncio.to_thread(client.close)


async def test_a_loop_of_tasks_gives_up_when_it_was_told_to(way: Line) -> None:
    client = AsyncClient(way.dsn, notify=False)

    async def consume() -> None:
        async for batch in client.consume("q", give_up_after=0.5, **OPTIONS):
            async with batch:
                way.cut()

    with pytest.raises(Unavailable):
        await asyncio.wait_for(consume(), SOON)
    await client.close()


class Away(Database):
    """The transport of PostgreSQL, which is away until something is to be popped for the second time."""

    def __init__(self, dsn: str) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.fails = 0

    def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:
        if self.fails and isinstance(operation, Ack | AckAndPop | Pop):
            self.fails -= not isinstance(operation, Ack)
            if self.fails:
                raise Unavailable("the server is gone for a moment")
        return super().run(operation, timeout, retry=retry)


@pytest.mark.parametrize("loop", ["consume", "process"])
def test_an_ack_that_was_given_up_in_an_outage_is_sent_with_the_next_pop(dsn: str, loop: str) -> None:
    seen = []
    transport = Away(dsn)

    def handle(message: StoredMessage) -> None:
        seen.append(message.partition)
        if len(seen) == 1:
            transport.fails = 2

    options: dict[str, Any] = {"max_messages": 1, "give_up_after": 0.2, "idle_timeout": 0.2}
    with Client(transport=transport) as client:
        if loop == "process":
            client.process("q", handle, handle_signals=False, **options)
        else:
            for batch in client.consume("q", defer_acks=True, **options):
                with batch:
                    handle(batch.messages[0])
        assert len(seen) == 12
        assert client.lag("q") == 0
