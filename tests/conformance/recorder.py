"""A transport that wraps another and sees nothing but operations: what an HTTP client would be, without the network.

Each operation is encoded and decoded before it runs, and so is its reply. What passes the suite through it depends on
nothing that does not fit through the port.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, TypeVar

from penstock.broker.async_transport import AsyncTransactionScope, AsyncTransport
from penstock.broker.hints import HintListener, Hints
from penstock.broker.messages import PushResult
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.transport import TransactionScope, Transport
from penstock.http import encoding

R = TypeVar("R")


class Record:
    """What goes through a recorder."""

    # Types of operation that any recorder of this process has sent, and whose reply has come.
    kinds: ClassVar[set[type[Operation[Any]]]] = set()

    def sent(self, operation: Operation[R]) -> Operation[R]:
        """Return an operation as it arrives."""
        encoded = encoding.encode_operation(operation)
        arrived = encoding.decode_operation(type(operation), encoded)
        assert type(arrived) is type(operation)
        assert encoding.encode_operation(arrived) == encoded
        return arrived

    def pushed(self, push: Push) -> Push:
        """Return a push as it arrives."""
        arrived = self.sent(push)
        assert isinstance(arrived, Push)
        return arrived

    def answered(self, operation: Operation[R], reply: R) -> R:
        """Return a reply as it arrives."""
        arrived: R = encoding.decode_reply(type(operation), encoding.encode_reply(reply))
        self.kinds.add(type(operation))
        return arrived


class Recorder(Record):
    """Wraps the transport of a synchronous client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return repr(self._transport)

    @property
    def address(self) -> str:
        return self._transport.address

    def open(self) -> None:
        self._transport.open()

    def run(self, operation: Operation[R], timeout: float | None = None, *, retry: bool = True) -> R:
        return self.answered(operation, self._transport.run(self.sent(operation), timeout, retry=retry))

    @contextmanager
    def transaction(self, connection: Any = None) -> Iterator["RecordedScope"]:
        with self._transport.transaction(connection) as scope:
            yield RecordedScope(self, scope)

    @property
    def can_listen(self) -> bool:
        return self._transport.can_listen

    def listen(self, listener: HintListener) -> Hints:
        return self._transport.listen(listener)

    def close(self) -> None:
        self._transport.close()


class RecordedScope:
    """A transaction through a recorder."""

    def __init__(self, record: Record, scope: TransactionScope) -> None:
        self.connection = scope.connection
        self._record = record
        self._scope = scope

    def run(self, operation: Operation[R]) -> R:
        return self._record.answered(operation, self._scope.run(self._record.sent(operation)))

    def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        written = self._scope.write([self._record.pushed(push) for push in pushes])
        return [self._record.answered(push, of_one) for push, of_one in zip(pushes, written, strict=True)]

    def block(self) -> AbstractContextManager[None]:
        return self._scope.block()

    def note(self, undo: Callable[[], None]) -> None:
        self._scope.note(undo)

    def check(self) -> None:
        self._scope.check()


class AsyncRecorder(Record):
    """Wraps the transport of an asynchronous client."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return repr(self._transport)

    @property
    def address(self) -> str:
        return self._transport.address

    async def open(self) -> None:
        await self._transport.open()

    async def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        retry: bool = True,
    ) -> R:
        return self.answered(operation, await self._transport.run(self.sent(operation), timeout, retry=retry))

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator["AsyncRecordedScope"]:
        async with self._transport.transaction(connection) as scope:
            yield AsyncRecordedScope(self, scope)

    @property
    def can_listen(self) -> bool:
        return self._transport.can_listen

    def listen(self, listener: HintListener) -> Hints:
        return self._transport.listen(listener)

    async def close(self) -> None:
        await self._transport.close()


class AsyncRecordedScope:
    """An asynchronous transaction through a recorder."""

    def __init__(self, record: Record, scope: AsyncTransactionScope) -> None:
        self.connection = scope.connection
        self._record = record
        self._scope = scope

    async def run(self, operation: Operation[R]) -> R:
        return self._record.answered(operation, await self._scope.run(self._record.sent(operation)))

    async def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        written = await self._scope.write([self._record.pushed(push) for push in pushes])
        return [self._record.answered(push, of_one) for push, of_one in zip(pushes, written, strict=True)]

    def block(self) -> AbstractContextManager[None]:
        return self._scope.block()

    def note(self, undo: Callable[[], None]) -> None:
        self._scope.note(undo)

    async def check(self) -> None:
        await self._scope.check()
