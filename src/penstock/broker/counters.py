"""What a client has done so far, in numbers that only grow: `client.stats()`."""

import threading

KINDS = ("push", "pop", "ack", "renew")
NAMES = (
    *(f"{kind}_batch_{what}" for kind in KINDS for what in ("count", "size")),
    "has_pending_checks",
    "has_pending_hits",
    "has_pending_misses",
    "sweeps",
    "hints_sent",
    "hints_received",
    "wake_up_errors",
)


class Counters:
    """Named sums, safe to use from any thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin at 0; with a new lock, since in a process that was forked nobody would release the old one."""
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(NAMES, 0)

    def add(self, name: str, amount: int) -> None:
        """Count."""
        with self._lock:
            self._sums[name] += amount

    def batched(self, kind: str, operations: int) -> None:
        """Count a batch, and how many callers' operations it was made of."""
        with self._lock:
            self._sums[f"{kind}_batch_count"] += 1
            self._sums[f"{kind}_batch_size"] += operations

    def read(self) -> dict[str, int]:
        """Return all of them as they are now."""
        with self._lock:
            return dict(self._sums)
