"""The claims of a batch and what was done with them: what both kinds of batch share."""

import os
import time
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any

from penstock.broker.arguments import Seconds
from penstock.broker.messages import StoredMessage
from penstock.consuming.failures import describe, trace_of
from penstock.consuming.outages import Outage
from penstock.errors import InvalidInput, LeaseLost, PenstockError
from penstock.postgres.statements import group_calls
from penstock.postgres.statements.calls import Call
from penstock.postgres.statements.group_calls import Claim


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


def _server_time(claims: list[Claim]) -> float:
    """Return the server's time when it handed claims out; for those without a lease it does not matter."""
    first = claims[0]
    if first.lease_until is None or first.lease_seconds is None:
        return 0.0
    return first.lease_until.timestamp() - first.lease_seconds


def outcome_of(results: list[Any]) -> str:
    """Return what became of the message that failed, of all that was settled with it."""
    return next((result for result in results if isinstance(result, str)), "retry")


def and_then(outcome: str | None) -> str:
    """Say what becomes of what failed."""
    return "it is a dead letter now" if outcome == "dead letter" else "it will be retried"
