"""Connections of an asynchronous client: open, send, receive, each until a moment of the monotonic clock."""

import asyncio
import contextlib
import socket
import time

from penstock.http.address import GatewayAddress
from penstock.http.failures import broken, timed_out, unreachable

_PIECE = 1 << 18
# Beyond this the transport's own buffer is waited for.
_MUCH = 1 << 16


class Stream:
    """A connection to a gateway."""

    def __init__(self, address: GatewayAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self.used_at = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether it can be used again: the other side has neither closed it nor said anything unasked."""
        return not (self._reader.at_eof() or self._writer.is_closing() or self._reader._buffer)  # type: ignore[attr-defined]

    async def send(self, data: bytes, until: float) -> None:
        """Send all of it."""
        try:
            self._writer.write(data)
            if len(data) > _MUCH:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._writer.drain()
        except TimeoutError:
            raise timed_out(self._address, until - self.used_at) from None
        except OSError as error:
            raise broken(self._address, error) from error

    async def receive(self, until: float) -> bytes:
        """Return what has arrived; nothing at the end."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                return await self._reader.read(_PIECE)
        except TimeoutError:
            raise timed_out(self._address, until - self.used_at) from None
        except OSError as error:
            raise broken(self._address, error) from error

    def close(self) -> None:
        """Close it, without waiting for the other side."""
        with contextlib.suppress(RuntimeError):
            # The loop may have ended before.
            self._writer.close()

    def let_go(self) -> None:
        """Give up this process's copy of a connection of its parent."""
        connection = self._writer.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection._sock.close() if hasattr(connection, "_sock") else connection.close()


async def connect(address: GatewayAddress, until: float) -> Stream:
    """Open a connection."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(max(0.0, until - began)):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=_PIECE)
    except TimeoutError as error:
        raise unreachable(address, error) from None
    except OSError as error:
        raise unreachable(address, error) from error
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Stream(address, reader, writer)


class Slots:
    """So many at a time."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)

    async def take(self, within: float) -> bool:
        """Wait for a slot; say whether there was one in time."""
        if not self._free.locked():
            await self._free.acquire()
            return True
        try:
            async with asyncio.timeout(within):
                await self._free.acquire()
        except TimeoutError:
            return False
        return True

    def give(self) -> None:
        """Give a slot back."""
        self._free.release()
