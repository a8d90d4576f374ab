"""What a pop returns: claimed messages, and how to settle them.

A batch is settled once: acknowledged, failed or given back. As a context manager it does so by itself: ack on a clean
exit, nack on an exception, and back without counting an attempt when the program itself is being stopped.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
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
        self._acked: set[tuple[int, int]] = set()

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

    def _nack(self, offset: int | None, reason: str | None, delay: float | None, error: str | None) -> list[Call[str]]:
        if offset is not None:
            self._only()
        said = reason if error is None else error
        return [group_calls.nack(claim, offset, said, reason, delay) for claim in self.claims]

    def _nack_message(self, message: StoredMessage, error: BaseException) -> list[Call[Any]]:
        """Fail at one message: earlier ones are done, later claims are given back."""
        failed = self._claim_of(message)
        place = self.claims.index(failed)
        done = [group_calls.ack(self.claims[:place], None)] if place else []
        return [
            *done,
            group_calls.nack(failed, message.offset, describe(error), type(error).__name__, None),
            *self._release(self.claims[place + 1 :]),
        ]

    def _renew(self, lease: float | None) -> Call[None]:
        self._open()
        return group_calls.renew(self.claims, lease)

    def _release(self, claims: list[Claim]) -> list[Call[bool]]:
        return [
            group_calls.release(claim.group_id, claim.partition_id, claim.lease_id, claim.shared) for claim in claims
        ]

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

    def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset; raises LeaseLost when the lease is not live."""
        self.ack_through(self._run, up_to)

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
        self._run(self._ack_message(message))
        self._done([message])

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
        return self._settle(self._nack(offset, reason, delay, error))

    def nack_message(self, message: StoredMessage, error: BaseException) -> None:
        """Say that one message failed: those before it are done, and later partitions are given back."""
        self._settle(self._nack_message(message, error))

    def renew(self, lease: float | None = None) -> None:
        """Extend the lease from now, by `lease` seconds or the group's lease time."""
        self._run(self._renew(lease))

    def release(self) -> None:
        """Give the messages back: they are delivered again at once, and no attempt is counted."""
        self._settle(self._release(self.claims))

    def _settle(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Run one call per claim; a lease that is lost does not keep the others from theirs."""
        results: list[Any] = []
        lost: LeaseLost | None = None
        with self.settling():
            for call in calls:
                try:
                    results.append(self._run(call))
                except LeaseLost as error:
                    lost = error
            if lost is not None:
                raise lost
        return results

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
        # A lease that is gone must not hide the error.
        with suppress(LeaseLost):
            if isinstance(error, Exception):
                self.nack(reason=type(error).__name__, error=describe(error))
            else:
                # The program's end is nobody's failure.
                self.release()


class AsyncBatch(_Claims):
    """The asynchronous twin of `Batch`."""

    def __init__(self, queue: str, group: str, claims: list[Claim], run: AsyncRun) -> None:
        super().__init__(queue, group, claims)
        self._run = run

    async def ack(self, up_to: int | None = None) -> None:
        """Acknowledge everything, or all below an offset."""
        await self.ack_through(self._run, up_to)

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
        await self._run(self._ack_message(message))
        self._done([message])

    async def nack(
        self,
        offset: int | None = None,
        *,
        reason: str | None = None,
        delay: float | None = None,
        error: str | None = None,
    ) -> list[str]:
        """Say that it failed, at `offset` if that is known."""
        return await self._settle(self._nack(offset, reason, delay, error))

    async def nack_message(self, message: StoredMessage, error: BaseException) -> None:
        """Say that one message failed."""
        await self._settle(self._nack_message(message, error))

    async def renew(self, lease: float | None = None) -> None:
        """Extend the lease from now."""
        await self._run(self._renew(lease))

    async def release(self) -> None:
        """Give the messages back."""
        await self._settle(self._release(self.claims))

    async def _settle(self, calls: Sequence[Call[Any]]) -> list[Any]:
        results: list[Any] = []
        lost: LeaseLost | None = None
        with self.settling():
            for call in calls:
                try:
                    results.append(await self._run(call))
                except LeaseLost as error:
                    lost = error
            if lost is not None:
                raise lost
        return results

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
        with suppress(LeaseLost):
            if isinstance(error, Exception):
                await self.nack(reason=type(error).__name__, error=describe(error))
            else:
                await self.release()


def describe(error: BaseException) -> str:
    """Return what an operator should read of an error."""
    return f"{type(error).__name__}: {error}"[:2000]
