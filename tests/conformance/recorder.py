"""A transport that wraps another and sees nothing but operations: what an HTTP client would be, without the network.

Each operation is encoded and decoded before it runs, and so is its reply. What passes the suite through it depends on
nothing that does not fit through the port.
"""

import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache, reduce
from operator import or_
from typing import Any, ClassVar, TypeVar, get_args

import msgspec

import penstock.broker.operations
from penstock.broker.async_transport import AsyncTransactionScope, AsyncTransport
from penstock.broker.hints import HintListener, Hints
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.transport import TransactionScope, Transport
from penstock.errors import InvalidInput

R = TypeVar("R")


def operations() -> list[type[Operation[Any]]]:
    """Return all types of operation."""
    rooms = [
        importlib.import_module(f"penstock.broker.operations.{room.name}")
        for room in pkgutil.iter_modules(penstock.broker.operations.__path__)
    ]
    found = {kind for room in rooms for _, kind in inspect.getmembers(room, inspect.isclass)}
    return sorted(
        (kind for kind in found if issubclass(kind, Operation) and kind not in (Operation, Repeatable)),
        key=lambda kind: kind.__name__,
    )


def reply_of(kind: type[Operation[Any]]) -> Any:
    """Return the type of the reply to operations of a type."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    (reply,) = get_args(base)
    return reply


@cache
def _request_decoder() -> "msgspec.msgpack.Decoder[Any]":
    # By its tag, as a server would that does not know what comes.
    return msgspec.msgpack.Decoder(reduce(or_, operations()))


@cache
def _reply_decoder(kind: type[Operation[Any]]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(reply_of(kind))


class Record:
    """What goes through a recorder."""

    # Types of operation that any recorder of this process has sent, and whose reply has come.
    kinds: ClassVar[set[type[Operation[Any]]]] = set()

    def sent(self, operation: Operation[R]) -> Operation[R]:
        """Return an operation as it arrives."""
        try:
            encoded = msgspec.msgpack.encode(operation)
            arrived: Operation[R] = _request_decoder().decode(encoded)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise InvalidInput(f"{operation!r:.200} cannot be sent: {error}") from error
        assert type(arrived) is type(operation)
        assert msgspec.msgpack.encode(arrived) == encoded
        return arrived

    def answered(self, operation: Operation[R], reply: R) -> R:
        """Return a reply as it arrives."""
        arrived: R = _reply_decoder(type(operation)).decode(msgspec.msgpack.encode(reply))
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

    def block(self) -> AbstractContextManager[None]:
        return self._scope.block()

    def note(self, undo: Callable[[], None]) -> None:
        self._scope.note(undo)

    async def check(self) -> None:
        await self._scope.check()
