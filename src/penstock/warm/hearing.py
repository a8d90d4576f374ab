"""Hears when something is loaded into a window, for those who wait: a thread that is subscribed to one channel."""

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import ref

from penstock.broker.hints import Hint, HintListener, Hints
from penstock.errors import PenstockError
from penstock.valkey.address import Address
from penstock.valkey.connecting import connect_running, load_driver

if TYPE_CHECKING:
    import valkey

log = logging.getLogger("penstock.warm")

_CHANNELS = "penstock:{*}:loaded"
_LOOK_EVERY = 1.0


class WarmHints:
    """The hints of one listener: those of the transport that is wrapped, and those of windows."""

    def __init__(self, hints: Hints, listener: HintListener, address: Address) -> None:
        self._hints = hints
        self._listener = ref(listener)
        self._address = address
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present."""
        return self._hints.listening

    def listen(self) -> None:
        """Hear the hints of others, too; until then hints are only sent."""
        self._hints.listen()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_hear, args=(self._listener, self._address, self._ended), name="penstock-loaded", daemon=True
            )
            self._thread.start()

    def announce(self, queues: Iterable[str]) -> None:
        """Say that something was pushed to these queues, in a moment."""
        self._hints.announce(queues)

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Return the hint for a push to take along; None where it is announced afterwards."""
        return self._hints.carry(queues)

    def carried(self, hint: Hint) -> None:
        """Take note that the push that took a hint along has committed."""
        self._hints.carried(hint)

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()
        self._hints.close()


def _hear(listener: "ref[HintListener]", address: Address, ended: threading.Event) -> None:
    while not ended.is_set() and listener() is not None:
        with contextlib.suppress(PenstockError, OSError, *_driver_errors()):
            client = connect_running(address, call_timeout=10.0)
            if client is not None:
                with contextlib.closing(client):
                    _follow(client, listener, ended)
        ended.wait(_LOOK_EVERY)


def _follow(client: "valkey.Valkey", listener: "ref[HintListener]", ended: threading.Event) -> None:
    subscription: Any = client.pubsub(ignore_subscribe_messages=True)
    subscription.psubscribe(_CHANNELS)
    while not ended.is_set():
        message = subscription.get_message(timeout=_LOOK_EVERY)
        hearer = listener()
        if hearer is None:
            return
        if message is not None:
            hearer.heard([message["data"].decode()])


def _driver_errors() -> tuple[type[Exception], ...]:
    load_driver()
    from valkey.exceptions import ValkeyError

    return (ValkeyError,)
