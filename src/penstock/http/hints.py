"""Hints over HTTP: a thread that reads the gateway's stream of them. The gateway sends those of pushes by itself."""

import contextlib
import threading
import time
from collections.abc import Iterable
from weakref import ref

import msgspec

from penstock.broker.hints import Hint, HintListener
from penstock.errors import PenstockError
from penstock.http.address import API, GatewayAddress
from penstock.http.sockets import Stream, connect

_RECONNECT = 1.0
# The gateway says something at least three times as often.
_SILENCE = 45.0
_CONNECT = 10.0
_queues = msgspec.json.Decoder(list[str])


class GatewayHints:
    """The hints of one listener, through a gateway."""

    def __init__(self, address: GatewayAddress, listener: HintListener) -> None:
        self._address = address
        # Not kept alive by this: a client that nobody has closed ends like any other object.
        self._listener = ref(listener)
        self._ended = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stream: Stream | None = None
        self._listening = False

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present."""
        return self._listening

    def listen(self) -> None:
        """Hear the hints of others."""
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._ended.is_set():
                    self._thread = threading.Thread(target=self._work, name="penstock-hints", daemon=True)
                    self._thread.start()

    def announce(self, queues: Iterable[str]) -> None:
        """Say nothing: the gateway has told everybody when it pushed."""

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Let nothing be carried: the gateway sees to it."""
        return None

    def carried(self, hint: Hint) -> None:
        """Do nothing: nothing is carried."""

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_RECONNECT)

    def _work(self) -> None:
        while not self._ended.is_set() and self._listener() is not None:
            with contextlib.suppress(PenstockError, OSError, ValueError):
                self._follow()
            self._listening = False
            self._ended.wait(_RECONNECT)

    def _follow(self) -> None:
        """Read the stream until it ends."""
        stream = self._stream = connect(self._address, time.monotonic() + _CONNECT)
        try:
            stream.send(self._address.get(f"{API}/hints"), time.monotonic() + _CONNECT)
            arrived = b""
            while not self._ended.is_set():
                piece = stream.receive(time.monotonic() + _SILENCE)
                if not piece:
                    return
                *lines, arrived = (arrived + piece).split(b"\n")
                for line in lines:
                    self._heard(line.strip())
        finally:
            self._stream = None
            stream.close()

    def _heard(self, line: bytes) -> None:
        # What is no list is the head of the answer, the size of a chunk, or a sign of life.
        if line.startswith(b"["):
            self._listening = True
            listener = self._listener()
            with contextlib.suppress(msgspec.MsgspecError):
                queues = _queues.decode(line)
                if listener is not None and queues:
                    listener.heard(queues)
