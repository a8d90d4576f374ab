"""What an asynchronous consumer does with tasks and timers. `threads` has the same names for a synchronous one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from penstock.broker.arguments import Seconds
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.async_renewing import AsyncLeased, first_pause, renew
from penstock.consuming.handlers import LAST_MOMENT, AsyncHandler
from penstock.errors import PenstockError

T = TypeVar("T")


async def pause(stop: asyncio.Event | None, seconds: float) -> bool:
    """Sleep until somebody says stop, or for so many seconds; say whether to stop."""
    if stop is None:
        await asyncio.sleep(seconds)
        return False
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


async def finished(awaitable: Awaitable[T]) -> T:
    """Await something to its end also when this task is cancelled meanwhile: what is done must not be lost by that."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=LAST_MOMENT)
        task.cancel()
        raise


async def finished_or_undone(awaitable: Awaitable[T], undo: Callable[[T], Awaitable[None]]) -> T:
    """Await something to its end also when this task is cancelled meanwhile, and then undo what came of it."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # It goes on by itself where that takes longer.
        await asyncio.wait({asyncio.ensure_future(_undone(task, undo))}, timeout=LAST_MOMENT)
        raise


async def _undone(task: "asyncio.Task[T] | asyncio.Future[T]", undo: Callable[[T], Awaitable[None]]) -> None:
    with suppress(PenstockError):
        await undo(await task)


def is_cancelled() -> bool:
    """Say whether this task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Signal:
    """Wakes whoever waits, from any thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def give(self) -> None:
        """Wake."""
        if threading.get_ident() == self._thread:
            self._event.set()
        else:
            # A loop that is closed has nobody left to wake.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float, stop: asyncio.Event | None) -> None:
        """Wait for the signal, or for so many seconds, or for whatever says stop."""
        timeout = None if seconds == float("inf") else max(0.0, seconds)
        if stop is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._event.wait()
        else:
            either = [asyncio.ensure_future(event.wait()) for event in (self._event, stop)]
            try:
                await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in either:
                    task.cancel()
                await asyncio.gather(*either, return_exceptions=True)
        self._event.clear()


class Renewals:
    """Renews batches while they are in work: a task for each."""

    @contextmanager
    def keep(self, batch: AsyncLeased, lease: Seconds | None) -> Iterator[None]:
        """Renew a batch until the body is done."""
        task = asyncio.create_task(self._work(batch, lease))
        try:
            yield
        finally:
            task.cancel()

    async def _work(self, batch: AsyncLeased, lease: Seconds | None) -> None:
        wait: float | None = first_pause(batch, lease)
        while wait is not None and not batch.settled:
            await asyncio.sleep(wait)
            wait = await renew(batch, lease)


class Background:
    """Work that is done beside the consumers: a task."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(work(), name=name)

    @property
    def runs_here(self) -> bool:
        """Whether this is the task that does it."""
        return asyncio.current_task() is self._task

    async def join(self, within: float | None = None) -> bool:
        """Wait for its end, for so many seconds; say whether it came. It goes on when whoever waits is cancelled."""
        if self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self._task}, timeout=within)
            return self._task.done()
        return True

    def cancel(self) -> None:
        """Let it end where it is."""
        self._task.cancel()


class Sweeper:
    """Sweeps, or reports, beside the consumers of a client: a task, which ends by itself when nobody consumes."""

    def __init__(
        self, due_in: Callable[[], float | None], sweep: Callable[[], Awaitable[bool]], name: str = "penstock-sweeper"
    ) -> None:
        # `due_in` says in how many seconds to sweep, None for never; `sweep` whether to go on.
        self._due_in = due_in
        self._name = name
        self._sweep = sweep
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._task: asyncio.Task[None] | None = None
        self._signal: Signal | None = None
        self._closed = False

    def ensure(self) -> None:
        """See to it that somebody sweeps."""
        task = self._task
        if self._closed or (task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()):
            return
        self._signal = Signal()
        self._task = asyncio.create_task(self._work(self._signal), name=self._name)

    def wake(self) -> None:
        """Let it see that a sweep is due earlier."""
        if self._signal is not None:
            self._signal.give()

    async def close(self) -> None:
        """Sweep no more."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            self.wake()
            await asyncio.wait({task}, timeout=LAST_MOMENT)
            task.cancel()

    async def _work(self, signal: Signal) -> None:
        while not self._closed and (seconds := self._due_in()) is not None:
            if seconds > 0:
                await signal.wait(seconds, None)
            elif not await self._sweep():
                return


class Worker:
    """One task, and what it is at."""

    def __init__(self, handler: AsyncHandler) -> None:
        self.handler = handler
        self.handled = 0
        self._batch: AsyncBatch | None = None
        self._done = 0
        self._left_behind = False

    def begin(self, batch: AsyncBatch) -> None:
        """Begin to handle a batch."""
        self._batch = batch
        self._done = 0

    def did(self) -> bool:
        """Take note that a message is handled; say whether to go on."""
        self._done += 1
        return not self._left_behind

    def end(self) -> bool:
        """Handle no more of the batch; say whether it is ours to settle."""
        self._batch = None
        return not self._left_behind

    def take_from(self) -> tuple[AsyncBatch, int] | None:
        """Take its batch away, and how many messages of it are done, if its handler is being called."""
        if self._batch is None or self._left_behind:
            return None
        self._left_behind = True
        # Its own loop neither renews it nor gives it back.
        self._batch.abandoned = True
        return self._batch, self._done
