"""The protocol of a connection, with limits that uvicorn lacks: how long the head of a request may take, and its size;
and how long a caller may leave its answer unread.

A client that sends a byte now and then, or reads none, would otherwise hold a connection for ever.
"""

import socket
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.http.problems import MEDIA, Problem

HEAD_SECONDS = 15.0
HEAD_BYTES = 64 << 10
# A caller that takes nothing of its answer for so long is cut off.
WRITE_SECONDS = 30.0
# What may wait unread for a caller that listens to a stream, in this process and in the system.
STREAM_BYTES = 64 << 10
# Where a handler finds how to tell the connection that its answer is a stream.
STREAMING = "penstock.streaming"


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose next request does not begin, whose head does not end, or whose answer is not read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: TimerHandle | None = None
        self._head_size = 0
        self._in_head = False
        self._write_timer: TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what arrived; a head that is not whole has so long to become it."""
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_BYTES:
                self._refuse(431, "head_too_large", "the head of the request is too large", "Send fewer or less.")
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)
        elif self._head_timer is None and self.cycle is not None and self.cycle.response_complete:
            # Neither an empty line nor the rest of a body that was answered already begins a request, and uvicorn
            # has stopped to expect one.
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_head = True
        self._head_size = 0
        super().on_message_begin()
        self.scope["state"][STREAMING] = self._stream

    def on_headers_complete(self) -> None:
        """Stop the timer: from here on the body has a limit of its own."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with a request that cannot be read, in the form that all other problems have."""
        self._refuse(400, "bad_request", msg, "Send a request of HTTP/1.1.")

    def pause_writing(self) -> None:
        """Expect the caller to read."""
        super().pause_writing()
        if self._write_timer is None:
            self._unread = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._look_at_reader)

    def resume_writing(self) -> None:
        """Go on: it has read."""
        self._stop_write_timer()
        super().resume_writing()

    def _look_at_reader(self) -> None:
        """Cut off a caller that has read nothing meanwhile; one that is slow may go on."""
        self._write_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
        else:
            self._unread = unread
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._look_at_reader)

    def _stream(self) -> None:
        """Keep little for a caller that may listen for hours, so that it is seen soon when it does not read."""
        self.transport.set_write_buffer_limits(high=STREAM_BYTES)
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)

    def _refuse(self, status: int, code: str, detail: str, hint: str) -> None:
        title = code.replace("_", " ").capitalize()
        body = msgspec.json.encode(Problem(f"urn:penstock:{code}", title, status, detail, code, hint))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: {MEDIA}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
