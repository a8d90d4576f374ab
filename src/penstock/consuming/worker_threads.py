"""The threads of one `process`: each takes batches and calls the handler, and the thread that called `process` watches.

A thread cannot be ended. So a handler that takes too long is left behind in its thread, and its batch is settled by
another: as failed when its time is up, or given back when the program ends. Nothing is settled twice: a worker that was
left behind finds out when its handler returns, and does no more. `worker_tasks` has the same names for an asynchronous
`process`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from penstock.consuming.batch import Batch
from penstock.consuming.failures import name_of
from penstock.consuming.handlers import LAST_MOMENT, Handler, Hook, timed_out
from penstock.consuming.handling import Handling
from penstock.consuming.threads import Worker

log = logging.getLogger("penstock.consumer")

# Seconds after which the thread that watches wakes at the latest: signals that come just before it waits, or to another
# thread, do not wake it.
_LOOK_EVERY = 0.5


class WorkerPool:
    """All workers of one `process`."""

    def __init__(
        self,
        consume: Callable[[threading.Event], Iterator[Batch]],
        handler: Callable[..., object],
        timeout: float | None,
        concurrency: int,
        on_error: Hook | None,
        stop: threading.Event,
        grace: float,
    ) -> None:
        self._consume = consume
        self._handler = Handler(handler, "handler", timeout)
        self._concurrency = concurrency
        self._handling = Handling(on_error, stop)
        self._stop = stop
        self._grace = grace
        self._changed = threading.Condition()
        self._workers: set[Worker] = set()
        self._handled = 0
        self._failures: list[BaseException] = []
        self._ends_at: float | None = None

    def run(self) -> int:
        """Work until it is told to stop or something fails; returns how many messages were handled."""
        with closing(self._handler):
            for _ in range(self._concurrency):
                self._start(Worker(self._handler))
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

    @property
    def time_left(self) -> float:
        """How many seconds are left to put things in order after the end of the workers."""
        left = self._grace if self._ends_at is None else self._ends_at - time.monotonic()
        return max(0.0, left) + LAST_MOMENT

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

    def _next(self, now: float) -> float:
        moments = [now + _LOOK_EVERY]
        if self._ends_at is not None:
            moments += [self._ends_at, self._ends_at + LAST_MOMENT]
        if (patience := self._handler.patience) is not None:
            moments += [worker.late_at(patience) or now + patience for worker in self._workers]
        return min(moment for moment in moments if moment > now) - now

    def _look_after(self, worker: Worker, now: float) -> None:
        """Settle what a worker does not, and let another take its place."""
        patience = self._handler.patience
        if self._ends_at is not None and now >= self._ends_at:
            taken, settle = worker.take_from(now), self._handling.give_back
        elif patience is not None:
            taken, settle = worker.take_from(now - patience), self._time_out
        else:
            return
        if taken is not None:
            self._workers.discard(worker)
            self._handled += worker.handled + taken[1]
            self._start(Worker(self._handler), partial(settle, *taken))

    def _work(self, worker: Worker, first: Callable[[], None] | None) -> None:
        try:
            if first is not None:
                first()
            for batch in self._consume(self._stop):
                if not self._handling.handle(worker, batch):
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

    def _time_out(self, batch: Batch, done: int) -> None:
        if done == len(batch.messages):
            # The last handler ended in the very moment.
            self._handling.give_back(batch, done)
            return
        log.warning("the handler of %s goes on in a thread that is left behind", name_of(batch.messages[done]))
        self._handling.fail(batch, batch.messages[done], timed_out(self._handler.timeout))
