"""Who in this process waits at which address, so that a push here wakes them at once, whichever client they use."""

import threading
from collections.abc import Iterable
from weakref import WeakSet

from penstock.engine import forks
from penstock.engine.calls import Place
from penstock.engine.waiting import Hall

_lock = threading.Lock()
_halls: dict[str, WeakSet[Hall]] = {}


@forks.reset_in_children
def _begin() -> None:
    """Forget those who wait in the parent, and a lock that one of its threads may hold."""
    global _lock
    _lock = threading.Lock()
    _halls.clear()


def hang(dsn: str, hall: Hall) -> None:
    """Let a hall hear of pushes to an address."""
    with _lock:
        _halls.setdefault(dsn, WeakSet()).add(hall)


def take_down(dsn: str, hall: Hall) -> None:
    """Let it hear no more."""
    with _lock:
        halls = _halls.get(dsn)
        if halls is not None:
            halls.discard(hall)
            if not halls:
                del _halls[dsn]


def ring(dsn: str, places: Iterable[Place]) -> None:
    """Say that something was pushed and can be seen; a place without a partition may be any of the queue."""
    if dsn not in _halls:
        return
    with _lock:
        halls = list(_halls.get(dsn, ()))
    pushed: dict[str, set[str]] = {}
    for place in places:
        pushed.setdefault(place.queue, set()).add(place.partition)
    for queue, partitions in pushed.items():
        for hall in halls:
            hall.ring(queue, partitions)
