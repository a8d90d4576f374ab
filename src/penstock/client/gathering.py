"""The pushes of a transaction, gathered until its block ends: what both kinds of transaction share.

A push locks its partition until the transaction ends. So a transaction gathers its pushes and writes them at the end
of the block, all in one call and in a fixed order: the locks are held for a moment only, and two transactions that push
to the same partitions cannot deadlock. What the caller rolls back to a savepoint is not written: see savepoints.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from penstock.broker.arguments import Name, Seconds
from penstock.broker.messages import Message, PushResult
from penstock.broker.places import Place
from penstock.broker.pushing import Due, PushBatch, Uniqueness, due, uniqueness
from penstock.client import pushes
from penstock.consuming.claimed import ClaimedMessages
from penstock.errors import PenstockError

# Messages that are written together, told apart by a number: those that come later by push, since each can be cancelled
# by itself, and so those with unique keys.
_Key = tuple[Place, Due | None, int]


def ended() -> PenstockError:
    """Return what to raise when a transaction is used after its block."""
    return PenstockError("this transaction's block has ended; begin a new one")


class PendingPush:
    """A push that is written when its transaction's block ends."""

    def __init__(self, messages: list[Message], due: Due | None = None, unique: Uniqueness | None = None) -> None:
        self.messages = messages
        self.due = due
        self.unique = unique
        self._results: list[PushResult] | None = None
        self._undone = False

    @property
    def results(self) -> list[PushResult]:
        """Where the messages went, one result per partition; known after the block."""
        if self._undone:
            raise PenstockError("this push was rolled back, with its transaction or to a savepoint before it")
        if self._results is None:
            raise PenstockError("a transaction's pushes are written when its block ends: look after it")
        return self._results

    @property
    def result(self) -> PushResult:
        """Where the messages went; for a push to one partition."""
        only = self.results
        if len(only) != 1:
            raise PenstockError(f"these messages went to {len(only)} partitions; look at .results")
        return only[0]

    def settle(self, results: list[PushResult]) -> None:
        """Take note of where the messages went."""
        self._results = results

    def undo(self) -> None:
        """Take note that it was rolled back."""
        self._undone = True


class Gathered:
    """The pushes of one transaction, until they are written."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, PendingPush]] = []
        self._ended = False

    def add(
        self, queue: str, messages: list[Message], due: Due | None, unique: Uniqueness | None = None
    ) -> PendingPush:
        """Take a push."""
        if self._ended:
            raise ended()
        # Here, and not where they are written: the error then comes from the line that has the mistake.
        pushes.require_names(queue, messages)
        pending = PendingPush(messages, due, unique)
        self._pending.append((queue, pending))
        return pending

    def drop(self, pending: PendingPush) -> None:
        """Take a push out again."""
        self._pending = [(queue, push) for queue, push in self._pending if push is not pending]
        pending.undo()

    def queues_to_spread(self) -> set[str]:
        """Return the queues whose `spread` decides where a message goes."""
        return {queue for queue, push in self._pending if pushes.needs_spread(push.messages)}

    def counts(self) -> dict[str, int]:
        """Return how many messages are pushed to each queue."""
        found: dict[str, int] = {}
        for queue, push in self._pending:
            found[queue] = found.get(queue, 0) + len(push.messages)
        return found

    def queues(self) -> set[str]:
        """Return all queues that are pushed to."""
        return {queue for queue, _ in self._pending}

    def end(self) -> None:
        """Take no more."""
        self._ended = True

    def calls(self, spreads: Mapping[str, int]) -> list["GatheredCall"]:
        """Return all that is to be written: in one call, unless unique keys are repeated or beside dedupe ids."""
        calls: list[GatheredCall] = []
        for queue, push in self._pending:
            if not calls or not calls[-1].takes(queue, push):
                calls.append(GatheredCall())
            calls[-1].add(queue, push, pushes.place(queue, push.messages, spreads.get(queue, 1)))
        return calls


class GatheredCall:
    """Pushes of a transaction that are written in one call."""

    def __init__(self) -> None:
        # Each with the number that tells it apart.
        self._pushes: list[tuple[PendingPush, dict[Place, list[Message]], int]] = []
        self._keys: set[tuple[str, str]] = set()
        self._dedupes = False
        # How many have unique keys. Plain messages before and after such a push are told apart, to stay in order.
        self._unique = 0
        self._written: list[_Key] = []

    def takes(self, queue: str, push: PendingPush) -> bool:
        """Say whether a push can be in this call: unique keys and dedupe ids are looked at by different functions."""
        if push.unique is None:
            return not self._keys or all(message.dedupe_id is None for message in push.messages)
        return not self._dedupes and self._keys.isdisjoint(_unique_keys(queue, push))

    def add(self, queue: str, push: PendingPush, placed: dict[Place, list[Message]]) -> None:
        """Take a push."""
        self._keys |= _unique_keys(queue, push)
        self._dedupes = self._dedupes or any(message.dedupe_id is not None for message in push.messages)
        apart = push.due is not None or push.unique is not None
        self._pushes.append((push, placed, -1 - len(self._pushes) if apart else self._unique))
        self._unique += push.unique is not None

    def batches(self) -> list[PushBatch]:
        """Return what is to be written, in one order: two transactions that push to the same partitions cannot
        deadlock."""
        merged: dict[_Key, list[Message]] = {}
        unique: dict[_Key, Uniqueness | None] = {}
        for push, places, number in self._pushes:
            for place, messages in places.items():
                merged.setdefault(key := (place, push.due, number), []).extend(messages)
                unique[key] = push.unique
        self._written = sorted(merged, key=lambda key: key[0])
        return [PushBatch.of(key[0], merged[key], key[1], unique[key]) for key in self._written]

    def written(self, results: Sequence[PushResult]) -> None:
        """Tell each push where its messages went, by the results of all batches."""
        begun = dict(zip(self._written, results, strict=True))
        taken = dict.fromkeys(begun, 0)
        for push, places, number in self._pushes:
            parts = []
            for place, messages in places.items():
                key = (place, push.due, number)
                parts.append(begun[key].part(taken[key], taken[key] + len(messages)))
                taken[key] += len(messages)
            push.settle(parts)


def _unique_keys(queue: str, push: PendingPush) -> set[tuple[str, str]]:
    return {(queue, message.unique_key) for message in push.messages if message.unique_key is not None}


class Scope(Protocol):
    """The part of a transaction's scope that both kinds have."""

    connection: Any

    def block(self) -> AbstractContextManager[None]:
        """Surround the caller's own code."""

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that a rollback would undo."""


class Gathering:
    """The part that both kinds of transaction share: it gathers pushes, and notes what a rollback undoes."""

    def __init__(self, scope: Scope) -> None:
        self.connection = scope.connection
        self.gathered = Gathered()
        self._noting = scope

    @contextmanager
    def block(self) -> Iterator[None]:
        """Surround the caller's code."""
        try:
            with self._noting.block():
                yield
        finally:
            self.gathered.end()

    def push(
        self,
        queue: str,
        message_or_list: Any,
        *,
        partition: Name | None = None,
        key: Name | None = None,
        headers: Mapping[str, str] | None = None,
        dedupe_id: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique_key: str | None = None,
        unique_for: Seconds | None = None,
        unique_until: str | None = None,
        replace: bool = False,
    ) -> PendingPush:
        """Push when the block ends; the arguments are those of `Client.push`. A delay counts from then."""
        messages = pushes.gather(message_or_list, partition, key, headers, dedupe_id, unique_key)
        return self._add(queue, messages, due(delay, at), uniqueness(messages, unique_for, unique_until, replace))

    def push_many(
        self,
        queue: str,
        messages: Iterable[tuple[Name, Any] | Message],
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique_for: Seconds | None = None,
        unique_until: str | None = None,
        replace: bool = False,
    ) -> PendingPush:
        """Push to many partitions when the block ends; the arguments are those of `Client.push_many`."""
        gathered = pushes.gather_many(messages)
        return self._add(queue, gathered, due(delay, at), uniqueness(gathered, unique_for, unique_until, replace))

    def _add(self, queue: str, messages: list[Message], due: Due | None, unique: Uniqueness | None) -> PendingPush:
        pending = self.gathered.add(queue, messages, due, unique)
        self._noting.note(partial(self.gathered.drop, pending))
        return pending

    def _settled(self, batch: ClaimedMessages) -> None:
        """Take note that a call settled a batch, or part of it."""
        self._noting.note(partial(batch.reopen, frozenset(batch.acknowledged)))
