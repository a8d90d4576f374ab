"""The port of a broker: whatever runs operations is a transport.

PostgreSQL's is `penstock.postgres.database`. The micro-batcher is one, too, which wraps another. Clients, batches and
consumers know no more of a broker than what is here. Whatever a transport raises is a `PenstockError`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from penstock.broker.operations.operation import Operation

R = TypeVar("R")


class HintListener(Protocol):
    """Who wants to hear that other processes have pushed."""

    def heard(self, queues: Sequence[str]) -> None:
        """Take note that somebody pushed to these queues; called from any thread."""

    def sent(self) -> None:
        """Take note that a hint was sent to others."""


class Hints(Protocol):
    """Hints between processes: that something was pushed, so that those who wait elsewhere look sooner.

    A hint may be lost, so nothing depends on it.
    """

    def announce(self, queues: Iterable[str]) -> None:
        """Say that something was pushed to these queues, in a moment."""

    def close(self) -> None:
        """Listen no more."""


class TransactionScope(Protocol):
    """A transaction in which operations run together with the caller's own SQL."""

    # What the caller runs SQL on.
    connection: Any

    def run(self, operation: Operation[R]) -> R:
        """Run an operation in this transaction."""

    def block(self) -> AbstractContextManager[None]:
        """Surround the caller's own code: what it raises passes through as it is."""

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that was done; `undo` is called if the caller rolls it back, also to a savepoint."""

    def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""


class AsyncTransactionScope(Protocol):
    """The asynchronous twin of `TransactionScope`."""

    connection: Any

    async def run(self, operation: Operation[R]) -> R:
        """Run an operation in this transaction."""

    def block(self) -> AbstractContextManager[None]:
        """Surround the caller's own code: what it raises passes through as it is."""

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that was done; `undo` is called if the caller rolls it back, also to a savepoint."""

    async def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""


class Transport(Protocol):
    """Runs operations for a synchronous client. Safe to share between threads."""

    @property
    def address(self) -> str:
        """What identifies the broker within this process."""

    def open(self) -> None:
        """Find the broker and see that it is ready. Operations do this by themselves."""

    def run(self, operation: Operation[R], timeout: float | None = None, *, retry: bool = True) -> R:
        """Run one operation in a transaction of its own.

        A connection is waited for `timeout` seconds at most. Without `retry` it is not tried again here, because the
        caller does that.
        """

    def transaction(self, connection: Any = None) -> AbstractContextManager[TransactionScope]:
        """Begin a transaction, on a connection of the transport's or in that of the caller's own connection."""

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes, until they are closed."""

    def close(self) -> None:
        """Close all connections."""


class AsyncTransport(Protocol):
    """The asynchronous twin of `Transport`."""

    @property
    def address(self) -> str:
        """What identifies the broker within this process, once it is open."""

    async def open(self) -> None:
        """Find the broker and see that it is ready. Operations do this by themselves."""

    async def run(self, operation: Operation[R], timeout: float | None = None, *, retry: bool = True) -> R:  # noqa: ASYNC109
        """Run one operation in a transaction of its own.

        A connection is waited for `timeout` seconds at most. Without `retry` it is not tried again here, because the
        caller does that.
        """

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[AsyncTransactionScope]:
        """Begin a transaction, on a connection of the transport's or in that of the caller's own connection."""

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes, until they are closed."""

    async def close(self) -> None:
        """Close all connections."""
