# Generated from async_batch.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""What a pop returns: claimed messages, and how to settle them.

A batch is settled once: acknowledged, failed or given back. As a context manager it does so by itself: ack on a clean
exit, nack on an exception, and back without counting an attempt when the program itself is being stopped.
"""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from penstock.broker.arguments import Seconds
from penstock.broker.claims import Claim
from penstock.broker.messages import StoredMessage
from penstock.broker.operations.operation import Operation
from penstock.consuming.claimed import ClaimedMessages, and_then, outcome_of
from penstock.consuming.failures import logged
from penstock.consuming.outages import Outage
from penstock.errors import LeaseLost, PenstockError

log = logging.getLogger("penstock.consumer")

# Runs an operation, as the transport does that the batch was popped through; a second argument limits how long it
# waits for a connection.
Run = Callable[..., Any]
# Sleeps, and says whether the consumer has been told to stop.
Sleep = Callable[[float], bool]
OnError = Callable[[Any, BaseException], object]


class Batch(ClaimedMessages):
    """Claimed messages of one or more partitions, in order within each."""

    def __init__(self, queue: str, group: str, claims: list[Claim], run: Run, asked_at: float | None = None) -> None:
        super().__init__(queue, group, claims, asked_at)
        self._run = run
        self._sleep: Sleep | None = None
        self._on_error: OnError | None = None
        self._give_up_after: float | None = None

    def settle_through_outages(
        self, sleep: Sleep, on_error: OnError | None, give_up_after: float | None = None
    ) -> None:
        """Settle it through outages from now on, as a loop does that must not end.

        It is tried for as long as its lease lasts, but not longer than `give_up_after`.
        """
        self._sleep = sleep
        self._on_error = on_error
        self._give_up_after = give_up_after

    def _run_checked(self, operation: Operation[Any], within: float | None = None) -> Any:
        limits = () if within is None else (within,)
        return self._checked(operation, self._run(operation, *limits))

    def _run_through_outages(self, operation: Operation[Any]) -> Any:
        """Run an operation; where the batch is one of a loop, through an outage."""
        if self._sleep is None:
            return self._run_checked(operation)
        outage, stopped = Outage(f"settle {self}", self._give_up_after), False
        while True:
            try:
                done = self._run_checked(operation, outage.left())
            except LeaseLost as lost:
                if outage.begun:
                    lost.add_note("An attempt before, whose answer did not arrive, may have settled it")
                raise
            except PenstockError as error:
                if stopped:
                    raise
                stopped = self._sleep(self._pause(outage, error))
            else:
                outage.over()
                return done

    def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset; raises LeaseLost when the lease is not live."""
        self._acknowledge(self._run_through_outages, self._ack(up_to), up_to)

    def ack_or_defer(self) -> None:
        """Acknowledge everything, together with the next pop where the loop that this batch is of does that."""
        if not self._deferred():
            self.ack()

    def ack_through(self, run: Run, up_to: int | None = None) -> None:
        """Acknowledge through something else, a transaction: what it rolls back it calls unsettled again."""

        def run_checked(operation: Operation[Any]) -> Any:
            return self._checked(operation, run(operation))

        self._acknowledge(run_checked, self._ack(up_to, durable=True), up_to)

    def _acknowledge(self, run: Run, operation: Operation[Any], up_to: int | None) -> None:
        if up_to is None:
            with self.settling():
                run(operation)
        else:
            run(operation)
            self._done_to(up_to)

    def ack_message(self, message: StoredMessage) -> None:
        """Acknowledge one message of a shared group."""
        self._run_through_outages(self._ack_message(message))
        self._done([message])

    def nack(
        self,
        offset: int | None = None,
        *,
        reason: str | None = None,
        delay: Seconds | None = None,
        error: str | BaseException | None = None,
    ) -> list[str]:
        """Say that it failed, at `offset` if that is known: all before it is done.

        It is delivered again after the backoff, or `delay` seconds; the message that exhausts its attempts becomes a
        dead letter. `error` is a text or an exception, whose traceback the dead letter keeps. Returns 'retry' or 'dead
        letter' for each partition.
        """
        return self._settle(self._nack(offset, reason, delay, error))

    def nack_message(self, message: StoredMessage, error: BaseException) -> str:
        """Say that one message failed: those before it are done, and later partitions are given back.

        Returns 'retry' or 'dead letter'.
        """
        return outcome_of(self._settle(self._nack_message(message, error)))

    def renew(self, lease: Seconds | None = None) -> None:
        """Extend the lease from now, by `lease` seconds or the group's lease time."""
        self._run_checked(self._renew(lease))

    def release(self, done: int = 0) -> None:
        """Give the messages back: they are delivered again at once, and no attempt is counted.

        The first `done` of them are acknowledged instead.
        """
        self._settle(self._release_after(done))

    def _settle(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Run one operation after the other; a lease that is lost does not keep the others from theirs."""
        results: list[Any] = []
        lost: LeaseLost | None = None
        with self.settling():
            for operation in operations:
                try:
                    results.append(self._run_through_outages(operation))
                except LeaseLost as error:
                    lost = error
            if lost is not None:
                raise lost
        return results

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_left_alone():
            return
        try:
            if error is None:
                self.ack_or_defer()
            elif isinstance(error, Exception):
                self._call_hook(error)
                outcomes = self.nack(error=error)
                log.warning("%s failed; %s", self, and_then(outcomes[0]), exc_info=logged(error))
            else:
                # The program's end is nobody's failure.
                self.release()
        except LeaseLost as lost:
            # It must not hide the error, nor end a loop that goes on through everything else.
            if error is None and self._sleep is None:
                raise
            log.warning("%s", lost)
        except BaseException:
            # A failure that could not be recorded must count, which giving back would not.
            self.abandoned = error is not None
            raise

    def _call_hook(self, error: BaseException) -> None:
        if self._on_error is not None:
            try:
                self._on_error(self, error)
            except Exception:
                log.exception("on_error failed for %s", self)
