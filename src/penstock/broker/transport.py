# Generated from async_transport.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The port of a broker: whatever runs operations is a transport.

PostgreSQL's is `penstock.postgres.database`. The micro-batcher is one, too, which wraps another. Clients, batches and
consumers know no more of a broker than what is here. Whatever a transport raises is a `PenstockError`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from penstock.broker.hints import HintSource
from penstock.broker.messages import PushResult
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push

R = TypeVar("R")


class TransactionScope(Protocol):
    """A transaction in which operations run together with the caller's own SQL."""

    # What the caller runs SQL on.
    connection: Any

    def run(self, operation: Operation[R]) -> R:
        """Run an operation in this transaction."""

    def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        """Run the pushes that end the block; the results of each."""

    def block(self) -> AbstractContextManager[None]:
        """Surround the caller's own code: what it raises passes through as it is."""

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that was done; `undo` is called if the caller rolls it back, also to a savepoint."""

    def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""


class Transport(HintSource, Protocol):
    """Runs operations for a synchronous client.

    One that has no transactions or no hints raises a `PenstockError` that says so.
    """

    def open(self) -> None:
        """Find the broker and see that it is ready; from then on there is an address. Operations do it, too."""

    def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,
        *,
        retry: bool = True,
    ) -> R:
        """Run one operation in a transaction of its own.

        A connection is waited for `timeout` seconds at most. Without `retry` it is not tried again here, because the
        caller does that.
        """

    def transaction(self, connection: Any = None) -> AbstractContextManager[TransactionScope]:
        """Begin a transaction, on a connection of the transport's or in that of the caller's own connection."""

    def close(self) -> None:
        """Close all connections."""
