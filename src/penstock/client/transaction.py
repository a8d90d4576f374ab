# Generated from async_transaction.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""A transaction in which pushes and acknowledgements commit together with the caller's own writes."""

import time
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, lease_time
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.log import GetSpread
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.transport import TransactionScope
from penstock.client.gathering import Gathering, ended
from penstock.client.pushes import Spreads
from penstock.consuming.batch import Batch
from penstock.consuming.consumer import Consumer

R = TypeVar("R")


class Transaction(Gathering):
    """A transaction with the caller's own SQL on `connection`, pushes, and claims.

    A claim that is taken and acknowledged here commits or rolls back with everything else: consume, transform and
    produce in one step.
    """

    def __init__(self, scope: TransactionScope, consumer: Consumer, *, lent: bool) -> None:
        super().__init__(scope)
        # Operations that were run as they are.
        self.ran: list[Operation[Any]] = []
        self._scope = scope
        self._consumer = consumer
        # Whether the connection is the client's own, which somebody else has after the block.
        self._lent = lent
        self._has_ended = False

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
        wanted = Pop(
            queue,
            group,
            as_text(partition),
            max_messages,
            max_partitions=max_partitions,
            lease=lease_time(lease),
            consumer=self._consumer.id,
        )
        asked_at = time.monotonic()
        claims = self._run(wanted)
        if not claims:
            return None

        def settle(operation: Operation[Any]) -> Any:
            return self._settle(batch, operation)

        batch = Batch(queue, group, claims, settle, asked_at)
        return batch

    def run(self, operation: Operation[R]) -> R:
        """Run an operation as it is, in this transaction."""
        reply = self._run(operation)
        self.ran.append(operation)
        return reply

    def ack(self, batch: Batch) -> None:
        """Acknowledge a batch in this transaction, wherever it was popped."""
        if batch.settled and not self._has_ended:
            # It may have been here, and a rollback to a savepoint has undone it.
            self._scope.check()
        batch.ack_through(partial(self._settle_here, batch))

    def write(self, spreads: Spreads) -> None:
        """Write the pushes that were gathered, at the end of the block."""
        self._scope.check()
        # On the transaction's own connection: the pool may have no other.
        known = {}
        for queue in self.gathered.queues_to_spread():
            known[queue] = spreads.get(queue) or spreads.put(queue, self._scope.run(GetSpread(queue)))
        calls = self.gathered.calls(known)
        results = self._scope.write([Push(call.batches()) for call in calls])
        for call, of_one in zip(calls, results, strict=True):
            call.written(of_one)

    def end(self) -> None:
        """Take note that the block is over."""
        self._has_ended = self._lent

    def _run(self, operation: Operation[R]) -> R:
        if self._has_ended:
            raise ended()
        if getattr(operation, "durable", True) is False:
            # What commits without waiting for the disk takes all else of its transaction with it.
            operation = msgspec.structs.replace(operation, durable=True)
        return self._scope.run(operation)

    def _settle(self, batch: Batch, operation: Operation[Any]) -> Any:
        """Settle a batch that was popped here: in this transaction, and by itself after it."""
        if self._has_ended:
            return self._consumer.settle(operation)
        return self._settle_here(batch, operation)

    def _settle_here(self, batch: Batch, operation: Operation[Any]) -> Any:
        reply = self._run(operation)
        self._settled(batch)
        return reply
