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
from penstock.broker.pushing import Due, PushBatch, due
from penstock.client import pushes
from penstock.consuming.claimed import ClaimedMessages
from penstock.errors import PenstockError

# Messages that are written together. Those that come later are told apart by push: each can be cancelled by itself.
_Key = tuple[Place, Due | None, int]


class PendingPush:
    """A push that is written when its transaction's block ends."""

    def __init__(self, messages: list[Message], due: Due | None = None) -> None:
        self.messages = messages
        self.due = due
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
        self._placed: list[tuple[PendingPush, dict[Place, list[Message]]]] = []
        self._written: list[_Key] = []

    def add(self, queue: str, messages: list[Message], due: Due | None) -> PendingPush:
        """Take a push."""
        if self._ended:
            raise PenstockError("this transaction's block has ended; begin a new one")
        # Here, and not where they are written: the error then comes from the line that has the mistake.
        pushes.require_names(queue, messages)
        pending = PendingPush(messages, due)
        self._pending.append((queue, pending))
        return pending

    def drop(self, pending: PendingPush) -> None:
        """Take a push out again."""
        self._pending = [(queue, push) for queue, push in self._pending if push is not pending]
        pending.undo()

    def queues_to_spread(self) -> set[str]:
        """Return the queues whose `spread` decides where a message goes."""
        return {queue for queue, push in self._pending if pushes.needs_spread(push.messages)}

    def queues(self) -> set[str]:
        """Return all queues that are pushed to."""
        return {queue for queue, _ in self._pending}

    def end(self) -> None:
        """Take no more."""
        self._ended = True

    def batches(self, spreads: Mapping[str, int]) -> list[PushBatch]:
        """Return all that is to be written, in one order: two transactions that push to the same partitions
        cannot deadlock."""
        self._placed = [
            (push, pushes.place(queue, push.messages, spreads.get(queue, 1))) for queue, push in self._pending
        ]
        merged: dict[_Key, list[Message]] = {}
        for turn, (push, places) in enumerate(self._placed):
            for place, messages in places.items():
                merged.setdefault(_key(place, push, turn), []).extend(messages)
        self._written = sorted(merged, key=lambda key: key[0])
        return [PushBatch.of(place, merged[place, due, turn], due) for place, due, turn in self._written]

    def written(self, results: Sequence[PushResult]) -> None:
        """Tell each push where its messages went, by the results of all batches."""
        begun = dict(zip(self._written, results, strict=True))
        taken = dict.fromkeys(begun, 0)
        for turn, (push, places) in enumerate(self._placed):
            parts = []
            for place, messages in places.items():
                key = _key(place, push, turn)
                parts.append(begun[key].part(taken[key], taken[key] + len(messages)))
                taken[key] += len(messages)
            push.settle(parts)


def _key(place: Place, push: PendingPush, turn: int) -> _Key:
    return place, push.due, 0 if push.due is None else turn


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
    ) -> PendingPush:
        """Push when the block ends; the arguments are those of `Client.push`. A delay counts from then."""
        messages = pushes.gather(message_or_list, partition, key, headers, dedupe_id)
        return self._add(queue, messages, due(delay, at))

    def push_many(
        self,
        queue: str,
        messages: Iterable[tuple[Name, Any] | Message],
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
    ) -> PendingPush:
        """Push to many partitions when the block ends; the arguments are those of `Client.push_many`."""
        return self._add(queue, pushes.gather_many(messages), due(delay, at))

    def _add(self, queue: str, messages: list[Message], due: Due | None) -> PendingPush:
        pending = self.gathered.add(queue, messages, due)
        self._noting.note(partial(self.gathered.drop, pending))
        return pending

    def _settled(self, batch: ClaimedMessages) -> None:
        """Take note that a call settled a batch, or part of it."""
        self._noting.note(partial(batch.reopen, frozenset(batch.acknowledged)))
