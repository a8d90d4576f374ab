"""A thread that exchanges hints with other processes, by whatever carries them: NOTIFY, or Valkey's pub/sub.

A hint says that something was pushed, so that those who wait elsewhere look sooner. It may be lost, and then the next
look of whoever waits comes in its own time. So nothing is done about failures but to try again later. A thread listens
only where somebody waits: a process that only pushes would wake up for everybody else's hints.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import uuid4
from weakref import ref

import msgspec

from penstock.broker.hints import Hint, HintListener
from penstock.errors import PenstockError

log = logging.getLogger("penstock.hints")

_FIRST_RECONNECT, _RECONNECT = 0.05, 1.0
# Nothing to be made and closed for two descriptors that change now and then.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)


class Link(Protocol):
    """A connection that carries hints."""

    def fileno(self) -> int:
        """Return what becomes readable when something arrives; below 0: nothing does."""

    def listen(self) -> None:
        """Begin to hear the hints of others."""

    def receive(self) -> Iterable[str | bytes]:
        """Return what has arrived, without waiting."""

    def send(self, payload: bytes) -> None:
        """Tell all others."""

    def close(self) -> None:
        """Close the connection."""

    def let_go(self) -> None:
        """Leave the connection to the parent, in a process that was forked from it."""


class Listeners:
    """Those of this process who want to hear of hints at one address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Not kept alive by this: a client that nobody has closed ends like any other object.
        self._known: list[ref[HintListener]] = []
        # What to call when one of them is collected; it takes no lock.
        self.on_loss: list[Callable[[], None]] = []

    def add(self, listener: HintListener) -> None:
        """Tell one more."""
        with self._lock:
            self._known.append(ref(listener, self._lose))

    def remove(self, listener: HintListener) -> None:
        """Tell one less."""
        with self._lock:
            self._known = [known for known in self._known if known() not in (listener, None)]

    def all(self) -> list[HintListener]:
        """Return those who are there."""
        with self._lock:
            found = [known() for known in self._known]
        return [listener for listener in found if listener is not None]

    def _lose(self, listener: "ref[HintListener]") -> None:
        for call in self.on_loss:
            call()


class Exchange(ABC):
    """The hints of this process to one address and from it: a daemon thread."""

    # Seconds between two hints, and the bytes of one.
    debounce = 0.0
    most_bytes = 0

    def __init__(self, listeners: Listeners, is_forgotten: Callable[[], bool]) -> None:
        self.listeners = listeners
        self._is_forgotten = is_forgotten
        self.id = uuid4().hex
        self._lock = threading.Lock()
        self._pushed: set[str] = set()
        self._sent_at = float("-inf")
        self._ending = False
        self._wanted = False
        # Whether the hints of others arrive at present.
        self.listening = False
        self._link: Link | None = None
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)
        listeners.on_loss.append(self._wake)
        self._thread = threading.Thread(target=self._work, name="penstock-hints", daemon=True)
        self._thread.start()

    @abstractmethod
    def _connect(self) -> Link:
        """Open a connection."""

    def _failed(self, error: Exception) -> None:
        """Do what has to be done when there is no connection; the next one is tried later."""
        self.listening = False

    def listen(self) -> None:
        """Hear the hints of others, too."""
        if not self._wanted:
            self._wanted = True
            self._wake()

    def announce(self, queues: Iterable[str]) -> None:
        """Tell other processes, in a moment."""
        with self._lock:
            idle = not self._pushed
            self._pushed.update(queues)
        if idle:
            self._wake()

    def begin_to_end(self) -> None:
        """End soon, after the last word."""
        self._ending = True
        self._wake()

    def wait(self) -> None:
        """Wait for the end, but not for long."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_RECONNECT)

    def let_go(self) -> None:
        """Leave the connection to the parent, in a process that was forked from it."""
        if self._link is not None:
            self._link.let_go()

    def _take(self) -> list[str]:
        with self._lock:
            queues = list(self._pushed)
            self._pushed.clear()
        return queues

    def _has_work(self) -> bool:
        return self._wanted or bool(self._pushed)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._there.send(b"x")

    def _work(self) -> None:
        failures = 0
        while not self._ending or self._pushed:
            if not self._ending and not self._has_work():
                self._sleep([], None)
                self._end_if_forgotten()
                continue
            try:
                self._link = self._connect()
                failures = 0
                with contextlib.closing(self._link):
                    self._serve(self._link)
            except Exception as error:
                if not isinstance(error, PenstockError | OSError):
                    # Whatever it is, those who wait must go on to be woken.
                    log.exception("hints between processes failed, and begin anew")
                self._failed(error)
                if self._ending:
                    break
                for listener in self.listeners.all():
                    listener.failed()
                failures += 1
                self._sleep([], self._pause(error, failures))
                self._end_if_forgotten()
        self._finish()

    def _pause(self, error: Exception, failures: int) -> float:
        """Return how long to wait before the next connection, after so many failures."""
        return min(_RECONNECT, _FIRST_RECONNECT * 2.0 ** min(failures, 10))

    def _finish(self) -> None:
        """Let go of what the thread has used."""
        self.listening = False
        self._here.close()
        self._there.close()

    def _serve(self, link: Link) -> None:
        while not self._ending:
            if self._end_if_forgotten():
                break
            if self._wanted and not self.listening:
                link.listen()
                self.listening = True
            pause = max(0.0, self._sent_at + self.debounce - time.monotonic()) if self._pushed else self._patience()
            arrived = self._sleep([link.fileno()], pause)
            # First of all: somebody waits for it.
            if self._pushed and time.monotonic() >= self._sent_at + self.debounce:
                self._send(link)
                self._sent_at = time.monotonic()
            # Also where nothing can be seen to arrive: what came while a hint was sent is in the driver's hands.
            if arrived or self.listening:
                for payload in link.receive():
                    self._heard(payload)
        if self._pushed:
            # The last word of a process that pushes and ends.
            self._send(link)

    def _patience(self) -> float | None:
        """Return how long to wait for something to happen before looking at the connection; None: for ever."""
        return None

    def _end_if_forgotten(self) -> bool:
        if not self._ending and not self.listeners.all() and self._is_forgotten():
            self._ending = True
        return self._ending

    def _sleep(self, others: list[int], seconds: float | None) -> bool:
        """Sleep until woken, or for so many seconds, or until something arrives; say whether it has."""
        here = self._here.fileno()
        with _Selector() as selector:
            for descriptor in (here, *others):
                if descriptor >= 0:
                    selector.register(descriptor, selectors.EVENT_READ)
            found = {key.fd for key, _ in selector.select(seconds)}
        if here in found:
            with contextlib.suppress(BlockingIOError):
                self._here.recv(4096)
        return bool(found - {here})

    def _heard(self, payload: str | bytes) -> None:
        try:
            hint = msgspec.json.decode(payload, type=Hint)
        except (msgspec.MsgspecError, RecursionError):
            # Everybody who may log in can send anything here.
            return
        if hint.sender != self.id:
            for listener in self.listeners.all():
                listener.heard(hint.queues)

    def _send(self, link: Link) -> None:
        queues = self._take()
        try:
            link.send(Hint(self.id, queues).encode(self.most_bytes))
        except BaseException:
            with self._lock:
                self._pushed.update(queues)
            raise
        for listener in self.listeners.all():
            listener.sent()
