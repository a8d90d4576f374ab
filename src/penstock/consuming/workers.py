"""The threads of one `process`: each takes batches and calls the handler, and the thread that called `process` watches.

A thread cannot be ended. So a handler that takes too long is left behind in its thread, and its batch is settled by
another: as failed when its time is up, or given back when the program ends. Nothing is settled twice: a worker that was
left behind finds out when its handler returns, and does no more.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from penstock.broker.messages import StoredMessage
from penstock.consuming.batch import Batch
from penstock.consuming.claimed import and_then
from penstock.consuming.failures import logged
from penstock.consuming.handlers import Handler, ends_process, timed_out
from penstock.errors import LeaseLost

log = logging.getLogger("penstock.consumer")

# How long it may take, once the time for handlers is over, to give back what is in hand.
LAST_MOMENT = 1.0


class Worker:
    """One thread, and what it is at."""

    def __init__(self) -> None:
        self.handled = 0
        # Held for whatever decides who settles the batch. `_handle` uses these as they are, for each message.
        self.lock = threading.Lock()
        self.done = 0
        self.began = 0.0
        self.left_behind = False
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        """Begin to handle a batch."""
        with self.lock:
            self._batch = batch
            self.done = 0
            self.began = time.monotonic()

    def end(self) -> bool:
        """Handle no more of the batch; say whether it is ours to settle."""
        with self.lock:
            self._batch = None
            return not self.left_behind

    def late_at(self, patience: float) -> float | None:
        """Return when its handler has used up its time; None while none is called."""
        with self.lock:
            return None if self._batch is None else self.began + patience

    def take_from(self, began_before: float) -> tuple[Batch, int] | None:
        """Take its batch away, and how many messages of it are done, if its handler was called before a moment."""
        with self.lock:
            if self._batch is None or self.left_behind or self.began > began_before:
                return None
            self.left_behind = True
            # Its own loop neither renews it nor gives it back.
            self._batch.abandoned = True
            return self._batch, self.done


class WorkerPool:
    """All workers of one `process`."""

    def __init__(
        self,
        consume: Callable[[threading.Event], Iterator[Batch]],
        handler: Handler,
        on_error: Handler | None,
        stop: threading.Event,
        grace: float,
    ) -> None:
        self._consume = consume
        self._handler = handler
        self._on_error = on_error
        self._stop = stop
        self._grace = grace
        self._changed = threading.Condition()
        self._workers: set[Worker] = set()
        self._handled = 0
        self._failures: list[BaseException] = []
        self._ends_at: float | None = None

    def run(self, concurrency: int) -> int:
        """Work until it is told to stop or something fails; returns how many messages were handled."""
        for _ in range(concurrency):
            self._start(Worker())
        try:
            self._watch()
        except BaseException:
            if self._ends_at is not None:
                raise
            self.interrupt()
            self._watch()
            raise
        if self._failures:
            raise self._failures[0]
        return self._handled

    def interrupt(self) -> None:
        """End soon: what is under way has some time left, and then it is given back. Signal handlers call this."""
        self._ends_at = time.monotonic() + self._grace
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        log.info("ending: handlers under way have %g s", self._grace)

    def _start(self, worker: Worker, first: Callable[[], None] | None = None) -> None:
        with self._changed:
            self._workers.add(worker)
        threading.Thread(target=self._work, args=(worker, first), name="penstock-worker", daemon=True).start()

    def _watch(self) -> None:
        """Wait for the workers' end, and do what they cannot do while their handlers do not return."""
        # Not by joining the threads: until Python 3.13 an interrupted join takes its thread for ended.
        with self._changed:
            while self._workers:
                now = time.monotonic()
                if self._ends_at is not None and now >= self._ends_at + LAST_MOMENT:
                    log.warning("%d workers did not end in time and are left behind", len(self._workers))
                    return
                for worker in list(self._workers):
                    self._look_after(worker, now)
                self._changed.wait(self._next(now))

    def _next(self, now: float) -> float | None:
        moments = [] if self._ends_at is None else [self._ends_at, self._ends_at + LAST_MOMENT]
        if (patience := self._handler.patience) is not None:
            moments += [worker.late_at(patience) or now + patience for worker in self._workers]
        return min((max(0.0, moment - now) for moment in moments if moment > now), default=None)

    def _look_after(self, worker: Worker, now: float) -> None:
        """Settle what a worker does not, and let another take its place."""
        patience = self._handler.patience
        if self._ends_at is not None and now >= self._ends_at:
            taken, settle = worker.take_from(now), self._give_back
        elif patience is not None:
            taken, settle = worker.take_from(now - patience), self._time_out
        else:
            return
        if taken is not None:
            self._workers.discard(worker)
            self._handled += worker.handled + taken[1]
            self._start(Worker(), partial(settle, *taken))

    def _work(self, worker: Worker, first: Callable[[], None] | None) -> None:
        try:
            if first is not None:
                first()
            for batch in self._consume(self._stop):
                if not self._handle(worker, batch):
                    return
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()
        finally:
            with self._changed:
                if worker in self._workers:
                    self._workers.discard(worker)
                    self._handled += worker.handled
                self._changed.notify_all()

    def _handle(self, worker: Worker, batch: Batch) -> bool:
        """Call the handler for each message of a batch and settle it; say whether to go on."""
        worker.begin(batch)
        function, finish, timed = self._handler.function, self._handler.finish, self._handler.timeout is not None
        is_stopped, lock = self._stop.is_set, worker.lock
        for index, message in enumerate(batch.messages):
            if is_stopped():
                if not worker.end():
                    return False
                self._give_back(batch, index)
                worker.handled += index
                return True
            try:
                if (result := function(message)) is not None:
                    finish(result)
            except BaseException as error:
                if not worker.end():
                    log.warning(
                        "the handler of %s failed after its time was up", describe(message), exc_info=logged(error)
                    )
                    return False
                worker.handled += index
                if ends_process(error):
                    self._give_back(batch, index)
                    raise
                self._fail(batch, message, error)
                return True
            with lock:
                worker.done = index + 1
                if timed:
                    worker.began = time.monotonic()
                if worker.left_behind:
                    log.warning("the handler of %s ended after its time was up", describe(message))
                    return False
        if not worker.end():
            return False
        self._settle(batch, batch.ack)
        worker.handled += len(batch.messages)
        return True

    def _fail(self, batch: Batch, message: StoredMessage, error: BaseException) -> None:
        """Record that a message failed. Where that cannot be done its lease runs out, which counts, too."""
        if self._on_error is not None:
            try:
                self._on_error(message, error)
            except BaseException as failed:
                if ends_process(failed):
                    raise
                log.error("on_error failed for %s", describe(message), exc_info=logged(failed))
        then = "and that could not be recorded: it comes again when its lease ends"
        try:
            then = and_then(self._settle(batch, lambda: batch.nack_message(message, error)))
        finally:
            log.warning("%s failed at attempt %d; %s", describe(message), message.attempt, then, exc_info=logged(error))

    def _time_out(self, batch: Batch, done: int) -> None:
        if done == len(batch.messages):
            # The last handler ended in the very moment.
            self._give_back(batch, done)
            return
        log.warning("the handler of %s goes on in a thread that is left behind", describe(batch.messages[done]))
        self._fail(batch, batch.messages[done], timed_out(self._handler.timeout))

    def _give_back(self, batch: Batch, done: int) -> None:
        self._settle(batch, lambda: batch.release(done))

    def _settle(self, batch: Batch, settle: Callable[[], str | None]) -> str | None:
        try:
            return settle()
        except LeaseLost as lost:
            log.warning("%s", lost)
        except Exception:
            batch.abandoned = True
            if not self._stop.is_set():
                raise
            log.warning("%s could not be settled; its messages come again when its lease ends", batch, exc_info=True)
        return None


def describe(message: StoredMessage) -> str:
    """Name a message in a log."""
    return f"message {message.offset} of {message.queue}/{message.partition}"
