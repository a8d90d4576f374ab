"""Handlers of every kind, those that hang, and what becomes of what they raise."""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock import AsyncClient, Client, InvalidInput

from .groups import MODES, SOON

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def sound(client: Client) -> Iterator[None]:
    """After the test, state and log must agree."""
    yield
    assert [check for check in client.verify() if check.violations] == []


def process_sync(dsn: str, *arguments: Any, **options: Any) -> int:
    with Client(dsn) as client:
        return client.process(*arguments, **options)


def process_async(dsn: str, *arguments: Any, **options: Any) -> int:
    async def work() -> int:
        async with AsyncClient(dsn) as client:
            return await client.process(*arguments, **options)

    return asyncio.run(work())


@pytest.fixture(params=[process_sync, process_async], ids=["sync", "async"])
def process(request: pytest.FixtureRequest, dsn: str) -> Callable[..., int]:
    """`process` of a client of its own, of either kind."""
    return functools.partial(request.param, dsn)


class Seen:
    """Handlers of every kind that note what they were given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def function(self, message: Any) -> None:
        self.values.append(message.json())

    async def coroutine_function(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.values.append(message.json())

    def returns_a_coroutine(self, message: Any) -> Any:
        return self.coroutine_function(message)

    def kinds(self) -> dict[str, Any]:
        async def with_argument(prefix: str, message: Any) -> None:
            await self.coroutine_function(message)

        return {
            "a function": self.function,
            "a lambda": lambda message: self.values.append(message.json()),
            "a coroutine function": self.coroutine_function,
            "a partial": functools.partial(with_argument, "x"),
            "an object that is called": CallableCoroutine(self),
            "a function that returns a coroutine": self.returns_a_coroutine,
        }


class CallableCoroutine:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def __call__(self, message: Any) -> None:
        await self._seen.coroutine_function(message)


def generator(message: Any) -> Iterator[Any]:
    yield message


async def async_generator(message: Any) -> AsyncIterator[Any]:
    yield message


class CallableGenerator:
    def __call__(self, message: Any) -> Iterator[Any]:
        yield message


@pytest.mark.parametrize("kind", list(Seen().kinds()))
def test_a_handler_of_any_kind_is_run_for_each_message(client: Client, process: Callable[..., int], kind: str) -> None:
    seen = Seen()
    client.push("q", list(range(5)))
    assert process("q", seen.kinds()[kind], group="g", idle_timeout=0, max_messages=2) == 5
    assert seen.values == list(range(5))
    assert (client.lag("q", "g"), client.dead_letters("q")) == (0, [])


@pytest.mark.parametrize(
    "handler",
    [generator, async_generator, CallableGenerator(), functools.partial(generator), "a text", None],
    ids=["generator", "async generator", "object", "partial", "text", "none"],
)
def test_what_cannot_be_run_is_refused_before_anything_is_popped(
    client: Client, process: Callable[..., int], handler: Any
) -> None:
    client.push("q", 1)
    with pytest.raises(InvalidInput, match="handler"):
        process("q", handler, group="g", idle_timeout=0)
    with pytest.raises(InvalidInput, match="on_error"):
        process("q", print, group="g", on_error=handler or 7, idle_timeout=0)
    assert client.groups("q") == []


def test_a_handler_that_returns_a_generator_has_failed(client: Client, process: Callable[..., int]) -> None:
    client.create_group("q", "g", max_attempts=1)
    client.push("q", 1)
    assert process("q", lambda message: generator(message), group="g", idle_timeout=0) == 0
    (letter,) = client.dead_letters("q")
    assert letter.reason == "TypeError"


def test_functions_that_are_run_in_threads_work_at_the_same_time(client: Client, process: Callable[..., int]) -> None:
    client.push_many("q", [(f"p{number}", number) for number in range(3)])
    together = threading.Barrier(3, timeout=SOON)
    assert process("q", lambda message: together.wait() and None, group="g", concurrency=3, idle_timeout=0) == 3
    assert client.dead_letters("q") == []


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\0" * 3000], ids=["NUL", "lone surrogate", "many"])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_counts_whatever_its_text_holds(
    client: Client, process: Callable[..., int], mode: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    # What is captured of the log is sent to another process, which takes no such text either.
    caplog.set_level(logging.CRITICAL, "penstock")
    client.create_group("q", "g", mode=mode, max_attempts=2, backoff_initial=0)
    client.push("q", [1, 2])
    attempts = []

    def handler(message: Any) -> None:
        if message.offset == 0:
            attempts.append(message.attempt)
            raise ValueError(text)

    assert process("q", handler, group="g", idle_timeout=0) == 1
    assert attempts == [1, 2]
    (letter,) = client.dead_letters("q")
    assert (letter.offset, letter.attempts, letter.reason) == (0, 2, "ValueError")
    assert letter.last_error is not None
    assert "\\x00" in letter.last_error or "\\ud800" in letter.last_error


def test_an_error_whose_text_cannot_be_had_counts_too(client: Client, process: Callable[..., int]) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def handler(message: Any) -> None:
        raise Mute

    client.create_group("q", "g", max_attempts=1)
    client.push("q", 1)
    assert process("q", handler, group="g", idle_timeout=0) == 0
    (letter,) = client.dead_letters("q")
    assert letter.reason == "Mute"


def test_a_dead_letter_holds_the_end_of_the_traceback(client: Client, process: Callable[..., int]) -> None:
    def fails_here(depth: int) -> None:
        if depth:
            fails_here(depth - 1)
        raise ValueError("deep down\0")

    client.create_group("q", "g", max_attempts=1)
    client.push("q", [1, 50])
    process("q", lambda message: fails_here(message.json()), group="g", idle_timeout=0)
    short, long = client.dead_letters("q")
    for letter in (short, long):
        assert letter.traceback
        assert "in fails_here" in letter.traceback
        assert letter.traceback.rstrip().endswith("ValueError: deep down\\x00")
        assert len(letter.traceback) < 9000
    assert short.traceback
    assert short.traceback.startswith("Traceback (most recent call last)")
    assert client.redrive("q", "g") == 2


def test_on_error_is_told_before_the_message_is_failed(client: Client, process: Callable[..., int]) -> None:
    client.create_group("q", "g", max_attempts=1)
    client.push("q", [1, 2])
    told: list[Any] = []

    def note(message: Any, error: BaseException) -> None:
        told.append((message.json(), str(error), len(client.claims("q", "g")), len(client.dead_letters("q"))))
        raise RuntimeError("a hook that fails changes nothing")

    async def note_async(message: Any, error: BaseException) -> None:
        note(message, error)

    def handler(message: Any) -> None:
        raise ValueError(f"bad {message.json()}")

    process("q", handler, group="g", on_error=note, idle_timeout=0)
    assert told == [(1, "bad 1", 1, 0), (2, "bad 2", 1, 1)]
    client.push("q", 3)
    process("q", handler, group="g", on_error=note_async, idle_timeout=0)
    assert told[2:] == [(3, "bad 3", 1, 2)]


def test_on_error_of_a_loop_is_told_of_the_batch_whose_block_failed(client: Client, dsn: str) -> None:
    told: list[Any] = []

    def note(batch: Any, error: BaseException) -> None:
        told.append((len(batch), str(error), batch.settled))

    def fail() -> None:
        for batch in client.consume("q", "g", on_error=note):
            with batch:
                raise ValueError("sync")

    async def fail_async() -> None:
        async with AsyncClient(dsn) as twin:
            async for batch in twin.consume("q", "g", on_error=note):
                async with batch:
                    raise ValueError("async")

    client.create_group("q", "g", max_attempts=2, backoff_initial=0)
    client.push("q", 1)
    with pytest.raises(ValueError, match="sync"):
        fail()
    with pytest.raises(ValueError, match="async"):
        asyncio.run(fail_async())
    assert told == [(1, "sync", False), (1, "async", False)]
    (letter,) = client.dead_letters("q")
    assert letter.traceback
    assert "in fail_async" in letter.traceback


def loops_of_handlers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-handlers"]


@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_coroutine_that_is_told_of_errors_leaves_no_event_loop_behind(client: Client, prefetch: int) -> None:
    told: list[str] = []

    async def note(told_of: Any, error: BaseException) -> None:
        assert loops_of_handlers()
        told.append(str(error))

    def handler(message: Any) -> None:
        raise ValueError(f"bad {message.json()}")

    client.create_group("q", "g", max_attempts=1)
    client.push_many("q", [("a", 1), ("b", 2)])
    client.process("q", handler, group="g", on_error=note, idle_timeout=0, prefetch=prefetch)
    assert sorted(told) == ["bad 1", "bad 2"]
    assert loops_of_handlers() == []

    client.push("q", 3)
    with closing(client.consume("q", "g", on_error=note, prefetch=prefetch)) as batches:
        batch = next(batches)
        with pytest.raises(ValueError, match="bad 3"), batch:
            raise ValueError("bad 3")
    assert told[2:] == ["bad 3"]
    assert loops_of_handlers() == []


def test_failures_are_logged_with_their_traceback_and_nothing_else_is(
    client: Client, process: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    client.create_group("q", "g", max_attempts=2, backoff_initial=0)
    client.push("q", list(range(4)))
    caplog.set_level(logging.INFO, "penstock")
    process("q", lambda message: None, group="calm", idle_timeout=0)
    assert [record for record in caplog.records if record.name.startswith("penstock")] == []

    def handler(message: Any) -> None:
        if message.offset == 2:
            raise ValueError("no good")

    process("q", handler, group="g", idle_timeout=0)
    logged = [record for record in caplog.records if record.name.startswith("penstock")]
    assert [record.levelname for record in logged] == ["WARNING", "WARNING"]
    assert ["retried" in record.message for record in logged] == [True, False]
    assert "dead letter" in logged[1].message
    for record in logged:
        assert "message 2 of q/0" in record.message
        assert record.exc_info
        assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("mode", MODES)
def test_a_handler_that_hangs_is_failed_when_its_time_is_up(
    client: Client, process: Callable[..., int], mode: str
) -> None:
    client.create_group("q", "g", mode=mode, max_attempts=2, backoff_initial=0)
    client.push("q", ["before", "hangs", "after"])
    go_on = threading.Event()
    seen: list[Any] = []

    def handler(message: Any) -> None:
        if message.json() == "hangs":
            go_on.wait(SOON)
        seen.append(message.json())

    assert process("q", handler, group="g", timeout=0.2, lease=60, idle_timeout=0.3) == 2
    assert seen == ["before", "after"]
    (letter,) = client.dead_letters("q")
    assert (letter.offset, letter.attempts, letter.reason) == (1, 2, "HandlerTimeout")
    go_on.set()
    assert (client.claims("q"), client.lag("q", "g")) == ([], 0)


def test_a_coroutine_that_hangs_is_cancelled_when_its_time_is_up(client: Client, process: Callable[..., int]) -> None:
    client.create_group("q", "g", max_attempts=1)
    client.push("q", ["hangs", "does not listen", "after"])
    ended: list[Any] = []

    async def handler(message: Any) -> None:
        if message.json() == "after":
            return
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            ended.append(message.json())
            if message.json() == "hangs":
                raise
            await asyncio.sleep(1)

    assert process("q", handler, group="g", timeout=0.1, idle_timeout=0.1) == 1
    assert ended == ["hangs", "does not listen"]
    assert [letter.reason for letter in client.dead_letters("q")] == ["HandlerTimeout"] * 2
    assert client.lag("q", "g") == 0


@pytest.mark.parametrize("option", ["timeout", "grace", "give_up_after"])
def test_a_time_that_makes_no_sense_is_refused(client: Client, process: Callable[..., int], option: str) -> None:
    with pytest.raises(InvalidInput, match=option):
        process("q", print, group="g", idle_timeout=0, **{option: 0})


@pytest.fixture(params=["function", "coroutine function"])
def raising(request: pytest.FixtureRequest) -> Callable[[BaseException], Callable[[Any], Any]]:
    """Make a handler of either kind that fails at its second message."""

    def make(error: BaseException) -> Callable[[Any], Any]:
        def function(message: Any) -> None:
            if message.offset == 1:
                raise error

        async def coroutine_function(message: Any) -> None:
            function(message)

        return function if request.param == "function" else coroutine_function

    return make


@pytest.mark.parametrize("timeout", [None, SOON], ids=["", "with a timeout"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_handler_that_ends_the_program_ends_process_and_its_message_is_given_back_uncounted(
    client: Client,
    process: Callable[..., int],
    raising: Callable[[BaseException], Callable[[Any], Any]],
    error: type[BaseException],
    timeout: float | None,
) -> None:
    client.push("q", [0, 1, 2])
    ended: list[BaseException] = []

    def run() -> None:
        try:
            process("q", raising(error("enough")), group="g", timeout=timeout, idle_timeout=SOON)
        except BaseException as raised:
            ended.append(raised)

    # In a thread, so that one that hangs fails the test.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert [(type(raised), raised.args) for raised in ended] == [(error, ("enough",))]
    assert client.claims("q") == []
    batch = client.pop("q", "g")
    assert batch is not None
    assert [(message.offset, message.attempt) for message in batch] == [(1, 1), (2, 1)]
    batch.ack()


@pytest.mark.parametrize("timeout", [None, SOON], ids=["", "with a timeout"])
def test_a_cancellation_that_a_handler_meets_is_a_failure_of_its_message(
    client: Client,
    process: Callable[..., int],
    raising: Callable[[BaseException], Callable[[Any], Any]],
    caplog: pytest.LogCaptureFixture,
    timeout: float | None,
) -> None:
    client.create_group("q", "g", max_attempts=2, backoff_initial=0)
    client.push("q", [0, 1, 2])
    told: list[type[BaseException]] = []

    def note(message: Any, error: BaseException) -> None:
        told.append(type(error))
        raise asyncio.CancelledError

    handled = process(
        "q", raising(asyncio.CancelledError("theirs")), group="g", timeout=timeout, on_error=note, idle_timeout=0.1
    )
    assert handled == 2
    (letter,) = client.dead_letters("q")
    assert (letter.offset, letter.attempts, letter.reason) == (1, 2, "CancelledError")
    assert told == [asyncio.CancelledError] * 2
    assert sum("message 1 of q/0 failed" in record.message for record in caplog.records) == 2


class Evil(Exception):
    """An error that fails whatever it is asked."""

    def __bool__(self) -> bool:
        raise SystemExit

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit


class EvilStop(Evil, StopIteration):
    """The same, of a kind that ends coroutines."""


@pytest.mark.parametrize("error", [Evil, EvilStop])
def test_an_error_that_cannot_even_be_described_is_a_failure_of_its_message(
    client: Client,
    process: Callable[..., int],
    raising: Callable[[BaseException], Callable[[Any], Any]],
    error: type[BaseException],
) -> None:
    client.create_group("q", "g", max_attempts=1)
    client.push("q", [0, 1, 2])
    # Not within the assertion: one that fails shows what was called with, and this cannot be shown.
    handled = process("q", raising(error()), group="g", idle_timeout=0.1)
    assert handled == 2
    (letter,) = client.dead_letters("q")
    assert letter.offset == 1
