# Generated from async_handling.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""What a worker does with a batch: it calls the handler for each message, and settles the batch by what came of it."""

import logging
import threading
import time
from collections.abc import Callable

from penstock.broker.messages import StoredMessage
from penstock.consuming.batch import Batch
from penstock.consuming.claimed import and_then
from penstock.consuming.failures import logged, name_of
from penstock.consuming.handlers import Hook, ends_process
from penstock.consuming.threads import Worker, is_cancelled
from penstock.errors import LeaseLost

log = logging.getLogger("penstock.consumer")


class Handling:
    """Handles and settles batches, for all workers of one `process`."""

    def __init__(self, on_error: Hook | None, stop: threading.Event) -> None:
        self._on_error = on_error
        self._stop = stop

    def handle(self, worker: Worker, batch: Batch) -> bool:
        """Call the handler for each message of a batch and settle it; say whether to go on."""
        worker.begin(batch)
        is_stopped = self._stop.is_set
        # Called for each message: what can be done once is done here.
        handler, lock, clock = worker.handler, worker.lock, time.monotonic
        function, finish, timed = handler.function, handler.finish, handler.timeout is not None
        for index, message in enumerate(batch.messages):
            if is_stopped():
                if not worker.end():
                    return False
                worker.handled += index
                self.give_back(batch, index)
                return True
            try:
                if (result := function(message)) is not None:
                    finish(result)
            except BaseException as error:
                if not worker.end():
                    log.warning(
                        "the handler of %s failed after its time was up", name_of(message), exc_info=logged(error)
                    )
                    return False
                worker.handled += index
                if ends_process(error, is_cancelled()):
                    self.give_back(batch, index)
                    raise
                self.fail(batch, message, error)
                return True
            with lock:
                worker.done = index + 1
                if timed:
                    worker.began = clock()
                left_behind = worker.left_behind
            if left_behind:
                log.warning("the handler of %s ended after its time was up", name_of(message))
                return False
        if not worker.end():
            return False
        worker.handled += len(batch.messages)
        self._settle(batch, batch.ack_or_defer)
        return True

    def fail(self, batch: Batch, message: StoredMessage, error: BaseException) -> None:
        """Record that a message failed. Where that cannot be done its lease runs out, which counts, too."""
        if self._on_error is not None:
            try:
                self._on_error(message, error)
            except BaseException as failed:
                if ends_process(failed, is_cancelled()):
                    raise
                log.error("on_error failed for %s", name_of(message), exc_info=logged(failed))
        then = "and that could not be recorded: it comes again when its lease ends"
        try:
            then = and_then(self._settle(batch, lambda: batch.nack_message(message, error)))
        finally:
            log.warning("%s failed at attempt %d; %s", name_of(message), message.attempt, then, exc_info=logged(error))

    def give_back(self, batch: Batch, done: int) -> None:
        """Give back a batch but for the first messages, which are done."""
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
