"""Hints between processes: that something was pushed, so that those who wait elsewhere look sooner.

A hint is a NOTIFY, sent after the commit of the push, from a thread and on a connection of its own, and at most one for
each moment: NOTIFY takes a lock of the whole database when it commits, and a push must not. A hint may be lost, and
then the next look of whoever waits comes in its own time. So nothing is done about failures but to try again later.
All listeners of a process at one address share the thread. It listens only where somebody waits: a process that only
pushes would wake up for everybody else's hints.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any
from uuid import uuid4
from weakref import ref

import msgspec
import psycopg

from penstock import forks
from penstock.broker.hints import HintListener
from penstock.errors import PenstockError
from penstock.postgres.address import Address

CHANNEL = "penstock_pushed"
_DEBOUNCE = 0.05
_RECONNECT = 1.0
# A NOTIFY carries at most 8000 bytes.
_MOST_BYTES = 7000


class _Hint(msgspec.Struct):
    sender: str
    queues: list[str]


class Hints:
    """The hints of one listener."""

    def __init__(self, exchange: "Exchange", listener: HintListener) -> None:
        self._exchange = exchange
        self._listener = listener

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present."""
        return self._exchange.listening

    def listen(self) -> None:
        """Hear the hints of others, too."""
        self._exchange.listen()

    def announce(self, queues: Iterable[str]) -> None:
        """Tell other processes, in a moment."""
        self._exchange.announce(queues)

    def close(self) -> None:
        """Listen no more."""
        _leave(self._exchange, self._listener)


class Exchange:
    """The hints of this process to one address and from it: a daemon thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._id = uuid4().hex
        self._lock = threading.Lock()
        self._pushed: set[str] = set()
        # Not kept alive by this: a client that nobody has closed ends like any other object.
        self._listeners: list[ref[HintListener]] = []
        self._ending = False
        self._wanted = False
        # Whether the hints of others arrive at present.
        self.listening = False
        self._connection: psycopg.Connection[Any] | None = None
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)
        self._thread = threading.Thread(target=self._work, name="penstock-hints", daemon=True)
        self._thread.start()

    def add(self, listener: HintListener) -> None:
        """Tell one more."""
        with self._lock:
            self._listeners.append(ref(listener, self._lost))

    def remove(self, listener: HintListener) -> bool:
        """Tell one less; say whether it was the last, with whom the thread ends."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known() not in (listener, None)]
            self._ending = not self._listeners
        if self._ending:
            self._wake()
            self._thread.join(_RECONNECT)
        return self._ending

    def listen(self) -> None:
        """Hear the hints of others, too; not through a pooler, which would give them to somebody else."""
        if not self._wanted and not self._address.pooled:
            self._wanted = True
            self._wake()

    def end_if_alone(self) -> bool:
        """End if nobody is there to be told."""
        self._ending = self._ending or not self._all()
        return self._ending

    def announce(self, queues: Iterable[str]) -> None:
        """Tell other processes, in a moment."""
        with self._lock:
            idle = not self._pushed
            self._pushed.update(queues)
        if idle:
            self._wake()

    def let_go(self) -> None:
        """Leave the connection to the parent, in a process that was forked from it."""
        if self._connection is not None:
            forks.let_go(self._connection)

    def _lost(self, listener: "ref[HintListener]") -> None:
        # Called wherever objects are collected, so no lock may be taken here.
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._there.send(b"x")

    def _work(self) -> None:
        while not self._ending or self._pushed:
            try:
                with self._address.connect() as connection:
                    self._connection = connection
                    self._serve(connection)
            except (psycopg.Error, PenstockError, OSError):
                if self._ending:
                    break
                self.listening = False
                self._sleep([], _RECONNECT)
        self.listening = False
        self._here.close()
        self._there.close()

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        sent_at = float("-inf")
        while not self._ending:
            if not self._all() and _forget(self):
                return
            pause = max(0.0, sent_at + _DEBOUNCE - time.monotonic()) if self._pushed else None
            if self._wanted and not self.listening:
                pause = 0.0
            self._sleep([connection.fileno()], pause)
            if self._wanted and not self.listening:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                self.listening = True
            for notice in connection.notifies(timeout=0):
                self._heard(notice.payload)
            if self._pushed and time.monotonic() >= sent_at + _DEBOUNCE:
                self._send(connection)
                sent_at = time.monotonic()
        if self._pushed:
            # The last word of a process that pushes and ends.
            self._send(connection)

    def _sleep(self, others: list[int], seconds: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._here.fileno(), *others):
                selector.register(descriptor, selectors.EVENT_READ)
            selector.select(seconds)
        with contextlib.suppress(BlockingIOError):
            self._here.recv(4096)

    def _heard(self, payload: str) -> None:
        try:
            hint = msgspec.json.decode(payload, type=_Hint)
        except msgspec.MsgspecError:
            return
        if hint.sender != self._id:
            for listener in self._all():
                listener.heard(hint.queues)

    def _send(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            queues = list(self._pushed)
            self._pushed.clear()
        payload = msgspec.json.encode(_Hint(self._id, queues))
        while len(payload) > _MOST_BYTES:
            # Some of them will do: they are hints.
            queues = queues[: len(queues) // 2]
            payload = msgspec.json.encode(_Hint(self._id, queues))
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload.decode()))
        for listener in self._all():
            listener.sent()

    def _all(self) -> list[HintListener]:
        with self._lock:
            listeners = [known() for known in self._listeners]
        return [listener for listener in listeners if listener is not None]


_lock = threading.Lock()
_exchanges: dict[str, Exchange] = {}


@forks.reset_in_children
def _begin() -> None:
    """Forget the hints of the parent: their thread is not here."""
    global _lock
    _lock = threading.Lock()
    for exchange in _exchanges.values():
        exchange.let_go()
    _exchanges.clear()


def join(address: Address, listener: HintListener) -> Hints:
    """Exchange hints with other processes at an address; close them when they are no longer needed."""
    with _lock:
        exchange = _exchanges.get(address.dsn)
        if exchange is None:
            exchange = _exchanges[address.dsn] = Exchange(address)
        exchange.add(listener)
        return Hints(exchange, listener)


def _leave(exchange: Exchange, listener: HintListener) -> None:
    with _lock:
        if exchange.remove(listener):
            _remove(exchange)


def _forget(exchange: Exchange) -> bool:
    """End an exchange whose listeners were all collected; say whether it does, and nobody has come meanwhile."""
    with _lock:
        ends = exchange.end_if_alone()
        if ends:
            _remove(exchange)
        return ends


def _remove(exchange: Exchange) -> None:
    for dsn in [dsn for dsn, known in _exchanges.items() if known is exchange]:
        del _exchanges[dsn]
