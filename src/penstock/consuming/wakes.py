"""Who in this process waits at which address, so that a push here wakes them at once, whichever client they use."""

import threading
from collections.abc import Iterable
from weakref import WeakSet

from penstock import forks
from penstock.consuming.waiting import WaitGroups
from penstock.postgres.statements.calls import Place

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
