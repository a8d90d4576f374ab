"""A transport that wraps another, and times what it runs."""

import time
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from penstock.broker.async_transport import AsyncTransactionScope, AsyncTransport
from penstock.broker.hints import HintListener, Hints
from penstock.broker.operations.operation import Operation
from penstock.errors import PenstockError
from penstock.gateway.monitoring.instruments import SELECTS, Instruments

R = TypeVar("R")


class Measured:
    """Counts operations and their failures, and times those that select work."""

    def __init__(self, transport: AsyncTransport, instruments: Instruments) -> None:
        self._transport = transport
        self._instruments = instruments

    def __repr__(self) -> str:
        return repr(self._transport)

    @property
    def address(self) -> str:
        """What identifies the broker within this process."""
        return self._transport.address

    async def open(self) -> None:
        """Find the broker."""
        await self._transport.open()

    async def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,  # noqa: ASYNC109 - for the connection, and not for the whole
        *,
        retry: bool = True,
    ) -> R:
        """Run an operation, and measure it."""
        name = type(operation).__name__
        self._instruments.operations.labels(name).inc()
        began = time.perf_counter()
        try:
            return await self._transport.run(operation, timeout, retry=retry)
        except PenstockError as error:
            self._instruments.failed_operations.labels(name, error.code).inc()
            raise
        finally:
            if name in SELECTS:
                self._instruments.selection_seconds.labels(name).observe(time.perf_counter() - began)

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[AsyncTransactionScope]:
        """Begin a transaction."""
        return self._transport.transaction(connection)

    @property
    def can_listen(self) -> bool:
        """Whether hints of other processes arrive here."""
        return self._transport.can_listen

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes."""
        return self._transport.listen(listener)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()
