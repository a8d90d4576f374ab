# Generated from async_transaction.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""A transaction in which pushes and acknowledgements commit together with the caller's own writes."""

import time
from functools import partial
from typing import Any, Self

from penstock.broker.arguments import Name, Seconds
from penstock.client.gathering import Gathering
from penstock.consuming.batch import Batch, Run
from penstock.postgres.statements import group_calls
from penstock.postgres.statements.calls import Call
from penstock.postgres.statements.group_calls import MAX_BYTES


class Transaction(Gathering):
    """A transaction with the caller's own SQL on `connection`, pushes, and claims.

    A claim that is taken and acknowledged here commits or rolls back with everything else: consume, transform and
    produce in one step.
    """

    def __init__(self, connection: Any, consumer: str) -> None:
        super().__init__(connection)
        self._consumer = consumer

    def begin(self, run: Run) -> Self:
        """Say who runs calls in this transaction, now that it has begun."""
        self._calls = run
        return self

    def pop(
        self,
        queue: str,
        group: str = "default",
        *,
        partition: Name | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        lease: Seconds | None = None,
    ) -> Batch | None:
        """Claim the next messages in this transaction; nobody sees the claim before it commits."""
        call = group_calls.pop(
            queue, group, partition, max_messages, MAX_BYTES, max_partitions, lease, self._consumer, False, None
        )
        asked_at = time.monotonic()
        claims = self.run(call)
        if not claims:
            return None

        def settle(call: Call[Any]) -> Any:
            return self._settle(batch, call)

        batch = Batch(queue, group, claims, settle, asked_at)
        return batch

    def ack(self, batch: Batch) -> None:
        """Acknowledge a batch in this transaction, wherever it was popped."""
        if batch.settled:
            # It may have been here, and a rollback to a savepoint has undone it.
            self.check()
        batch.ack_through(partial(self._settle, batch))

    def run(self, call: Call[Any]) -> Any:
        """Run a call in this transaction."""
        with self.effects.unwatched():
            return self._calls(call)

    def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""
        if (call := self.effects.ask()) is not None:
            self.run(call)

    def _settle(self, batch: Batch, call: Call[Any]) -> Any:
        result = self.run(call)
        self._settled(batch)
        return result
