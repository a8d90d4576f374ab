"""Claiming ahead where something goes wrong: a killed process, a closed client, large messages, a cancelled task."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from penstock import AsyncClient, Client, PenstockError, settings
from penstock.broker.operations.claiming import Ack, AckAndPop, Pop, ReleaseMany, Renew
from penstock.broker.operations.operation import Operation
from penstock.consuming import prefetched
from penstock.errors import Unavailable
from penstock.postgres.database import Database

COUNT = 12

HOLDER = """
import sys, time
from penstock import Client
with Client(sys.argv[1]) as client:
    for batch in client.consume("q", prefetch=4, max_messages=1, lease=2.0):
        while len(client.claims("q")) < 5:
            pass
        print("holds", flush=True)
        time.sleep(600)
"""


class Recorded(Database):
    """The transport of PostgreSQL, which keeps the operations that it ran, and fails when it is told to."""

    def __init__(self, dsn: str) -> None:
        super().__init__(settings.resolve({"url": dsn}))
        self.ran: list[Operation[Any]] = []
        self.failures = 0

    def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:
        if self.failures and isinstance(operation, Ack | AckAndPop | Pop):
            self.failures -= 1
            raise Unavailable("the server is gone for a moment")
        self.ran.append(operation)
        return super().run(operation, timeout, retry=retry)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def fill(client: Client, value: Any = None) -> None:
    client.create_group("q", "default")
    client.push_many("q", [(f"p{number}", number if value is None else value) for number in range(COUNT)])


def test_several_batches_share_a_call(dsn: str) -> None:
    transport = Recorded(dsn)
    with Client(transport=transport) as client:
        fill(client)
        for batch in client.consume("q", prefetch=COUNT, max_messages=1, idle_timeout=0):
            with batch:
                pass
        assert client.lag("q") == 0
    calls = [one for one in transport.ran if isinstance(one, Ack | AckAndPop)]
    assert sum(len(one.ranges) for one in calls) == COUNT
    assert len(calls) < COUNT


def test_what_a_killed_process_held_comes_again_when_its_lease_ends(client: Client, dsn: str) -> None:
    fill(client)
    with subprocess.Popen([sys.executable, "-c", HOLDER, dsn], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        held = {claim.partition for claim in client.claims("q")}
        holder.kill()
    attempts: dict[str, int] = {}
    while len(attempts) < COUNT:
        batch = client.pop("q", max_messages=1, wait=30)
        assert batch is not None
        attempts[batch.partition] = batch.messages[0].attempt
        batch.ack()
    assert {partition for partition, attempt in attempts.items() if attempt == 2} == held
    assert client.lag("q") == 0


def test_acks_are_sent_before_a_retry_begins_which_may_end_the_process(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, take_done = threading.Event(), prefetched.Prefetched.take_done

    def take_done_later(self: prefetched.Prefetched[Any]) -> list[Any]:
        """Let the feeder be too busy to send acks."""
        return [] if busy.is_set() and threading.current_thread().name == "penstock-feeder" else take_done(self)

    monkeypatch.setattr(prefetched.Prefetched, "take_done", take_done_later)
    transport = Recorded(dsn)
    with Client(transport=transport) as client:
        client.create_group("q", "default", mode="shared")
        client.push("q", [1, 2, 3])
        for _ in range(3):
            failing = client.pop("q", max_messages=1)
            assert failing is not None
            failing.nack(delay=0)
        busy.set()
        for number, batch in enumerate(client.consume("q", prefetch=10, max_messages=1), 1):
            with batch:
                assert batch.messages[0].attempt == 2
            if number == 3:
                busy.clear()
                break

    told = [type(one) for one in transport.ran if isinstance(one, Ack) or (isinstance(one, Renew) and one.begun)]
    assert told[:5] == [Renew, Ack, Renew, Ack, Renew]


def test_closing_the_client_gives_back_what_waits_and_sends_the_acks(client: Client, dsn: str) -> None:
    fill(client)
    with Client(dsn) as closed:
        batches = closed.consume("q", prefetch=4, max_messages=1)
        with next(batches):
            pass
        in_hand = next(batches)
        until(lambda: len(client.claims("q")) > 2)
        closed.close()
        assert [claim.partition for claim in client.claims("q")] == [in_hand.partition]
        assert client.lag("q") == COUNT - 1
        with pytest.raises(PenstockError, match="closed"):
            next(batches)


def test_process_gives_back_what_waits_before_its_handlers_end(client: Client, dsn: str) -> None:
    fill(client)
    stop, holds, go_on = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        holds.set()
        go_on.wait(30)

    with Client(dsn) as other:
        options: dict[str, Any] = {"prefetch": 4, "max_messages": 1, "handle_signals": False}
        thread = threading.Thread(target=lambda: other.process("q", handle, stop=stop, **options))
        thread.start()
        assert holds.wait(30)
        until(lambda: len(client.claims("q")) > 2)
        stop.set()
        until(lambda: len(client.claims("q")) == 1)
        go_on.set()
        thread.join(30)
    assert client.claims("q") == []
    assert client.lag("q") == COUNT - 1


def test_large_messages_are_claimed_one_by_one(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetched, "MAX_PREFETCHED_BYTES", 5000)
    with Client(dsn) as client:
        fill(client, b"x" * 2000)
        with closing(client.consume("q", prefetch=100, max_messages=1)) as batches:
            for number, batch in enumerate(batches, 1):
                with batch:
                    # What is in hand, those that fit, and an ack that is on its way.
                    assert len(client.claims("q")) <= 4
                if number == COUNT:
                    break
        assert client.lag("q") == 0


def test_acks_that_could_not_be_sent_are_sent_again(dsn: str) -> None:
    transport = Recorded(dsn)
    seen = []
    with Client(transport=transport) as client:
        fill(client)
        for batch in client.consume("q", prefetch=4, max_messages=1, idle_timeout=0.2):
            with batch:
                seen.append(batch.messages[0].json())
            if len(seen) == 3:
                transport.failures = 4
        assert client.lag("q") == 0
    assert sorted(seen) == list(range(COUNT))


def test_an_outage_that_lasts_too_long_is_raised(dsn: str) -> None:
    transport = Recorded(dsn)
    with Client(transport=transport) as client:
        fill(client)
        transport.failures = 1 << 30
        with pytest.raises(Unavailable):
            next(client.consume("q", prefetch=4, give_up_after=0.3))
        transport.failures = 0


async def test_a_cancelled_task_keeps_no_claim_and_loses_no_ack(dsn: str) -> None:
    async with AsyncClient(dsn) as client:
        await client.push_many("q", [(f"p{number}", number) for number in range(200)])
        seen = 0

        async def handle(message: Any) -> None:
            nonlocal seen
            seen += 1
            begun.set()

        begun = asyncio.Event()
        for _ in range(5):
            working = asyncio.create_task(client.process("q", handle, prefetch=20, max_messages=1))
            begun.clear()
            await begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
        async with asyncio.timeout(30):
            while await client.claims("q"):
                pass
        assert await client.lag("q") == 200 - seen


def test_a_loop_that_is_cancelled_with_its_event_loop_keeps_no_claim(client: Client, dsn: str) -> None:
    fill(client)

    async def main() -> None:
        twin = AsyncClient(dsn)
        await twin.open()

        async def work() -> None:
            async for batch in twin.consume("q", prefetch=4, max_messages=1):
                async with batch:
                    held.set()
                    await asyncio.sleep(600)

        held = asyncio.Event()
        asyncio.create_task(work()).add_done_callback(lambda _: None)
        await held.wait()
        await asyncio.to_thread(until, lambda: len(client.claims("q")) > 2)

    asyncio.run(main())
    assert client.claims("q") == []
    assert client.lag("q") == COUNT


def test_a_lease_time_that_is_lowered_loses_no_lease(dsn: str) -> None:
    transport = Recorded(dsn)
    lost: list[BaseException] = []
    attempts = []
    with Client(transport=transport) as client:
        client.create("q", lease_time=3)
        fill(client)
        options: dict[str, Any] = {"prefetch": COUNT, "max_messages": 1, "idle_timeout": 0}
        for batch in client.consume("q", on_error=lambda _, error: lost.append(error), **options):
            with batch:
                attempts.append(batch.messages[0].attempt)
                if len(attempts) == 1:
                    until(lambda: len(client.claims("q")) == COUNT)
                    client.configure_group("q", "default", lease_time=0.25)
                    until(lambda: sum(isinstance(one, Renew) for one in transport.ran) >= 5)
    assert attempts == [1] * COUNT
    assert lost == []


def test_what_waits_with_a_lease_near_its_end_is_given_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Releasing(Recorded):
        def run(self, operation: Operation[Any], timeout: float | None = None, *, retry: bool = True) -> Any:
            if isinstance(operation, ReleaseMany):
                monkeypatch.undo()
            return super().run(operation, timeout, retry=retry)

    transport, attempts = Releasing(dsn), []
    with Client(transport=transport) as client:
        fill(client)
        for batch in client.consume("q", prefetch=10 * COUNT, max_messages=1, idle_timeout=0):
            with batch:
                attempts.append(batch.messages[0].attempt)
                if len(attempts) == 1:
                    until(lambda: len(client.claims("q")) == COUNT)
                    monkeypatch.setattr(prefetched, "_NEAR_ITS_END", 2.0)
        assert attempts == [1] * COUNT
        assert client.lag("q") == 0


def test_what_turns_out_to_be_too_large_is_given_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetched, "MAX_PREFETCHED_BYTES", 5000)
    with Client(dsn) as client:
        client.create_group("q", "default")
        client.push("q", b"x", partition="small")
        client.push_many("q", [(f"p{number}", b"x" * 2000) for number in range(COUNT)])
        attempts = []
        for batch in client.consume("q", prefetch=100, max_messages=1, idle_timeout=0):
            with batch:
                attempts.append(batch.messages[0].attempt)
                # What is in hand, those that fit, and an ack that is on its way.
                until(lambda: len(client.claims("q")) <= 4)
        assert attempts == [1] * (COUNT + 1)


def lose_the_first(client: Client, on_error: Callable[..., object], loser: Client) -> None:
    """Claim ahead, lose the lease of the first batch, and be told of it when its ack is sent."""
    fill(client)
    for number, batch in enumerate(loser.consume("q", prefetch=4, max_messages=1, on_error=on_error), 1):
        with batch:
            if number == 1:
                client.seek("q", "default", "earliest")


def test_on_error_may_close_the_client(client: Client, dsn: str) -> None:
    loser = Client(dsn)
    raised: list[str] = []

    def work() -> None:
        try:
            lose_the_first(client, lambda *_: loser.close(), loser)
        except PenstockError as error:
            raised.append(str(error))

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(6)
    assert raised == ["this client is closed; make a new one"]
    until(lambda: client.claims("q") == [])


def test_on_error_that_ends_the_program_loses_no_claim(client: Client, dsn: str) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(4)

    with Client(dsn) as loser, pytest.raises(SystemExit):
        lose_the_first(client, leave, loser)
    assert client.claims("q") == []
