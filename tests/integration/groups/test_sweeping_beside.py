"""Consumers sweep beside their work: in a thread or a task of the client's own, and never before a pop's answer."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import settings
from penstock.broker.operations.claiming import Sweep
from penstock.broker.operations.operation import Operation
from penstock.errors import Unavailable
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.database import Database

MESSAGES = 30


class Sweeps(Database):
    """The transport of PostgreSQL, with something in the way of sweeps."""

    def __init__(self, dsn: str, before: Callable[[], None]) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.before = before
        self.swept = threading.Event()

    def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:
        if isinstance(operation, Sweep):
            self.before()
        reply = super().run(operation, timeout, retry=retry)
        if isinstance(operation, Sweep):
            self.swept.set()
        return reply


class AsyncSweeps(AsyncDatabase):
    """The asynchronous twin; `before` returns an event to wait for."""

    def __init__(self, dsn: str, before: Callable[[], asyncio.Event | None]) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.before = before

    async def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:  # noqa: ASYNC109
        if isinstance(operation, Sweep) and (event := self.before()) is not None:
            await event.wait()
        return await super().run(operation, timeout, retry=retry)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def sweepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-sweeper"]


def test_messages_come_while_a_sweep_is_stuck(penstock_dsn: str) -> None:
    release = threading.Event()

    def wait_for_release() -> None:
        release.wait(60)

    with penstock.Client(transport=Sweeps(penstock_dsn, wait_for_release)) as client:
        seen = 0
        try:
            for number in range(MESSAGES):
                client.push("q", number, partition=f"p{number}")
            for batch in client.consume("q"):
                with batch:
                    seen += len(batch)
                if seen == MESSAGES:
                    break
            assert len(sweepers()) == 1
        finally:
            release.set()
    assert seen == MESSAGES


async def test_messages_come_while_a_sweep_of_the_asynchronous_client_is_stuck(penstock_dsn: str) -> None:
    release = asyncio.Event()
    async with penstock.AsyncClient(transport=AsyncSweeps(penstock_dsn, lambda: release)) as client:
        seen = 0
        try:
            for number in range(MESSAGES):
                await client.push("q", number, partition=f"p{number}")
            async for batch in client.consume("q"):
                async with batch:
                    seen += len(batch)
                if seen == MESSAGES:
                    break
        finally:
            release.set()
    assert seen == MESSAGES


def test_an_outage_ends_the_sweeps_without_a_word_and_the_next_pop_begins_them_anew(
    penstock_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise Unavailable("there is no server")

    transport = Sweeps(penstock_dsn, fail)
    with caplog.at_level(logging.WARNING), penstock.Client(transport=transport) as client:
        client.push("q", 1)
        assert client.pop("q") is not None
        assert failed.wait(30)
        eventually(lambda: not sweepers())
        transport.before = lambda: None
        client.push("q", 2, partition="other")
        assert client.pop("q") is not None
        assert transport.swept.wait(30)
    assert not caplog.records


def test_the_thread_ends_with_the_client_and_also_when_nobody_consumes_any_more(penstock_dsn: str) -> None:
    with penstock.Client(penstock_dsn) as client:
        client.push("q", [1, 2])
        assert client.pop("q", max_messages=1) is not None
        assert len(sweepers()) == 1
        eventually(lambda: not sweepers())
        client.push("q", 3, partition="other")
        assert client.pop("q") is not None
        assert len(sweepers()) == 1
    assert not sweepers()


async def test_no_task_is_left_of_an_asynchronous_client_that_is_closed(penstock_dsn: str) -> None:
    async with penstock.AsyncClient(penstock_dsn) as client:
        await client.push("q", 1)
        assert await client.pop("q") is not None
        assert [task for task in asyncio.all_tasks() if task.get_name() == "penstock-sweeper"]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "penstock-sweeper"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_sweeper_of_its_own(penstock_dsn: str) -> None:
    with penstock.Client(penstock_dsn) as client:
        client.push("q", 1)
        assert client.pop("q", lease=0.2) is not None
        child = os.fork()
        if child == 0:
            # The lease of the parent's claim ends, and the child's own sweeps see to it that it is delivered again.
            batch = client.pop("q", wait=20)
            os._exit(0 if batch is not None and len(sweepers()) == 1 else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
