"""Consumers go on through an outage of the database, wherever it catches them, until they are told otherwise."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, Client, Unavailable
from penstock.embedded import attach, stop

from .processes import eventually

# Short, so that what gives up by itself has done so long before the database is back.
SHORT: dict[str, Any] = {"connect_timeout": 0.5, "timeout": 2.0}


class Work:
    """A handler that holds on to the message `hold` until it is let go, and notes all that it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.holds = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, message: Any) -> None:
        if message.json() == "hold":
            self.holds.set()
            self.go_on.wait(60)
        self.seen.append(message.json())


@contextmanager
def in_thread(work: Callable[[], object], failures: list[BaseException]) -> Iterator[None]:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_consumers_of_every_kind_live_through_an_outage_unless_they_are_told_to_give_up(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock")
    server = attach(home)
    works = {group: Work() for group in ("sync", "async", "idle", "loop", "late")}
    failures: list[BaseException] = []
    ending = threading.Event()

    def said(*texts: str) -> bool:
        return any(all(text in record.getMessage() for text in texts) for record in caplog.records)

    def process(group: str, lease: float | None = None) -> None:
        with Client(server.dsn, **SHORT) as client:
            client.process("q", works[group], group=group, stop=ending, max_messages=1, lease=lease)

    def consume(group: str) -> None:
        with Client(server.dsn, **SHORT) as client:
            for batch in client.consume("q", group, stop=ending, max_messages=1):
                with batch:
                    works[group](batch.messages[0])

    async def process_async(group: str) -> None:
        over = asyncio.Event()
        async with AsyncClient(server.dsn, **SHORT) as client:
            asyncio.create_task(asyncio.to_thread(ending.wait)).add_done_callback(lambda _: over.set())
            await client.process("q", works[group], group=group, stop=over, max_messages=1)

    runner, twin, impatient = asyncio.Runner(), AsyncClient(server.dsn, **SHORT), Client(server.dsn, **SHORT)
    runner.run(twin.open())
    impatient.push("q", "hold")
    with (
        in_thread(lambda: process("sync"), failures),
        in_thread(lambda: asyncio.run(process_async("async")), failures),
        in_thread(lambda: process("idle"), failures),
        in_thread(lambda: consume("loop"), failures),
        in_thread(lambda: process("late", 0.5), failures),
    ):
        try:
            works["idle"].go_on.set()
            eventually(lambda: all(work.holds.is_set() for work in works.values()), "all have a message", 60)
            eventually(lambda: impatient.lag("q", "idle") == 0, "one waits for the next")
            stop(home)
            for work in works.values():
                work.go_on.set()
            eventually(lambda: said("cannot pop", "idle"), "a pop was tried", 60)
            for group in ("sync", "async", "loop"):
                eventually(partial(said, "cannot settle", f"'{group}'"), "an ack was tried", 60)
            eventually(lambda: said("'late'", "could not be settled before its lease ended"), "a lease ended", 60)
            with pytest.raises(Unavailable):
                impatient.process("q", print, group="g", give_up_after=0.1)
            with pytest.raises(Unavailable):
                runner.run(twin.process("q", print, group="g", give_up_after=0.1))
            again = attach(home)
            assert again.dsn == server.dsn
            with Client(again.dsn) as client:
                client.push("q", "after")
            eventually(lambda: all("after" in work.seen for work in works.values()) or failures, "all go on", 60)
        finally:
            ending.set()
            for work in works.values():
                work.go_on.set()
    assert failures == []
    assert said("can pop", "idle", "again, after")
    # Only what could not be acknowledged while its lease lasted is delivered again.
    assert {group: work.seen for group, work in works.items()} == {
        group: ["hold", "hold", "after"] if group == "late" else ["hold", "after"] for group in works
    }
    with Client(again.dsn) as client:
        assert [client.lag("q", group) for group in works] == [0] * 5
        assert client.dead_letters("q") == []
    impatient.close()
    runner.run(twin.close())
    runner.close()
    again.detach()
    server.detach()


def test_a_loop_gives_up_when_its_time_is_over_and_not_when_each_of_its_calls_has_had_its_own(home: Path) -> None:
    server = attach(home)
    # Far longer than the test may take.
    patient: dict[str, Any] = {"connect_timeout": 120.0, "timeout": 120.0}
    failures: list[BaseException] = []
    seen = {"sync": threading.Event(), "async": threading.Event()}

    def process() -> None:
        with Client(server.dsn, **patient) as client:
            client.process("q", lambda message: seen["sync"].set(), group="sync", give_up_after=1)

    async def process_async() -> None:
        async with AsyncClient(server.dsn, **patient) as client:
            await client.process("q", lambda message: seen["async"].set(), group="async", give_up_after=1)

    with Client(server.dsn) as client:
        client.push("q", 1)
    with in_thread(process, failures), in_thread(lambda: asyncio.run(process_async()), failures):
        assert all(event.wait(60) for event in seen.values())
        stop(home)
    assert [type(failure) for failure in failures] == [Unavailable] * 2
    server.detach()


def test_loops_that_claim_ahead_go_on_after_an_outage_and_lose_nothing(home: Path) -> None:
    server = attach(home)
    messages = list(range(40))
    works = {"sync": Work(), "async": Work()}
    ending = threading.Event()
    failures: list[BaseException] = []
    options: dict[str, Any] = {"prefetch": 8, "max_messages": 1}

    def process() -> None:
        with Client(server.dsn, **SHORT) as client:
            client.process("ahead", works["sync"], group="sync", stop=ending, **options)

    async def consume() -> None:
        over = asyncio.Event()
        async with AsyncClient(server.dsn, **SHORT) as client:
            asyncio.create_task(asyncio.to_thread(ending.wait)).add_done_callback(lambda _: over.set())
            async for batch in client.consume("ahead", "async", stop=over, **options):
                async with batch:
                    await asyncio.to_thread(works["async"], batch.messages[0])

    with Client(server.dsn) as client:
        client.create("ahead", lease_time=5)
        for group in works:
            client.create_group("ahead", group)
        # The first message that each of them gets is the one that it holds on to.
        client.push("ahead", "hold", partition="p0")
        with in_thread(process, failures), in_thread(lambda: asyncio.run(consume()), failures):
            try:
                eventually(lambda: all(work.holds.is_set() for work in works.values()), "all have a message", 60)
                client.push_many("ahead", [(f"p{number % 10}", number) for number in messages])
                eventually(lambda: len(client.claims("ahead")) > 6, "some are claimed ahead", 60)
                stop(home)
                for work in works.values():
                    work.go_on.set()
                again = attach(home)
                eventually(
                    lambda: all({*messages, "hold"} <= set(work.seen) for work in works.values()) or failures,
                    "all was handled",
                    60,
                )
                eventually(
                    lambda: not any(client.lag("ahead", group) for group in works) or failures, "it is acked", 60
                )
            finally:
                ending.set()
                for work in works.values():
                    work.go_on.set()
        assert failures == []
        assert (client.claims("ahead"), client.dead_letters("ahead")) == ([], [])
        assert [check for check in client.verify() if check.violations] == []
    again.detach()
    server.detach()
