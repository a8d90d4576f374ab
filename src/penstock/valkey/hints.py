"""Hints between processes through Valkey's pub/sub.

While Valkey cannot be reached, hints go the other way, and it is tried again: by those who wait all the time, by those
who only push when they have something to tell. An embedded Valkey is started by those who wait: who only pushes has
nobody to tell as long as it does not run.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock import forks
from penstock.errors import SetupError, ValkeyUnavailable
from penstock.hinting import Exchange, Link, Listeners
from penstock.valkey.address import Address
from penstock.valkey.connecting import PREFIX, connect_alone, failures

if TYPE_CHECKING:
    import valkey
    from valkey.client import PubSub

log = logging.getLogger("penstock.hints")

# A hint that takes longer goes by NOTIFY.
_CALL_TIMEOUT = 2.0
_RETRY = 1.0
_MENDING = 30.0
# Seconds of silence after which a connection is asked whether it is alive, and given up.
_SILENCE = 10.0


class HintExchange(Exchange):
    """Hints through the channel of one database."""

    # Cheap, but a consumer that is woken looks: at most so often by each process that pushes.
    debounce = 0.005
    most_bytes = 64 << 10

    def __init__(
        self,
        address: Address,
        database: str,
        listeners: Listeners,
        is_forgotten: Callable[[], bool],
        other_way: Exchange,
    ) -> None:
        self._address = address
        self._channel = f"{PREFIX}:hints:{database}"
        self._other_way = other_way
        # Unknown before the first attempt.
        self._up: bool | None = None
        self._reported = False
        self._asked = False
        self._tried_at = float("-inf")
        super().__init__(listeners, is_forgotten)

    @property
    def takes_hints(self) -> bool:
        """Whether to announce hints here: they are passed on if it fails."""
        if self._up is False and not self._wanted and time.monotonic() > self._tried_at + _RETRY:
            self._asked = True
            self._wake()
        return self._up is not False

    def _has_work(self) -> bool:
        return self._asked or super()._has_work()

    def _connect(self) -> Link:
        self._asked = False
        self._tried_at = time.monotonic()
        client = connect_alone(self._address, start=self._wanted, call_timeout=_CALL_TIMEOUT)
        self._up = True
        if self._reported:
            self._reported = False
            log.info("hints go through %s again", self._address.shown)
        return _Subscription(self._address, client, self._channel)

    def _failed(self, error: Exception) -> None:
        super()._failed(error)
        waits_for_a_listener = self._address.is_embedded and not self._wanted
        if not self._reported and not waits_for_a_listener and not self._ending:
            self._reported = True
            log.warning("hints go by NOTIFY and polling until Valkey is back: %s", error)
        self._up = False
        queues = self._take()
        if queues:
            self._other_way.announce(queues)

    def _pause(self, error: Exception, failures: int) -> float:
        # What somebody has to mend is not mended within a second, and each attempt leaves a line in a log.
        return _MENDING if isinstance(error, SetupError) else super()._pause(error, failures)

    def _patience(self) -> float | None:
        return _SILENCE if self.listening else None

    def _finish(self) -> None:
        super()._finish()
        self._address.close()
        # Not before: it has to send what could not be sent here.
        self._other_way.begin_to_end()


class _Subscription:
    """The connections to Valkey that carry hints: one to send, and one to listen."""

    def __init__(self, address: Address, client: "valkey.Valkey", channel: str) -> None:
        self._address = address
        self._client = client
        self._channel = channel
        self._pubsub: PubSub | None = None
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None

    def fileno(self) -> int:
        """Return the descriptor of the connection that listens."""
        return -1 if self._pubsub is None else _descriptor(self._pubsub.connection)

    def listen(self) -> None:
        """Subscribe, and wait until that is done."""
        with self._failures():
            self._pubsub = self._client.pubsub()
            self._pubsub.subscribe(self._channel)
            if self._pubsub.get_message(timeout=_CALL_TIMEOUT) is None:
                raise ValkeyUnavailable(f"{self._address.shown} did not answer within {_CALL_TIMEOUT:g} seconds")
            self._heard_at = time.monotonic()

    def receive(self) -> Iterable[bytes]:
        """Return what has arrived; ask for a sign of life after a long silence."""
        if self._pubsub is None:
            return []
        found = []
        with self._failures():
            while (message := self._pubsub.get_message(timeout=0)) is not None:
                self._heard_at, self._asked_at = time.monotonic(), None
                if message["type"] == "message":
                    found.append(message["data"])
            self._check_life(self._pubsub)
        return found

    def send(self, payload: bytes) -> None:
        """Publish a hint."""
        with self._failures():
            self._client.publish(self._channel, payload)

    def close(self) -> None:
        """Close both connections."""
        with contextlib.suppress(Exception):
            if self._pubsub is not None:
                self._pubsub.close()
            self._client.close()
            self._client.connection_pool.disconnect()

    def let_go(self) -> None:
        """Leave the connections to the parent."""
        for connection in (self._client.connection, self._pubsub and self._pubsub.connection):
            forks.let_go_of(_descriptor(connection))

    def _check_life(self, pubsub: "PubSub") -> None:
        now = time.monotonic()
        if self._asked_at is not None and now > self._asked_at + _CALL_TIMEOUT:
            raise ValkeyUnavailable(f"{self._address.shown} has said nothing for {now - self._heard_at:.0f} seconds")
        if self._asked_at is None and now > self._heard_at + _SILENCE:
            self._asked_at = now
            pubsub.ping()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        from valkey.exceptions import ValkeyError

        try:
            with failures(self._address):
                yield
        except ValkeyError as error:
            raise ValkeyUnavailable(f"{self._address.shown}: {error}") from error


def _descriptor(connection: object) -> int:
    """Return the descriptor of a connection, for which valkey-py has no public name."""
    sock = getattr(connection, "_sock", None)
    return -1 if sock is None else int(sock.fileno())
