"""The claims of a batch and what was done with them: what both kinds of batch share."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from penstock.broker.arguments import Seconds, delay_time, lease_time
from penstock.broker.claims import Claim, ClaimRange, Lease
from penstock.broker.messages import StoredMessage
from penstock.broker.operations.claiming import Ack, Nack, Release, Renew
from penstock.broker.operations.operation import Operation
from penstock.consuming.failures import describe, trace_of
from penstock.consuming.outages import Outage
from penstock.consuming.tallies import Tally
from penstock.errors import InvalidInput, LeaseLost, PenstockError


class ClaimedMessages:
    """Claimed messages of one or more partitions, in order within each."""

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
        # Whether an ack may wait for the next pop, to which it is then added, and whether it does.
        self.defers = False
        self.deferred = False
        # How many of its messages are done, where not all of them are; and who counts what becomes of them.
        self.handled: int | None = None
        self.probe = False
        self.tally: Tally | None = None
        # Since when it is handled, and how many messages are counted, where it counts what becomes of it by itself.
        self._counting_since: float | None = None
        self._counted = 0
        # Takes over the ack where something else than the loop sends it, and says whether it is not too late for that.
        self.hand_over: Callable[[Any], bool] | None = None
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
    def size(self) -> int:
        """How many bytes its messages have."""
        return sum(claim.size for claim in self.claims)

    @property
    def lease_left(self) -> float:
        """How many seconds its lease lasts, whatever time this machine's clock shows."""
        until = min((claim.lease_until for claim in self.claims if claim.lease_until), default=None)
        return 60.0 if until is None else until.timestamp() - self._ahead - time.monotonic()

    @property
    def lease_seconds(self) -> float:
        """How many seconds it was leased for when it was popped."""
        return min((claim.lease_seconds for claim in self.claims if claim.lease_seconds is not None), default=60.0)

    def count_for(self, tally: Tally) -> None:
        """Count what becomes of it, from now on. A loop does that for its own batches."""
        self.tally, self._counting_since = tally, time.monotonic()
        tally.took(len(self.messages), waited(self))
        if self.settled:
            # It was done as it came; how long it takes to handle, nobody will know.
            tally.handled(len(self.messages), None, breaks=False)

    def _count(self, done: int) -> None:
        """Count messages up to so many that are done, if they are not counted yet."""
        since = self._counting_since
        if self.tally is not None and since is not None and done > self._counted:
            self._counting_since = time.monotonic()
            self.tally.handled(done - self._counted, self._counting_since - since, breaks=False)
            self._counted = done

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
        self._count(len(self.messages) if self.handled is None else self.handled)

    def _ack(self, up_to: int | None, *, durable: bool = False) -> Ack:
        self._open()
        if up_to is not None:
            claim = self._only()
            if not claim.start <= up_to <= claim.stop:
                raise InvalidInput(f"up_to is {up_to} but must be from {claim.start} to {claim.stop}, as claimed")
        return Ack([claim.done(stop=up_to) for claim in self._unsettled()], durable=durable)

    def _deferred(self) -> bool:
        """Leave the ack to the loop that this batch is of, which sends it with the next pop, or at once without one."""
        if not self.defers:
            return False
        self._open()
        self.settled = self.deferred = True
        if self.hand_over is not None and not self.hand_over(self):
            self.settled = self.deferred = False
        return self.deferred

    def undeferred(self) -> Ack:
        """Return the ack that was left to the loop; from now on it is not settled."""
        self.settled = self.deferred = False
        return self._ack(None)

    def acked_with_pop(self, operation: Ack, reply: list[bool]) -> None:
        """Take note of what came of an ack that was sent with a pop; raises LeaseLost when the lease is not live."""
        self.settled = True
        self._checked(operation, reply)

    def _ack_message(self, message: StoredMessage) -> Ack:
        self._open()
        claim = self._claim_of(message)
        if not claim.shared:
            raise InvalidInput("an ordered group is acknowledged in order: use ack(up_to=message.offset + 1)")
        return Ack([claim.done(message.offset, message.offset + 1)], durable=False)

    def _done_to(self, up_to: int) -> None:
        """Take note of what is acknowledged; with nothing left, the batch is settled."""
        if self.claims[0].shared:
            self._done(message for message in self.messages if message.offset < up_to)
        else:
            self.settled = up_to == self.claims[0].stop
            self._count(sum(message.offset < up_to for message in self.messages))

    def _done(self, messages: Iterable[StoredMessage]) -> None:
        self._acked.update((message.partition_id, message.offset) for message in messages)
        self.settled = len(self._acked) == len(self.messages)
        self._count(len(self._acked))

    def _nack(
        self, offset: int | None, reason: str | None, delay: Seconds | None, error: str | BaseException | None
    ) -> list[Operation[Any]]:
        if offset is not None:
            self._only()
        done = 0 if offset is None else sum(message.offset < offset for message in self.messages)
        if isinstance(error, BaseException):
            said: str | None = describe(error)
            trace, reason = trace_of(error), reason or type(error).__name__
        else:
            said, trace = reason if error is None else error, None
        wait = delay_time(delay)
        self._failed(done, said)
        return [Nack(claim.lease, offset, said, reason, wait, trace) for claim in self._unsettled()]

    def _nack_message(self, message: StoredMessage, error: BaseException) -> list[Operation[Any]]:
        """Fail at one message: earlier ones are done, later claims are given back."""
        failed = self._claim_of(message)
        place = self.claims.index(failed)
        done = [Ack([claim.done() for claim in self.claims[:place]], durable=False)] if place else []
        self._failed(self.messages.index(message), describe(error))
        return [
            *done,
            Nack(failed.lease, message.offset, describe(error), type(error).__name__, None, trace_of(error)),
            *(Release(claim.lease) for claim in self.claims[place + 1 :]),
        ]

    def _renew(self, lease: Seconds | None) -> Renew:
        self._open()
        return Renew([claim.lease for claim in self._unsettled()], lease_time(lease), durable=False)

    def _release_after(self, done: int) -> list[Operation[Any]]:
        """Acknowledge the first messages, and give back the rest."""
        if not 0 <= done <= len(self.messages):
            raise InvalidInput(f"done is {done} but must be from 0 to {len(self.messages)}, as many as the batch has")
        self.handled = done
        whole = 0
        while whole < len(self.claims) and len(self.claims[whole].messages) <= done:
            done -= len(self.claims[whole].messages)
            whole += 1
        operations: list[Operation[Any]] = []
        if whole:
            operations.append(Ack([claim.done() for claim in self.claims[:whole]], durable=False))
        if done:
            begun = self.claims[whole]
            operations.append(Ack([begun.done(stop=begun.messages[done].offset)], durable=False))
        return [*operations, *(Release(claim.lease) for claim in self.claims[whole:])]

    def _failed(self, done: int, error: str | None) -> None:
        """Count a failure, after so many messages that are done."""
        self.handled = done
        if self.tally is not None:
            self.tally.fail(error, probe=self.probe, breaks=self._counting_since is None)

    def _checked(self, operation: Operation[Any], reply: Any) -> Any:
        """Return the reply to an operation that settles claims; raises LeaseLost where a lease is not live."""
        match operation:
            case Ack():
                if not all(reply):
                    raise _lost(self._named(zip(operation.ranges, reply, strict=True)))
            case Renew():
                self._renewed(operation, reply)
            case Nack() if reply is None:
                raise _lost(self._named([(operation.lease, False)]))
        return reply

    def _renewed(self, operation: Renew, reply: Sequence[datetime | None]) -> None:
        until = {lease.lease_id: deadline for lease, deadline in zip(operation.leases, reply, strict=True) if deadline}
        for claim in self.claims:
            claim.lease_until = until.get(claim.lease_id, claim.lease_until)
        if not all(reply):
            raise _lost(self._named(zip(operation.leases, reply, strict=True)))

    def _named(self, settled: Iterable[tuple[Lease | ClaimRange, object]]) -> list[str]:
        """Return the partitions of what was not settled."""
        leases = {lease.lease_id for lease, done in settled if not done}
        return [claim.partition for claim in self.claims if claim.lease_id in leases]

    def _unsettled(self) -> list[Claim]:
        """Return the claims of which not every message was acknowledged by itself: those have no lease any more."""
        if not self._acked:
            return self.claims
        return [
            claim
            for claim in self.claims
            if any((claim.partition_id, message.offset) not in self._acked for message in claim.messages)
        ]

    def _open(self) -> None:
        if self.settled:
            raise PenstockError("this batch is settled already")

    def _only(self) -> Claim:
        if len(self.claims) != 1:
            raise InvalidInput(f"this batch has {len(self.claims)} partitions; pop one at a time to settle by offset")
        return self.claims[0]

    def _claim_of(self, message: StoredMessage) -> Claim:
        found = [
            claim
            for claim in self.claims
            if claim.partition_id == message.partition_id and claim.start <= message.offset < claim.stop
        ]
        if len(found) > 1:
            # Where a limit by key left messages out of a claim, another one may lie between its messages.
            found = [claim for claim in found if any(each.offset == message.offset for each in claim.messages)]
        if found:
            return found[0]
        raise InvalidInput(f"message {message.offset} of {message.partition!r} is not in this batch")


def waited(batch: ClaimedMessages) -> float | None:
    """Return how many seconds its first message was in the log when it was handed out; None if it came before."""
    first = batch.claims[0]
    if first.attempt > 1 or first.lease_until is None or not batch.messages:
        return None
    return _server_time(batch.claims) - batch.messages[0].timestamp.timestamp()


def _server_time(claims: list[Claim]) -> float:
    """Return the server's time when it handed claims out; for those without a lease it does not matter."""
    first = claims[0]
    if first.lease_until is None or first.lease_seconds is None:
        return 0.0
    return first.lease_until.timestamp() - first.lease_seconds


def _lost(partitions: Sequence[str]) -> LeaseLost:
    return LeaseLost(
        f"the lease of {', '.join(map(repr, partitions))} has expired or is another consumer's; nothing was changed "
        "there and the messages are delivered again. Renew in time, or give the group a longer lease_time."
    )


def outcome_of(results: list[Any]) -> str:
    """Return what became of the message that failed, of all that was settled with it."""
    return next((result for result in results if isinstance(result, str)), "retry")


def and_then(outcome: str | None) -> str:
    """Say what becomes of what failed."""
    return "it is a dead letter now" if outcome == "dead letter" else "it will be retried"
