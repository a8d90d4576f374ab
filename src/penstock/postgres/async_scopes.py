"""Operations in a transaction that has SQL of the caller's, too, whoever opened it."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from penstock.broker.messages import PushResult
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.postgres.failures import translated
from penstock.postgres.savepoints import Effects
from penstock.postgres.statements.call import Call, call_for

R = TypeVar("R")
AsyncExecute = Callable[[Call[Any]], Awaitable[list[Any]]]


class AsyncScope:
    """A transaction on `connection`."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.effects = Effects()
        # What the caller's own code raised is the caller's, and passes through as it is.
        self._raised: list[BaseException] = []

    def begin(self, execute: AsyncExecute) -> Self:
        """Say who runs calls in this transaction, now that it has begun."""
        self._execute = execute
        return self

    async def run(self, operation: Operation[R]) -> R:
        """Run an operation in this transaction."""
        return await self._run(call_for(operation))

    async def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        """Run the pushes that end the block, one after the other."""
        return [await self.run(push) for push in pushes]

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that was done; `undo` is called if the caller rolls it back, also to a savepoint."""
        self.effects.note(undo)

    async def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""
        # Only asyncpg, which has no synchronous half, is followed.
        if self.effects.followed is not None:  # async only
            self.effects.undo(await self.effects.followed.undone())
        if (call := self.effects.ask()) is not None:
            await self._run(call)

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Surround the whole transaction: what it rolls back is undone here, too."""
        with translated(self._raised):
            try:
                yield
            except BaseException:
                self.effects.undo()
                raise

    @contextmanager
    def block(self) -> Iterator[None]:
        """Surround the caller's own code."""
        try:
            yield
        except BaseException as error:
            self._raised.append(error)
            raise

    async def _run(self, call: Call[R]) -> R:
        with translated(), self.effects.unwatched():
            return call.parse(await self._execute(call))
