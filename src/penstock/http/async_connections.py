"""The connections of one client to one gateway: opened when needed, kept for the next request, a few at a time."""

import time
from collections import deque

from penstock.errors import PenstockError
from penstock.http.address import GatewayAddress
from penstock.http.answers import Answer, AnswerReader
from penstock.http.failures import exhausted
from penstock.http.streams import Slots, Stream, connect

# Below what the gateway keeps connections for, so that it is not the one that closes them.
_KEPT_FOR = 50.0


class AsyncConnections:
    """Up to so many connections. A process that is forked from this one has its own."""

    def __init__(self, address: GatewayAddress, size: int, connect_timeout: float, timeout: float) -> None:
        self._address = address
        self._size = size
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._idle: deque[Stream] = deque()
        self._closed = False
        self.begin()

    def begin(self) -> None:
        """Begin without connections, in a process that was forked."""
        while self._idle:
            self._idle.pop().let_go()
        self._slots = Slots(self._size)

    async def exchange(self, request: bytes, within: float | None = None) -> Answer:
        """Send a request and return the answer; a connection is waited for `within` seconds at most.

        Raises `NotSent` where the gateway has not got the request.
        """
        if self._closed:
            raise PenstockError("this client is closed; make a new one")
        patience = self._connect_timeout if within is None else min(self._connect_timeout, within)
        deadline = time.monotonic() + patience
        if not await self._slots.take(patience):
            raise exhausted(self._size)
        try:
            stream = self._kept() or await connect(self._address, deadline)
            return await self._exchange(stream, request)
        finally:
            self._slots.give()

    async def _exchange(self, stream: Stream, request: bytes) -> Answer:
        until = stream.used_at + self._timeout
        answer: Answer | None = None
        try:
            await stream.send(request, until)
            reader = AnswerReader()
            while answer is None:
                answer = reader.feed(await stream.receive(until))
            return answer
        finally:
            # Whatever ends the wait for an answer, a cancellation too, leaves a connection that nobody can use again.
            if answer is None or not answer.keep or self._closed:
                stream.close()
            else:
                stream.used_at = time.monotonic()
                self._idle.append(stream)

    def _kept(self) -> Stream | None:
        """Take the connection that was used last, if it is still good."""
        while self._idle:
            try:
                stream = self._idle.pop()
            except IndexError:
                # Another thread was faster.
                return None
            now = time.monotonic()
            if now - stream.used_at < _KEPT_FOR and stream.alive:
                stream.used_at = now
                return stream
            stream.close()
        return None

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
