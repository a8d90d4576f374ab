"""The tasks of one asynchronous `process`: the twin of `workers`, which has the full descriptions.

A task can be cancelled, so little has to be settled by others: only what a handler holds that does not heed its
cancellation.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from penstock.broker.messages import StoredMessage
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.claimed import and_then
from penstock.consuming.failures import logged
from penstock.consuming.handlers import AsyncHandler, AsyncHook, ends_process
from penstock.consuming.workers import LAST_MOMENT, describe
from penstock.errors import LeaseLost

log = logging.getLogger("penstock.consumer")


class AsyncWorker:
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
        self._batch.abandoned = True
        return self._batch, self._done


class AsyncWorkerPool:
    """All workers of one `process`."""

    def __init__(
        self,
        consume: Callable[[asyncio.Event], AsyncGenerator[AsyncBatch, None]],
        on_error: AsyncHook | None,
        stop: asyncio.Event,
        grace: float,
    ) -> None:
        self._consume = consume
        self._on_error = on_error
        self._stop = stop
        self._grace = grace
        self._workers: dict[asyncio.Task[None], AsyncWorker] = {}
        self._handled = 0
        self._failures: list[BaseException] = []
        self._interrupted = asyncio.Event()
        self._ends_at: float | None = None

    async def run(self, handlers: list[AsyncHandler]) -> int:
        """Work until it is told to stop or something fails; returns how many messages were handled."""
        workers = [AsyncWorker(handler) for handler in handlers]
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
        """End soon: what is under way has some time left, and then it is given back."""
        self._ends_at = time.monotonic() + self._grace
        self._stop.set()
        self._interrupted.set()
        log.info("ending: handlers under way have %g s", self._grace)

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
                await self._give_back(*taken)

    async def _work(self, worker: AsyncWorker) -> None:
        try:
            # Closed here and not when it is collected: by then the client may be closed, and nothing is given back.
            async with aclosing(self._consume(self._stop)) as batches:
                async for batch in batches:
                    if not await self._handle(worker, batch):
                        return
        except BaseException as error:
            if _is_cancelled():
                raise
            self._failures.append(error)
            self._stop.set()
        finally:
            worker.handler.close()

    async def _handle(self, worker: AsyncWorker, batch: AsyncBatch) -> bool:
        """Call the handler for each message of a batch and settle it; say whether to go on."""
        worker.begin(batch)
        for index, message in enumerate(batch.messages):
            if self._stop.is_set():
                if not worker.end():
                    return False
                worker.handled += index
                await self._give_back(batch, index)
                return True
            try:
                await worker.handler(message)
            except BaseException as error:
                if not worker.end():
                    log.warning(
                        "the handler of %s failed after its time was up", describe(message), exc_info=logged(error)
                    )
                    return False
                worker.handled += index
                if ends_process(error, _is_cancelled()):
                    await self._give_back(batch, index)
                    raise
                await self._fail(batch, message, error)
                return True
            if not worker.did():
                log.warning("the handler of %s ended after its time was up", describe(message))
                return False
        if not worker.end():
            return False
        worker.handled += len(batch.messages)
        await self._settle(batch, batch.ack())
        return True

    async def _fail(self, batch: AsyncBatch, message: StoredMessage, error: BaseException) -> None:
        """Record that a message failed. Where that cannot be done its lease runs out, which counts, too."""
        if self._on_error is not None:
            try:
                await self._on_error(message, error)
            except BaseException as failed:
                if ends_process(failed, _is_cancelled()):
                    raise
                log.error("on_error failed for %s", describe(message), exc_info=logged(failed))
        then = "and that could not be recorded: it comes again when its lease ends"
        try:
            then = and_then(await self._settle(batch, batch.nack_message(message, error)))
        finally:
            log.warning("%s failed at attempt %d; %s", describe(message), message.attempt, then, exc_info=logged(error))

    async def _give_back(self, batch: AsyncBatch, done: int) -> None:
        await self._settle(batch, batch.release(done))

    async def _settle(self, batch: AsyncBatch, settling: Awaitable[str | None]) -> str | None:
        task = asyncio.ensure_future(settling)
        try:
            # To its end also when this task is cancelled meanwhile: what is done must not be lost by that.
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.wait({task}, timeout=LAST_MOMENT)
                task.cancel()
                batch.abandoned = True
                raise
        except LeaseLost as lost:
            log.warning("%s", lost)
        except Exception:
            batch.abandoned = True
            if not self._stop.is_set():
                raise
            log.warning("%s could not be settled; its messages come again when its lease ends", batch, exc_info=True)
        return None


def _is_cancelled() -> bool:
    """Say whether this task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
