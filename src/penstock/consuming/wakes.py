"""Pushes wake those who wait: in this process at once, whichever client they use, and elsewhere with a hint."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec

from penstock import forks
from penstock.broker.counters import Counters
from penstock.broker.hints import Hint, Hints, HintSource
from penstock.broker.operations.claiming import Nack, Release, ReleaseMany
from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.places import Place
from penstock.consuming.waiting import WaitGroups

O = TypeVar("O", bound=Operation[Any])  # noqa: E741

# Who waits for results waits for this queue, which cannot be one; a partition of it is the id of a message.
RESULTS = "~results"

_lock = threading.Lock()
_waits: dict[str, WeakSet[WaitGroups]] = {}


@forks.reset_in_children
def _begin() -> None:
    """Forget those who wait in the parent, and a lock that one of its threads may hold."""
    global _lock
    _lock = threading.Lock()
    _waits.clear()


def register(dsn: str, waits: WaitGroups) -> None:
    """Wake the waiters of a client when something is pushed to an address."""
    with _lock:
        _waits.setdefault(dsn, WeakSet()).add(waits)


def unregister(dsn: str, waits: WaitGroups) -> None:
    """Stop waking them."""
    with _lock:
        all_waits = _waits.get(dsn)
        if all_waits is not None:
            all_waits.discard(waits)
            if not all_waits:
                del _waits[dsn]


def wake(dsn: str, places: Iterable[Place]) -> None:
    """Say that something was pushed and can be seen; a place without a partition may be any of the queue."""
    if dsn not in _waits:
        return
    with _lock:
        all_waits = list(_waits.get(dsn, ()))
    pushed: dict[str, set[str]] = {}
    for place in places:
        pushed.setdefault(place.queue, set()).add(place.partition)
    for queue, partitions in pushed.items():
        for waits in all_waits:
            waits.wake(queue, partitions)


class Wakes:
    """What one client does about wakes: its own waiters are woken, and its pushes wake others."""

    def __init__(self, transport: HintSource, waits: WaitGroups, counters: Counters, notify: bool | None) -> None:
        self._notify = notify
        self._transport = transport
        self._waits = waits
        self._counters = counters
        self._followers: tuple[Callable[[Collection[str]], None], ...] = ()
        self.reset()
        waits.listening = self._listening

    @property
    def notify(self) -> bool:
        """Whether hints are exchanged with other processes: as it was set, or wherever they arrive."""
        return self._transport.can_listen if self._notify is None else self._notify

    @notify.setter
    def notify(self, on: bool | None) -> None:
        self._notify = on

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._joining = threading.Lock()
        self._registered_at: str | None = None
        self._hints: Hints | None = None

    def listen(self) -> None:
        """Hear of the pushes of other clients of this process, and of hints from others."""
        address = self._transport.address
        if self._registered_at != address:
            with self._joining:
                if self._registered_at is not None:
                    self._leave()
                self._registered_at = address
                register(address, self._waits)
        if self.notify:
            self._with_hints().listen()

    def with_hint(self, operation: O) -> O:
        """Let a push take the hint to other processes along, where it may.

        Not the first one: before it, it is not known how hints are sent.
        """
        if not isinstance(operation, Push) or self._hints is None or not self.notify:
            return operation
        hint = self._hints.carry([batch.place.queue for batch in operation.batches])
        return operation if hint is None else msgspec.structs.replace(operation, hint=hint)

    def pushed(self, places: Collection[Place], hint: Hint | None = None) -> None:
        """Wake those who wait for what was pushed; a place without a partition may be any of the queue.

        Other processes get a hint, unless the push took it along and sent it.
        """
        if _waits:
            wake(self._transport.address, places)
        if hint is not None:
            self._with_hints().carried(hint)
        if hint is not None and not hint.spared:
            self.sent()
        elif self.notify and places:
            self._with_hints().announce(place.queue for place in places)
        if self._followers:
            self._pass_on({place.queue for place in places})

    def ran(self, operation: Operation[Any]) -> None:
        """Wake those who wait for what an operation has brought, whoever asked for it."""
        match operation:
            case Push():
                self.pushed([batch.place for batch in operation.batches], operation.hint)
            case SettleItems():
                self.pushed([output.push.place for output in operation.outputs])
                if operation.results:
                    self.kept_results()
                self._waits.stir(look=True)
            case Nack() | Release() | ReleaseMany():
                # Failed or given back: it may be ready again, now or in a while.
                self._waits.stir(look=True)

    def kept_results(self) -> None:
        """Wake those who wait for results: some were kept."""
        self.pushed([Place(RESULTS, "")])

    def heard(self, queues: Sequence[str]) -> None:
        """Wake those who wait here for what another process has pushed."""
        self._counters.add("hints_received", 1)
        for queue in queues:
            self._waits.wake(queue, {""})
        self._pass_on(queues)

    @contextmanager
    def followed(self, follower: Callable[[Collection[str]], None]) -> Iterator[None]:
        """Tell somebody of every push, wherever it came from; called from any thread."""
        self._followers = (*self._followers, follower)
        try:
            self.listen()
            yield
        finally:
            self._followers = tuple(each for each in self._followers if each is not follower)

    def _pass_on(self, queues: Collection[str]) -> None:
        for follower in self._followers:
            follower(queues)

    def sent(self) -> None:
        """Count a hint to others."""
        self._counters.add("hints_sent", 1)

    def failed(self) -> None:
        """Count that hints did not get through."""
        self._counters.add("wake_up_errors", 1)

    def close(self) -> None:
        """Hear no more."""
        with self._joining:
            self._leave()

    def _leave(self) -> None:
        if self._registered_at is not None:
            unregister(self._registered_at, self._waits)
            self._registered_at = None
        if self._hints is not None:
            self._hints.close()
            self._hints = None

    def _listening(self) -> bool:
        hints = self._hints
        return hints is not None and hints.listening

    def _with_hints(self) -> Hints:
        hints = self._hints
        if hints is None:
            with self._joining:
                # Of several threads that come at the same time one joins.
                hints = self._hints = self._hints or self._transport.listen(self)
        return hints
