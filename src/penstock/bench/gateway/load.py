"""Requests over connections that stay open, as cheaply as Python can send them: what is measured is the gateway."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LEASE = re.compile(rb'"lease":"([^"]+)"')
_HEAD_END = b"\r\n\r\n"

Turn = Callable[["Connection", int], Awaitable[int]]


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what writes."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer whoever asked, once the answer is whole."""
        self._arrived += data
        end = self._arrived.find(_HEAD_END)
        if end < 0 or self._answer is None:
            return
        length = _LENGTH.search(self._arrived, 0, end)
        size = end + 4 + (int(length[1]) if length else 0)
        if len(self._arrived) >= size:
            answer = bytes(self._arrived[:size])
            del self._arrived[:size]
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail whoever waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the gateway closed the connection"))

    async def ask(self, request: bytes) -> bytes:
        """Send a request, and return the answer."""
        if self._transport is None:
            raise ConnectionError("there is no connection yet")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


def get(path: str) -> bytes:
    """Return a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes = b"") -> bytes:
    """Return a POST request with JSON."""
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}".encode() + body


def lease_in(answer: bytes) -> bytes | None:
    """Return the first lease in the answer of a pop."""
    found = _LEASE.search(answer)
    return found[1] if found else None


async def rate(host: str, port: int, connections: int, seconds: float, turn: Turn) -> float:
    """Return how many requests a second are answered, with so many connections at a time."""
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(Connection, host, port))[1] for _ in range(connections)]
    answered = 0
    began = time.perf_counter()
    until = began + seconds

    async def go(connection: Connection, number: int) -> None:
        nonlocal answered
        while time.perf_counter() < until:
            # Added afterwards: others count while this one waits.
            asked = await turn(connection, number)
            answered += asked

    try:
        await asyncio.gather(*(go(connection, number) for number, connection in enumerate(opened)))
        return answered / (time.perf_counter() - began)
    finally:
        for connection in opened:
            connection.close()


async def hold(host: str, port: int, polls: list[bytes], seconds: float, measure: Callable[[], float]) -> float:
    """Keep long polls waiting, and return how much `measure` grew in so many seconds."""
    loop = asyncio.get_running_loop()
    opened = []
    waiting = []
    for poll in polls:
        connection = (await loop.create_connection(Connection, host, port))[1]
        opened.append(connection)
        waiting.append(asyncio.ensure_future(connection.ask(poll)))
    # They begin with a look of their own.
    await asyncio.sleep(3)
    before = measure()
    await asyncio.sleep(seconds)
    grown = measure() - before
    for task in waiting:
        task.cancel()
    for connection in opened:
        connection.close()
    return grown
