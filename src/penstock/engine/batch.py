"""What a pop returns: claimed messages, and how to settle them.

A batch is settled once: acknowledged, failed or given back. As a context manager it does so by itself: ack on a clean
exit, nack on an exception, and back without counting an attempt when the program itself is being stopped.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.engine import group_calls
from penstock.engine.calls import Call
from penstock.engine.group_calls import Claim
from penstock.engine.messages import StoredMessage
from penstock.errors import InvalidInput, LeaseLost, PenstockError

Run = Callable[[Call[Any]], Any]
AsyncRun = Callable[[Call[Any]], Awaitable[Any]]


class _Claims:
    """The claims of a batch, and what was done with them: the part that both kinds of batch share."""

    def __init__(self, queue: str, group: str, claims: list[Claim]) -> None:
        self.queue = queue
        self.group = group
        self.claims = claims
        self.messages: list[StoredMessage] = [message for claim in claims for message in claim.messages]
        self.settled = claims[0].lease_id is None

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        places = ", ".join(f"{claim.partition}[{claim.start}:{claim.stop}]" for claim in self.claims)
        return f"<{type(self).__name__} of {self.queue!r} for {self.group!r}: {places}>"

    @property
    def partition(self) -> str:
        """The partition the messages are of, where it is one."""
        return self._only().partition

    def _ack(self, up_to: int | None) -> Call[None]:
        self._open()
        if up_to is not None:
            self._only()
        else:
            self.settled = True
        return group_calls.ack(self.claims, up_to)

    def _ack_message(self, message: StoredMessage) -> Call[None]:
        self._open()
        claim = self._claim_of(message)
        if not claim.shared:
            raise InvalidInput("an ordered group is acknowledged in order: use ack(up_to=message.offset + 1)")
        return group_calls.ack_message(claim, message.offset)

    def _nack(self, offset: int | None, reason: str | None, delay: float | None, error: str | None) -> list[Call[str]]:
        self._open()
        if offset is not None:
            self._only()
        said = reason if error is None else error
        calls = [group_calls.nack(claim, offset, said, reason, delay) for claim in self.claims]
        self.settled = True
        return calls

    def _nack_message(self, message: StoredMessage, error: BaseException) -> list[Call[Any]]:
        """Fail at one message: earlier ones are done, other claims are given back."""
        self._open()
        failed = self._claim_of(message)
        self.settled = True
        return [
            group_calls.nack(claim, message.offset, describe(error), type(error).__name__, None)
            if claim is failed
            else group_calls.release(claim.group_id, claim.partition_id, claim.lease_id, claim.shared)
            for claim in self.claims
        ]

    def _renew(self, lease: float | None) -> Call[None]:
        self._open()
        return group_calls.renew(self.claims, lease)

    def _release(self) -> list[Call[bool]]:
        self._open()
        self.settled = True
        return [
            group_calls.release(claim.group_id, claim.partition_id, claim.lease_id, claim.shared)
            for claim in self.claims
        ]

    def _on_error(self, error: BaseException) -> list[Call[Any]]:
        """Settle after an exception: the program's end is nobody's failure."""
        if isinstance(error, Exception):
            return list(self._nack(None, type(error).__name__, None, describe(error)))
        return list(self._release())

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

    def __init__(self, queue: str, group: str, claims: list[Claim], run: Run) -> None:
        super().__init__(queue, group, claims)
        self._run = run

    def through(self, run: Run) -> Self:
        """Settle through something else from now on: a transaction."""
        self._run = run
        return self

    def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset; raises LeaseLost when the lease is not live."""
        self._run(self._ack(up_to))

    def ack_message(self, message: StoredMessage) -> None:
        """Acknowledge one message of a shared group."""
        self._run(self._ack_message(message))

    def nack(
        self,
        offset: int | None = None,
        *,
        reason: str | None = None,
        delay: float | None = None,
        error: str | None = None,
    ) -> list[str]:
        """Say that it failed, at `offset` if that is known: all before it is done.

        It is delivered again after the backoff, or `delay` seconds; the message that exhausts its attempts becomes a
        dead letter. Returns 'retry' or 'dead letter' for each partition.
        """
        return [self._run(call) for call in self._nack(offset, reason, delay, error)]

    def nack_message(self, message: StoredMessage, error: BaseException) -> None:
        """Say that one message failed: those before it are done, and other partitions are given back."""
        for call in self._nack_message(message, error):
            self._run(call)

    def renew(self, lease: float | None = None) -> None:
        """Extend the lease from now, by `lease` seconds or the group's lease time."""
        self._run(self._renew(lease))

    def release(self) -> None:
        """Give the messages back: they are delivered again at once, and no attempt is counted."""
        for call in self._release():
            self._run(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
            return
        for call in self._on_error(error):
            # A lease that is gone must not hide the error.
            with suppress(LeaseLost):
                self._run(call)


class AsyncBatch(_Claims):
    """The asynchronous twin of `Batch`."""

    def __init__(self, queue: str, group: str, claims: list[Claim], run: AsyncRun) -> None:
        super().__init__(queue, group, claims)
        self._run = run

    def through(self, run: AsyncRun) -> Self:
        """Settle through something else from now on: a transaction."""
        self._run = run
        return self

    async def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset."""
        await self._run(self._ack(up_to))

    async def ack_message(self, message: StoredMessage) -> None:
        """Acknowledge one message of a shared group."""
        await self._run(self._ack_message(message))

    async def nack(
        self,
        offset: int | None = None,
        *,
        reason: str | None = None,
        delay: float | None = None,
        error: str | None = None,
    ) -> list[str]:
        """Say that it failed, at `offset` if that is known."""
        return [await self._run(call) for call in self._nack(offset, reason, delay, error)]

    async def nack_message(self, message: StoredMessage, error: BaseException) -> None:
        """Say that one message failed."""
        for call in self._nack_message(message, error):
            await self._run(call)

    async def renew(self, lease: float | None = None) -> None:
        """Extend the lease from now."""
        await self._run(self._renew(lease))

    async def release(self) -> None:
        """Give the messages back."""
        for call in self._release():
            await self._run(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        for call in self._on_error(error):
            with suppress(LeaseLost):
                await self._run(call)


def describe(error: BaseException) -> str:
    """Return what an operator should read of an error."""
    return f"{type(error).__name__}: {error}"[:2000]
