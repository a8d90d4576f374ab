"""What a pop returns: claimed messages, and how to settle them.

A batch is settled once: acknowledged, failed or given back. As a context manager it does so by itself: ack on a clean
exit, nack on an exception, and back without counting an attempt when the program itself is being stopped.
"""

import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from penstock.broker.arguments import Seconds
from penstock.broker.messages import StoredMessage
from penstock.consuming.outages import Outage
from penstock.errors import InvalidInput, LeaseLost, PenstockError
from penstock.postgres.statements import group_calls
from penstock.postgres.statements.calls import Call
from penstock.postgres.statements.group_calls import Claim

log = logging.getLogger("penstock.consumer")

Run = Callable[[Call[Any]], Any]
AsyncRun = Callable[[Call[Any]], Awaitable[Any]]
# Sleeps, and says whether the consumer has been told to stop.
Sleep = Callable[[float], bool]
AsyncSleep = Callable[[float], Awaitable[bool]]
OnError = Callable[[Any, BaseException], object]

# What is kept of an error, and of its traceback: of that the end, where it happened.
_ERROR_CHARACTERS = 2000
_TRACEBACK_CHARACTERS = 8000


class _Claims:
    """The claims of a batch, and what was done with them: the part that both kinds of batch share."""

    def __init__(self, queue: str, group: str, claims: list[Claim], asked_at: float | None = None) -> None:
        self.queue = queue
        self.group = group
        self.claims = claims
        self.messages: list[StoredMessage] = [message for claim in claims for message in claim.messages]
        self.settled = claims[0].lease_id is None
        self._acked: set[tuple[int, int]] = set()
        self._entered_by: int | None = None
        # Nobody renews it or gives it back any more: its lease runs out, which counts as an attempt.
        self.abandoned = False
        # What the server's clock has and our monotonic one has not. The claims were made after they were asked for, so
        # a lease may seem to end too early by as much, and never too late.
        self._ahead = _server_time(claims) - (time.monotonic() if asked_at is None else asked_at)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __repr__(self) -> str:
        places = ", ".join(f"{claim.partition}[{claim.start}:{claim.stop}]" for claim in self.claims)
        return f"<{type(self).__name__} of {self.queue!r} for {self.group!r}: {places}>"

    @property
    def partition(self) -> str:
        """The partition the messages are of, where it is one."""
        return self._only().partition

    @property
    def acknowledged(self) -> set[tuple[int, int]]:
        """The messages of shared claims that are done, by partition id and offset."""
        return self._acked

    def reopen(self, acknowledged: Set[tuple[int, int]]) -> None:
        """Take note that the transaction which settled it was rolled back; so much had been done before."""
        self.settled = False
        self._acked &= acknowledged

    @property
    def lease_left(self) -> float:
        """How many seconds its lease lasts, whatever time this machine's clock shows."""
        until = min((claim.lease_until for claim in self.claims if claim.lease_until), default=None)
        return 60.0 if until is None else until.timestamp() - self._ahead - time.monotonic()

    @property
    def lease_seconds(self) -> float:
        """How many seconds it was leased for when it was popped."""
        return min((claim.lease_seconds for claim in self.claims if claim.lease_seconds is not None), default=60.0)

    def _enter(self) -> None:
        self._entered_by = os.getpid()

    def _pause(self, outage: Outage, error: PenstockError) -> float:
        """Return how long to wait before it is settled again; raises LeaseLost when that makes no sense any more."""
        pause = outage.pause(error)
        left = self.lease_left
        if left <= 0:
            raise LeaseLost(
                f"{self} could not be settled before its lease ended, so its messages are delivered again: {error}"
            ) from error
        return min(pause, left)

    def _is_left_alone(self) -> bool:
        """Say that there is nothing to settle: it is done, or this is a child of the process that has the batch."""
        return self.settled or self._entered_by != os.getpid()

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Settle in the body: what failed for another reason than a lost lease may be tried again."""
        self._open()
        try:
            yield
        except LeaseLost:
            self.settled = True
            raise
        self.settled = True

    def _ack(self, up_to: int | None) -> Call[None]:
        self._open()
        if up_to is not None:
            claim = self._only()
            if not claim.start <= up_to <= claim.stop:
                raise InvalidInput(f"up_to is {up_to} but must be from {claim.start} to {claim.stop}, as claimed")
        return group_calls.ack(self.claims, up_to)

    def _ack_message(self, message: StoredMessage) -> Call[None]:
        self._open()
        claim = self._claim_of(message)
        if not claim.shared:
            raise InvalidInput("an ordered group is acknowledged in order: use ack(up_to=message.offset + 1)")
        return group_calls.ack_message(claim, message.offset)

    def _done_to(self, up_to: int) -> None:
        """Take note of what is acknowledged; with nothing left, the batch is settled."""
        if self.claims[0].shared:
            self._done(message for message in self.messages if message.offset < up_to)
        else:
            self.settled = up_to == self.claims[0].stop

    def _done(self, messages: Iterable[StoredMessage]) -> None:
        self._acked.update((message.partition_id, message.offset) for message in messages)
        self.settled = len(self._acked) == len(self.messages)

    def _nack(
        self, offset: int | None, reason: str | None, delay: Seconds | None, error: str | BaseException | None
    ) -> list[Call[str]]:
        if offset is not None:
            self._only()
        if isinstance(error, BaseException):
            said: str | None = describe(error)
            trace, reason = trace_of(error), reason or type(error).__name__
        else:
            said, trace = reason if error is None else error, None
        return [group_calls.nack(claim, offset, said, reason, delay, trace) for claim in self.claims]

    def _nack_message(self, message: StoredMessage, error: BaseException) -> list[Call[Any]]:
        """Fail at one message: earlier ones are done, later claims are given back."""
        failed = self._claim_of(message)
        place = self.claims.index(failed)
        done = [group_calls.ack(self.claims[:place], None)] if place else []
        return [
            *done,
            group_calls.nack(failed, message.offset, describe(error), type(error).__name__, None, trace_of(error)),
            *self._release(self.claims[place + 1 :]),
        ]

    def _renew(self, lease: Seconds | None) -> Call[None]:
        self._open()
        return group_calls.renew(self.claims, lease)

    def _release(self, claims: list[Claim]) -> list[Call[bool]]:
        return [group_calls.release(claim.group_id, claim.partition_id, claim.lease_id) for claim in claims]

    def _release_after(self, done: int) -> list[Call[Any]]:
        """Acknowledge the first messages, and give back the rest."""
        if not 0 <= done <= len(self.messages):
            raise InvalidInput(f"done is {done} but must be from 0 to {len(self.messages)}, as many as the batch has")
        whole = 0
        while whole < len(self.claims) and len(self.claims[whole].messages) <= done:
            done -= len(self.claims[whole].messages)
            whole += 1
        calls: list[Call[Any]] = [group_calls.ack(self.claims[:whole], None)] if whole else []
        if done:
            begun = self.claims[whole]
            calls.append(group_calls.ack([begun], begun.messages[done].offset))
        return [*calls, *self._release(self.claims[whole:])]

    def _open(self) -> None:
        if self.settled:
            raise PenstockError("this batch is settled already")

    def _only(self) -> Claim:
        if len(self.claims) != 1:
            raise InvalidInput(f"this batch has {len(self.claims)} partitions; pop one at a time to settle by offset")
        return self.claims[0]

    def _claim_of(self, message: StoredMessage) -> Claim:
        for claim in self.claims:
            if claim.partition_id == message.partition_id and claim.start <= message.offset < claim.stop:
                return claim
        raise InvalidInput(f"message {message.offset} of {message.partition!r} is not in this batch")


class Batch(_Claims):
    """Claimed messages of one or more partitions, in order within each."""

    def __init__(self, queue: str, group: str, claims: list[Claim], run: Run, asked_at: float | None = None) -> None:
        super().__init__(queue, group, claims, asked_at)
        self._run = run
        self._sleep: Sleep | None = None
        self._on_error: OnError | None = None

    def go_on(self, sleep: Sleep, on_error: OnError | None) -> None:
        """Settle it through outages from now on, for as long as its lease lasts, as a loop does that must not end."""
        self._sleep = sleep
        self._on_error = on_error

    def _patiently(self, call: Call[Any]) -> Any:
        """Run a call; where the batch is one of a loop, through an outage."""
        if self._sleep is None:
            return self._run(call)
        outage, stopped = Outage(f"settle {self}"), False
        while True:
            try:
                done = self._run(call)
            except LeaseLost:
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
        self.ack_through(self._patiently, up_to)

    def ack_through(self, run: Run, up_to: int | None = None) -> None:
        """Acknowledge through something else, a transaction: what it rolls back it calls unsettled again."""
        call = self._ack(up_to)
        if up_to is None:
            with self.settling():
                run(call)
        else:
            run(call)
            self._done_to(up_to)

    def ack_message(self, message: StoredMessage) -> None:
        """Acknowledge one message of a shared group."""
        self._patiently(self._ack_message(message))
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
        self._run(self._renew(lease))

    def release(self, done: int = 0) -> None:
        """Give the messages back: they are delivered again at once, and no attempt is counted.

        The first `done` of them are acknowledged instead.
        """
        self._settle(self._release_after(done))

    def _settle(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Run one call per claim; a lease that is lost does not keep the others from theirs."""
        results: list[Any] = []
        lost: LeaseLost | None = None
        with self.settling():
            for call in calls:
                try:
                    results.append(self._patiently(call))
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
                self.ack()
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


class AsyncBatch(_Claims):
    """The asynchronous twin of `Batch`."""

    def __init__(
        self, queue: str, group: str, claims: list[Claim], run: AsyncRun, asked_at: float | None = None
    ) -> None:
        super().__init__(queue, group, claims, asked_at)
        self._run = run
        self._sleep: AsyncSleep | None = None
        self._on_error: Callable[[Any, BaseException], Awaitable[object]] | None = None

    def go_on(self, sleep: AsyncSleep, on_error: Callable[[Any, BaseException], Awaitable[object]] | None) -> None:
        """Settle it through outages from now on, for as long as its lease lasts."""
        self._sleep = sleep
        self._on_error = on_error

    async def _patiently(self, call: Call[Any]) -> Any:
        """Run a call; where the batch is one of a loop, through an outage."""
        if self._sleep is None:
            return await self._run(call)
        outage, stopped = Outage(f"settle {self}"), False
        while True:
            try:
                done = await self._run(call)
            except LeaseLost:
                raise
            except PenstockError as error:
                if stopped:
                    raise
                stopped = await self._sleep(self._pause(outage, error))
            else:
                outage.over()
                return done

    async def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset."""
        await self.ack_through(self._patiently, up_to)

    async def ack_through(self, run: AsyncRun, up_to: int | None = None) -> None:
        """Acknowledge through something else, a transaction."""
        call = self._ack(up_to)
        if up_to is None:
            with self.settling():
                await run(call)
        else:
            await run(call)
            self._done_to(up_to)

    async def ack_message(self, message: StoredMessage) -> None:
        """Acknowledge one message of a shared group."""
        await self._patiently(self._ack_message(message))
        self._done([message])

    async def nack(
        self,
        offset: int | None = None,
        *,
        reason: str | None = None,
        delay: Seconds | None = None,
        error: str | BaseException | None = None,
    ) -> list[str]:
        """Say that it failed, at `offset` if that is known."""
        return await self._settle(self._nack(offset, reason, delay, error))

    async def nack_message(self, message: StoredMessage, error: BaseException) -> str:
        """Say that one message failed."""
        return outcome_of(await self._settle(self._nack_message(message, error)))

    async def renew(self, lease: Seconds | None = None) -> None:
        """Extend the lease from now."""
        await self._run(self._renew(lease))

    async def release(self, done: int = 0) -> None:
        """Give the messages back, but for the first `done` of them, which are acknowledged."""
        await self._settle(self._release_after(done))

    async def _settle(self, calls: Sequence[Call[Any]]) -> list[Any]:
        results: list[Any] = []
        lost: LeaseLost | None = None
        with self.settling():
            for call in calls:
                try:
                    results.append(await self._patiently(call))
                except LeaseLost as error:
                    lost = error
            if lost is not None:
                raise lost
        return results

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_left_alone():
            return
        try:
            if error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self._call_hook(error)
                outcomes = await self.nack(error=error)
                log.warning("%s failed; %s", self, and_then(outcomes[0]), exc_info=logged(error))
            else:
                await self.release()
        except LeaseLost as lost:
            if error is None and self._sleep is None:
                raise
            log.warning("%s", lost)
        except BaseException:
            self.abandoned = error is not None
            raise

    async def _call_hook(self, error: BaseException) -> None:
        if self._on_error is not None:
            try:
                await self._on_error(self, error)
            except Exception:
                log.exception("on_error failed for %s", self)


def _server_time(claims: list[Claim]) -> float:
    """Return the server's time when it handed claims out; for those without a lease it does not matter."""
    first = claims[0]
    if first.lease_until is None or first.lease_seconds is None:
        return 0.0
    return first.lease_until.timestamp() - first.lease_seconds


def describe(error: BaseException) -> str:
    """Return what an operator should read of an error; what it raises itself when it is asked does no harm."""
    try:
        said = str(error)
    except BaseException as second:
        said = f"(its text cannot be had: {type(second).__name__})"
    return f"{type(error).__name__}: {said}"[:_ERROR_CHARACTERS]


def trace_of(error: BaseException) -> str | None:
    """Return the traceback of an error, or the end of a long one; None for an error that was never raised."""
    trace = _traceback(error)
    if trace is None:
        return None
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:
        lines = "".join(traceback.format_tb(trace))
    return lines if len(lines) <= _TRACEBACK_CHARACTERS else f"…\n{lines[-_TRACEBACK_CHARACTERS:]}"


def logged(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error as a log takes it; one that cannot be written is replaced by what can be said of it."""
    trace = _traceback(error)
    try:
        traceback.format_exception(type(error), error, trace)
    except BaseException:
        return RuntimeError, RuntimeError(describe(error)), trace
    return type(error), error, trace


def _traceback(error: BaseException) -> TracebackType | None:
    # Not by asking the error, which may have a `__getattribute__` of its own.
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def outcome_of(results: list[Any]) -> str:
    """Return what became of the message that failed, of all that was settled with it."""
    return next((result for result in results if isinstance(result, str)), "retry")


def and_then(outcome: str | None) -> str:
    """Say what becomes of what failed."""
    return "it is a dead letter now" if outcome == "dead letter" else "it will be retried"
