"""What a client remembers of the queues' `spread`, so that a push without a partition costs one round trip."""

import time

# A change of `spread` moves keys to other partitions anyhow; for this long two clients may disagree where to.
_SECONDS = 5.0


class Spreads:
    """A small cache that forgets by itself."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def get(self, queue: str) -> int | None:
        """Return what is known, and still fresh."""
        spread, until = self._known.get(queue, (None, 0.0))
        return spread if until > time.monotonic() else None

    def put(self, queue: str, spread: int) -> int:
        """Remember a value, and return it."""
        self._known[queue] = (spread, time.monotonic() + _SECONDS)
        return spread

    def forget(self, queue: str) -> None:
        """Forget one queue."""
        self._known.pop(queue, None)
