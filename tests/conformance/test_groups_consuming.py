"""Consuming in a loop: batches that settle themselves, leases that are kept alive, handlers that fail."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock import AsyncClient, Client, InvalidInput, LeaseLost

from .groups import MODES, SOON, drain, offsets, until, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.mark.parametrize("mode", MODES)
def test_a_with_block_acknowledges_at_its_end(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    found = []
    for batch in api.consume("q", "g", mode=mode, max_messages=2, idle_timeout=0):
        with batch:
            found += values(batch)
    assert sorted(found) == list(range(5))
    assert api.lag("q", "g") == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_a_with_block_fails_the_batch_and_passes_on(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=1)
    api.push("q", 1)
    with pytest.raises(RuntimeError, match="no good"), api.pop("q", "g"):
        raise RuntimeError("no good")
    (letter,) = api.dead_letters("q")
    assert (letter.reason, letter.last_error) == ("RuntimeError", "RuntimeError: no good")


@pytest.mark.parametrize("mode", MODES)
def test_the_programs_end_in_a_with_block_gives_the_batch_back(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", [1, 2])
    for error in (KeyboardInterrupt, SystemExit):
        batch = api.pop("q", "g")
        with suppress(error), batch:
            raise error
        assert api.claims("q") == []
    again = api.pop("q", "g")
    assert (values(again), again.messages[0].attempt) == ([1, 2], 1)


def test_an_error_is_not_hidden_by_a_lease_that_is_gone(api: Any) -> None:
    api.push("q", 1)
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])
    with pytest.raises(RuntimeError, match="the real one"), batch:
        raise RuntimeError("the real one")
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])
    with pytest.raises(LeaseLost), batch:
        pass


def test_a_batch_that_was_not_settled_is_given_back_when_the_next_is_asked_for(api: Any) -> None:
    api.push("q", [1, 2])
    seen = []
    for batch in api.consume("q", "g", max_messages=2):
        seen.append((values(batch), batch.messages[0].attempt))
        if len(seen) == 3:
            batch.ack()
            break
    assert seen == [([1, 2], 1)] * 3
    assert api.lag("q", "g") == 0


def test_leaving_the_loop_gives_back_what_is_not_settled(dsn: str, api: Any) -> None:
    api.push("q", [1, 2])

    def leave_by(error: BaseException | None, client: Client) -> None:
        for _batch in client.consume("q", "g"):
            if error is not None:
                raise error
            break

    def fail(client: Client) -> None:
        for batch in client.consume("q", "g"):
            with batch:
                raise RuntimeError("a failure counts")

    with Client(dsn) as client:
        leave_by(None, client)
        assert api.claims("q") == []
        with pytest.raises(KeyboardInterrupt):
            leave_by(KeyboardInterrupt(), client)
        assert api.claims("q") == []
        assert api.history("q", "g", "0", limit=1)[0].attempt == 0
        with pytest.raises(RuntimeError, match="counts"):
            fail(client)
    assert api.history("q", "g", "0", limit=1)[0].attempt == 1

    async def leave() -> None:
        async with AsyncClient(dsn) as twin:
            twin_batches = twin.consume("q", "other")
            async for _batch in twin_batches:
                break
            await twin_batches.aclose()

    asyncio.run(leave())
    assert api.claims("q", "other") == []
    assert values(api.pop("q", "other")) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_the_lease_of_a_slow_handler_is_kept_alive(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", 1)
    for batch in api.consume("q", "g", lease=1.0):
        (claim,) = api.claims("q")
        # The handler goes on until its lease has been renewed twice, past the end it had at first.
        renewed = until(lambda before=claim: later(api.claims("q"), before))
        until(lambda before=renewed: later(api.claims("q"), before))
        batch.ack()
        break
    assert api.lag("q", "g") == 0
    if mode == "ordered":
        assert [step.state for step in api.history("q", "g", "0")].count("claimed") > 1


def later(claims: list[Any], before: Any) -> Any:
    """Return the claim as it is now, if its lease ends later than before."""
    (claim,) = claims
    assert claim.lease_id == before.lease_id
    return claim if claim.expires_at > before.expires_at else None


@pytest.mark.parametrize("mode", MODES)
def test_process_calls_a_function_for_each_message_and_counts(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push_many("q", [(f"p{number % 3}", number) for number in range(30)])
    seen: list[Any] = []
    handled = api.process(
        "q", lambda message: seen.append(message.json()), group="g", concurrency=3, idle_timeout=0, max_messages=4
    )
    assert (handled, sorted(seen), api.lag("q", "g")) == (30, list(range(30)), 0)


@pytest.mark.parametrize("mode", MODES)
def test_process_retries_what_fails_and_finally_buries_it(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=3, backoff_initial=0)
    api.push("q", list(range(6)))
    seen: list[int] = []

    def handler(message: Any) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            raise ValueError(f"attempt {message.attempt}")

    assert api.process("q", handler, group="g", idle_timeout=0) == 5
    assert seen.count(2) == 3
    (letter,) = api.dead_letters("q")
    assert (letter.offset, letter.attempts, letter.reason) == (2, 3, "ValueError")
    assert (letter.first_error, letter.last_error) == ("ValueError: attempt 1", "ValueError: attempt 3")
    assert sorted(set(seen)) == list(range(6))
    assert [offset for offset in seen if offset != 2] == [0, 1, 3, 4, 5]


def test_partitions_that_were_done_before_a_failure_are_not_done_again(api: Any) -> None:
    api.create_group("q", "g", max_attempts=1)
    api.push_many("q", [(name, name) for name in "abc"])
    seen: list[str] = []

    def handler(message: Any) -> None:
        seen.append(message.json())
        if len(seen) == 2:
            raise ValueError("the second one")

    assert api.process("q", handler, group="g", idle_timeout=0, partitions=3) == 2
    assert sorted(seen) == ["a", "b", "c"]
    assert len(api.dead_letters("q")) == 1


def test_process_ends_when_it_is_told_to_and_gives_back_the_rest(api: Any, dsn: str) -> None:
    api.push("q", list(range(10)))
    with Client(dsn) as client:
        stop = threading.Event()
        seen: list[int] = []

        def handler(message: Any) -> None:
            seen.append(message.offset)
            if len(seen) == 4:
                stop.set()

        assert client.process("q", handler, group="g", stop=stop) == 4
    assert (api.claims("q"), api.lag("q", "g")) == ([], 6)

    async def twin() -> int:
        ending = asyncio.Event()

        async def async_handler(message: Any) -> None:
            seen.append(message.offset)
            if len(seen) == 8:
                ending.set()

        async with AsyncClient(dsn) as other:
            return await other.process("q", async_handler, group="g", stop=ending)

    assert asyncio.run(twin()) == 4
    assert (api.claims("q"), api.lag("q", "g")) == ([], 2)
    assert seen == list(range(8))


def test_process_works_on_as_many_partitions_at_once_as_it_has_workers(api: Any, dsn: str) -> None:
    api.push_many("q", [(f"p{number}", number) for number in range(3)])
    together = threading.Barrier(3, timeout=SOON)
    with Client(dsn) as client:
        assert client.process("q", lambda message: together.wait(), group="sync", concurrency=3, idle_timeout=0) == 3

    async def twin() -> int:
        gathered = asyncio.Barrier(3)

        async def handler(message: Any) -> None:
            async with asyncio.timeout(SOON):
                await gathered.wait()

        async with AsyncClient(dsn) as other:
            return await other.process("q", handler, group="async", concurrency=3, idle_timeout=0)

    assert asyncio.run(twin()) == 3


def test_a_cancelled_process_gives_back_what_is_not_done(api: Any, dsn: str) -> None:
    api.push("q", [1, 2])

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
    assert api.claims("q") == []
    assert (offsets(batch := api.pop("q", "g")), batch.messages[0].attempt) == ([0, 1], 1)


def test_what_process_cannot_do_is_raised_as_it_is(api: Any) -> None:
    with pytest.raises(InvalidInput, match="concurrency"):
        api.process("q", print, concurrency=0)
    with pytest.raises(InvalidInput, match="max_messages"):
        api.process("q", print, max_messages=0)
    assert drain(api, "q") == []


def test_a_loop_ends_when_nothing_came_for_a_while(open_api: Callable[..., Any]) -> None:
    api = open_api()
    assert list(api.consume("q", "g", idle_timeout=0.1)) == []
    assert api.process("q", print, group="g", idle_timeout=0.1) == 0
