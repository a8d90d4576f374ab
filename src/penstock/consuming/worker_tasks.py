"""The tasks of one asynchronous `process`: each takes batches and calls the handler.

A task can be cancelled, so little has to be settled by others: only what a handler holds that does not heed its
cancellation. `worker_threads` has the same names for a synchronous `process`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.async_handling import AsyncHandling
from penstock.consuming.handlers import LAST_MOMENT, AsyncHandler, AsyncHook
from penstock.consuming.tasks import Worker, is_cancelled

log = logging.getLogger("penstock.consumer")


class WorkerPool:
    """All workers of one `process`."""

    def __init__(
        self,
        consume: Callable[[asyncio.Event], AsyncGenerator[AsyncBatch, None]],
        handler: Callable[..., object],
        timeout: float | None,
        concurrency: int,
        on_error: AsyncHook | None,
        stop: asyncio.Event,
        grace: float,
    ) -> None:
        self._consume = consume
        self._handlers = [AsyncHandler(handler, "handler", timeout) for _ in range(concurrency)]
        self._handling = AsyncHandling(on_error, stop)
        self._stop = stop
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._workers: dict[asyncio.Task[None], Worker] = {}
        self._failures: list[BaseException] = []
        self._interrupted = asyncio.Event()
        self._ends_at: float | None = None

    async def run(self) -> int:
        """Work until it is told to stop or something fails; returns how many messages were handled."""
        workers = [Worker(handler) for handler in self._handlers]
        self._workers = {asyncio.create_task(self._work(worker)): worker for worker in workers}
        interrupted = asyncio.create_task(self._interrupted.wait())
        try:
            await self._watch(interrupted)
        except BaseException:
            # Cancelled: so are the handlers, at once.
            self._stop.set()
            await self._end_now()
            raise
        finally:
            interrupted.cancel()
        if self._failures:
            raise self._failures[0]
        return sum(worker.handled for worker in workers)

    def interrupt(self) -> None:
        """End soon: what is under way has some time left, and then it is given back. Signal handlers call this."""
        self._loop.call_soon_threadsafe(self._end_soon)

    def _end_soon(self) -> None:
        self._ends_at = time.monotonic() + self._grace
        self._stop.set()
        self._interrupted.set()
        log.info("ending: handlers under way have %g s", self._grace)

    @property
    def time_left(self) -> float:
        """How many seconds are left to put things in order after the end of the workers."""
        left = self._grace if self._ends_at is None else self._ends_at - time.monotonic()
        return max(0.0, left) + LAST_MOMENT

    async def _watch(self, interrupted: "asyncio.Task[bool]") -> None:
        """Wait for the workers' end, and end them when their time is up."""
        while pending := [task for task in self._workers if not task.done()]:
            left = None if self._ends_at is None else self._ends_at - time.monotonic()
            if left is not None and left <= 0:
                await self._end_now()
                return
            waited = pending if interrupted.done() else [*pending, interrupted]
            await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _end_now(self) -> None:
        """Cancel the workers, who give back what they have, and do it for those who do not heed that."""
        pending = {task for task in self._workers if not task.done()}
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=LAST_MOMENT)
        for task in pending:
            if (taken := self._workers[task].take_from()) is not None:
                log.warning("a handler of %s does not end and is left behind", taken[0])
                self._workers[task].handled += taken[1]
                giving_back = asyncio.ensure_future(self._handling.give_back(*taken))
                await asyncio.wait({giving_back}, timeout=LAST_MOMENT)
                giving_back.cancel()

    async def _work(self, worker: Worker) -> None:
        try:
            # Closed here and not when it is collected: by then the client may be closed, and nothing is given back.
            async with aclosing(self._consume(self._stop)) as batches:
                async for batch in batches:
                    if not await self._handling.handle(worker, batch):
                        return
        except BaseException as error:
            if is_cancelled():
                raise
            self._failures.append(error)
            self._stop.set()
        finally:
            worker.handler.close()
