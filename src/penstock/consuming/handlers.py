"""Handlers, which users write: what kind one is, and how each kind is run.

A function is called, a coroutine function is awaited, by either client: the synchronous one has an event loop for the
handlers of a `process`, the asynchronous one runs functions in threads. What would do nothing when called, like a
generator function, is refused before anything is popped.
"""

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from penstock.errors import HandlerTimeout, InvalidInput

# How long a handler that was cancelled may take to end.
CANCELLING = 0.5
# How long it may take, once the time for handlers is over, to give back what is in hand.
LAST_MOMENT = 1.0

T = TypeVar("T")


def require_runnable(function: Any, name: str) -> None:
    """Refuse what cannot be called, or would do nothing when called."""
    if not callable(function):
        raise InvalidInput(f"{name} is {function!r}, which cannot be called; give a function")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise InvalidInput(
            f"{name} {_name(function)} is a generator function: calling it runs nothing. Remove its yield"
        )


def is_async(function: Any) -> bool:
    """Say whether calling it makes a coroutine."""
    return _is(inspect.iscoroutinefunction, function)


def require_run(function: Any, result: Any) -> None:
    """Refuse a result that shows that nothing was run."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"handler {_name(function)} returned a generator, which nobody runs")


def ends_process(error: BaseException, cancelled: bool = False) -> bool:
    """Say whether what a handler raised asks the program to end, like SystemExit; all else is the message's failure.

    So is a cancellation that the handler met by itself, for example of a task that it awaited, unless the one who calls
    the handler was `cancelled`.
    """
    # By their types: `isinstance` asks the exception itself, which may raise anything.
    kind = type(error)
    return not issubclass(kind, Exception) and (cancelled or not issubclass(kind, asyncio.CancelledError))


def timed_out(timeout: float | None) -> HandlerTimeout:
    """Return what a message fails with whose handler took too long."""
    return HandlerTimeout(f"the handler did not end within {timeout:g} s")


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return test(function) or (not inspect.isclass(function) and test(type(function).__call__))


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


class Handler:
    """A handler as the synchronous client runs it, in any thread."""

    def __init__(self, function: Callable[..., object], name: str, timeout: float | None = None) -> None:
        require_runnable(function, name)
        self.function = function
        self.timeout = timeout
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # One that is cancelled by its loop ends by itself, as a rule; a thread cannot be ended.
        self.patience = None if timeout is None else timeout + (2 * CANCELLING if is_async(function) else 0)

    def __call__(self, *arguments: Any) -> None:
        """Run it to its end."""
        result = self.function(*arguments)
        if result is not None:
            self.finish(result)

    def finish(self, result: object) -> None:
        """Run what a call of the function returned, if it is something to be run."""
        if inspect.isawaitable(result):
            running = _limited(_raised_by(result), self.timeout)
            raised = asyncio.run_coroutine_threadsafe(running, self._running_loop()).result()
            if raised is not None:
                raise raised
        else:
            require_run(self.function, result)

    def close(self) -> None:
        """Cancel what still runs in the loop, and end it; a call that comes later has another one."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread = self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CANCELLING)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run_loop, args=(self._loop,), daemon=True)
                self._thread.name = "penstock-handlers"
                self._thread.start()
            return self._loop

    @staticmethod
    def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CANCELLING))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Hook(Handler):
    """A function of the user's that is told of something, and may be a coroutine function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function, "on_error")

    @classmethod
    @contextmanager
    def of(cls, function: Callable[..., object] | None) -> Iterator[Self | None]:
        """Make one, if there is a function, and end its event loop after the body."""
        if function is None:
            yield None
        else:
            with closing(cls(function)) as hook:
                yield hook


class AsyncHandler:
    """A handler as the asynchronous client runs it; each task that calls it has its own."""

    def __init__(self, function: Callable[..., object], name: str, timeout: float | None = None) -> None:
        require_runnable(function, name)
        self._function = function
        self._timeout = timeout
        self._is_async = is_async(function)
        self._thread: _Thread | None = None

    async def __call__(self, *arguments: Any) -> None:
        """Run it to its end; cancelled, a function goes on in a thread that is left behind."""
        if self._timeout is None:
            await self._run(arguments)
            return
        raised = await _limited(_raised_by(self._run(arguments)), self._timeout)
        if raised is not None:
            raise raised

    def close(self) -> None:
        """Let the thread end, if there is one."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def _run(self, arguments: tuple[Any, ...]) -> None:
        if self._is_async:
            result = self._function(*arguments)
        else:
            thread = self._thread = self._thread or _Thread()
            try:
                result, raised = await thread.run(partial(self._function, *arguments))
            except asyncio.CancelledError:
                thread.close()
                self._thread = None
                raise
            if raised is not None:
                raise raised
        if inspect.isawaitable(result):
            await result
        elif result is not None:
            require_run(self._function, result)


class AsyncHook:
    """A function of the user's that is told of something, and may be a coroutine function."""

    def __init__(self, function: Callable[..., object]) -> None:
        require_runnable(function, "on_error")
        self._function = function

    @classmethod
    @contextmanager
    def of(cls, function: Callable[..., object] | None) -> Iterator[Self | None]:
        """Make one, if there is a function. It runs in the event loop of its caller, so there is nothing to end."""
        yield None if function is None else cls(function)

    async def __call__(self, *arguments: Any) -> None:
        """Tell it."""
        result = self._function(*arguments)
        if inspect.isawaitable(result):
            await result


class _Thread:
    """A daemon thread that does one thing after the other for a task. Unlike an executor's, none waits for its end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[_Outcome]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="penstock-handler", daemon=True).start()

    async def run(self, function: Callable[[], Any]) -> "_Outcome":
        """Call a function in the thread, with this task's context variables; return its result, or what it raised."""
        future: asyncio.Future[_Outcome] = self._loop.create_future()
        self._todo.put((partial(contextvars.copy_context().run, function), future))
        return await future

    def close(self) -> None:
        """Let it end after what it is at."""
        self._todo.put(None)

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            function, future = job
            # What it raised is no result of the future's own: a cancellation would pass for one of the waiting task.
            outcome: _Outcome
            try:
                outcome = function(), None
            except StopIteration as error:
                # It would end the coroutine that raises it again.
                outcome = None, RuntimeError(f"the handler raised {type(error).__name__}")
            except BaseException as error:
                outcome = None, error
            # A loop that is closed has nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_answer, future, outcome)


# What a function returned, or what it raised.
_Outcome = tuple[Any, BaseException | None]


def _answer(future: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


async def _raised_by(awaitable: Awaitable[object]) -> BaseException | None:
    """Await something and return what it raised.

    A task that raises SystemExit or KeyboardInterrupt ends its event loop before anybody is told.
    """
    try:
        await awaitable
    except BaseException as error:
        return error
    return None


async def _limited(awaitable: Awaitable[T], seconds: float | None) -> T:
    """Await something for at most so long, and then cancel it, whether it heeds that or not."""
    if seconds is None:
        return await awaitable
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=CANCELLING)
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=CANCELLING)
        raise timed_out(seconds)
    return await task
