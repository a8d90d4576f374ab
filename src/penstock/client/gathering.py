"""The pushes of a transaction, gathered until its block ends: what both kinds of transaction share.

A push locks its partition until the transaction ends. So a transaction gathers its pushes and writes them at the end
of the block, all in one call and in a fixed order: the locks are held for a moment only, and two transactions that push
to the same partitions cannot deadlock. What the caller rolls back to a savepoint is not written: see savepoints.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from penstock.broker.arguments import Name, Seconds
from penstock.broker.messages import Message, PushResult
from penstock.client import pushes
from penstock.consuming.claimed import ClaimedMessages
from penstock.errors import PenstockError
from penstock.postgres.failures import translated
from penstock.postgres.savepoints import Effects
from penstock.postgres.statements import option_calls
from penstock.postgres.statements.calls import Call, Place
from penstock.postgres.statements.option_calls import Due, Lot


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

    def write(self, spreads: Mapping[str, int]) -> Call[None] | None:
        """Return the one call that writes everything, or None when there is nothing to write."""
        if not self._pending:
            return None
        placed = [(push, pushes.place(queue, push.messages, spreads.get(queue, 1))) for queue, push in self._pending]
        merged: dict[Lot, list[Message]] = {}
        for turn, (push, places) in enumerate(placed):
            for place, messages in places.items():
                merged.setdefault(_lot(place, push.due, turn), []).extend(messages)
        # All in one call, and in one order: two transactions that push to the same partitions cannot deadlock.
        lots = dict(sorted(merged.items(), key=lambda lot: lot[0].place))
        call = pushes.call_lots(lots)

        def parse(rows: Any) -> None:
            begun = dict(zip(lots, call.parse(rows), strict=True))
            taken = dict.fromkeys(begun, 0)
            for turn, (push, places) in enumerate(placed):
                results = []
                for place, messages in places.items():
                    lot = _lot(place, push.due, turn)
                    results.append(begun[lot].part(taken[lot], taken[lot] + len(messages)))
                    taken[lot] += len(messages)
                push.settle(results)

        return Call(call.sql, call.parameters, parse)


def _lot(place: Place, due: Due | None, turn: int) -> Lot:
    return Lot(place, due, 0 if due is None else turn)


class Gathering:
    """The part that both kinds of transaction share: it gathers pushes, and notes what a rollback undoes."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.gathered = Gathered()
        self.effects = Effects()
        # What the caller's own code raised is the caller's, and passes through as it is.
        self.raised: list[BaseException] = []

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Surround the whole transaction: what it rolls back is neither pushed nor acknowledged."""
        with translated(self.raised):
            try:
                yield
            except BaseException:
                self.effects.undo()
                raise

    @contextmanager
    def block(self) -> Iterator[None]:
        """Surround the caller's code."""
        try:
            yield
        except BaseException as error:
            self.raised.append(error)
            raise
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
        return self._add(queue, messages, option_calls.due(delay, at))

    def push_many(
        self,
        queue: str,
        messages: Iterable[tuple[Name, Any] | Message],
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
    ) -> PendingPush:
        """Push to many partitions when the block ends; the arguments are those of `Client.push_many`."""
        return self._add(queue, pushes.gather_many(messages), option_calls.due(delay, at))

    def _add(self, queue: str, messages: list[Message], due: Due | None) -> PendingPush:
        pending = self.gathered.add(queue, messages, due)
        self.effects.note(partial(self.gathered.drop, pending))
        return pending

    def _settled(self, batch: ClaimedMessages) -> None:
        """Take note that a call settled a batch, or part of it."""
        self.effects.note(partial(batch.reopen, frozenset(batch.acknowledged)))
