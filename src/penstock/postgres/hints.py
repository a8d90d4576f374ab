"""Hints between processes: through Valkey where there is one, else by NOTIFY.

NOTIFY takes a lock of the whole database when it commits, and holds it until the disk has it. So most pushes leave that
to a thread, which sends it after the commit on a connection of its own, one for each moment at most. A push that finds
a group asleep takes its hint along instead: who waits hears of it sooner. Valkey has no such lock. Who waits listens on
both: what the database itself has to say comes by NOTIFY, and so does what is pushed while a sender cannot reach it.
All listeners of a process at one address share its threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from penstock import forks, valkey
from penstock.broker.hints import Hint, HintListener
from penstock.errors import Unavailable
from penstock.hinting import Exchange, Link, Listeners
from penstock.postgres.address import Address
from penstock.postgres.statements.pushing import CHANNEL, MOST_HINT_BYTES

# After a push that took its hint along, others do not for as long as it took, and so many times as long as it took more
# than the quickest of late: it waited for other processes then, which hold the lock. At most for so many seconds.
_WAITED, _LONGEST_PAUSE = 8.0, 0.05
# By how much the quickest is forgotten with each.
_FORGOTTEN = 1.02
# To take a hint along costs a little, although nobody has to be woken: not for so many times as long as that push took.
_SPARED = 4.0


class Hints:
    """The hints of one listener."""

    def __init__(self, exchanges: "Exchanges", listener: HintListener) -> None:
        self._exchanges = exchanges
        self._listener = listener

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present."""
        return self._exchanges.listening

    def listen(self) -> None:
        """Hear the hints of others, too."""
        self._exchanges.listen()

    def announce(self, queues: Iterable[str]) -> None:
        """Tell other processes, in a moment."""
        self._exchanges.announce(queues)

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Return the hint for a push to take along in its own transaction; None where it is announced afterwards."""
        return self._exchanges.carry(queues)

    def carried(self, hint: Hint) -> None:
        """Take note that the push that took a hint along has committed."""
        self._exchanges.carried(hint)

    def close(self) -> None:
        """Listen no more."""
        _leave(self._exchanges, self._listener)


class Exchanges:
    """The ways by which hints come and go at one address."""

    def __init__(self, address: Address) -> None:
        self._listeners = Listeners()
        self._pooled = address.pooled
        self._notify = NotifyExchange(address, self._listeners, self._forget)
        self._valkey: valkey.HintExchange | None = None
        found = valkey.find(address.settings) if address.has_valkey else None
        if found is not None:
            self._valkey = valkey.HintExchange(found, address.database, self._listeners, self._forget, self._notify)

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present, by the way that others take as far as is known."""
        return self._valkey.listening if self._valkey else self._notify.listening

    def listen(self) -> None:
        """Hear the hints of others, too; not through a pooler, which would give them to somebody else."""
        if not self._pooled:
            self._notify.listen()
        if self._valkey:
            self._valkey.listen()

    def announce(self, queues: Iterable[str]) -> None:
        """Tell other processes, in a moment."""
        if self._valkey and self._valkey.takes_hints:
            self._valkey.announce(queues)
        else:
            self._notify.announce(queues)

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Return the hint for a push to take along; None where Valkey takes it, or another push has just done so."""
        if self._valkey and self._valkey.takes_hints:
            return None
        return self._notify.carry(queues)

    def carried(self, hint: Hint) -> None:
        """Take note that the push that took a hint along has committed."""
        self._notify.carried(hint)

    def add(self, listener: HintListener) -> None:
        """Tell one more."""
        self._listeners.add(listener)

    def remove(self, listener: HintListener) -> bool:
        """Tell one less; say whether it was the last, with whom the threads end."""
        self._listeners.remove(listener)
        return self.end_if_alone()

    def end_if_alone(self) -> bool:
        """End if nobody is there to be told."""
        if self._listeners.all():
            return False
        # Valkey's ends the other one afterwards.
        next(self._ways()).begin_to_end()
        return True

    def wait(self) -> None:
        """Wait for the end, but not for long."""
        for exchange in self._ways():
            exchange.wait()

    def let_go(self) -> None:
        """Leave the connections to the parent, in a process that was forked from it."""
        for exchange in self._ways():
            exchange.let_go()

    def _ways(self) -> Iterator[Exchange]:
        if self._valkey:
            yield self._valkey
        yield self._notify

    def _forget(self) -> bool:
        """End when all listeners were collected; say whether it does, and nobody has come meanwhile."""
        with _lock:
            ends = self.end_if_alone()
            if ends:
                _remove(self)
            return ends


class Pace:
    """How often the pushes of this process take a hint along: one at a time, with pauses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = self._next = float("-inf")
        self._quickest = float("inf")

    def begin(self) -> bool:
        """Say whether a push may take a hint along now; it does so then."""
        now = self._clock()
        with self._lock:
            if now < self._next:
                return False
            # Until it is told that this push has ended, as it is not if it fails.
            self._began, self._next = now, now + _LONGEST_PAUSE
            return True

    def end(self, *, spared: bool) -> None:
        """Take note that a push with a hint has committed, and whether it did not send it."""
        now = self._clock()
        with self._lock:
            took = now - self._began
            self._quickest = min(took, _FORGOTTEN * self._quickest)
            pause = _SPARED * took if spared else took + _WAITED * (took - self._quickest)
            self._next = min(self._next, now + pause)


class NotifyExchange(Exchange):
    """Hints by NOTIFY."""

    debounce = 0.02
    most_bytes = MOST_HINT_BYTES

    def __init__(self, address: Address, listeners: Listeners, is_forgotten: Callable[[], bool]) -> None:
        self._address = address
        self._pace = Pace()
        super().__init__(listeners, is_forgotten)

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Return a hint for a push to take along; None if one did just now, or does."""
        return Hint(self.id, list(queues)) if self._pace.begin() else None

    def carried(self, hint: Hint) -> None:
        """Take note that the push that took a hint along has committed."""
        self._pace.end(spared=hint.spared)

    def _connect(self) -> Link:
        return _Connection(self._address.connect())


class _Connection:
    """A connection to PostgreSQL that carries hints."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def fileno(self) -> int:
        with _broken():
            return self._connection.fileno()

    def listen(self) -> None:
        with _broken():
            self._connection.execute(f"LISTEN {CHANNEL}".encode())

    def receive(self) -> list[str]:
        with _broken():
            return [notice.payload for notice in self._connection.notifies(timeout=0)]

    def send(self, payload: bytes) -> None:
        with _broken():
            self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload.decode()))

    def close(self) -> None:
        self._connection.close()

    def let_go(self) -> None:
        """Do nothing: a forked process lets go of every connection to PostgreSQL."""


@contextlib.contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise Unavailable("the connection for hints is broken") from error


_lock = threading.Lock()
_exchanges: dict[tuple[str, str | None], Exchanges] = {}


@forks.reset_in_children
def _begin() -> None:
    """Forget the hints of the parent: their threads are not here."""
    global _lock
    _lock = threading.Lock()
    for exchanges in _exchanges.values():
        exchanges.let_go()
    _exchanges.clear()


def join(address: Address, listener: HintListener) -> Hints:
    """Exchange hints with other processes at an address; close them when they are no longer needed."""
    with _lock:
        place = (address.dsn, address.settings.valkey_url)
        exchanges = _exchanges.get(place)
        if exchanges is None:
            exchanges = _exchanges[place] = Exchanges(address)
        exchanges.add(listener)
        return Hints(exchanges, listener)


def _leave(exchanges: Exchanges, listener: HintListener) -> None:
    with _lock:
        last = exchanges.remove(listener)
        if last:
            _remove(exchanges)
    if last:
        exchanges.wait()


def _remove(exchanges: Exchanges) -> None:
    for place in [place for place, known in _exchanges.items() if known is exchanges]:
        del _exchanges[place]
