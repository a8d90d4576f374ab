"""What a client counts for one group, and its circuit breaker there: additions per batch.

Lengths of time are kept in buckets, so that quantiles cost no list of what was measured.
"""

import math
import threading
from collections.abc import Callable
from typing import Protocol

from penstock.consuming.breaker import Breaker

# Reports that cannot wait for a tick are this far apart, at least.
URGENT = 0.5
# Four buckets for each doubling, from a microsecond to more than a day.
_BUCKETS = 160


class Reporting(Protocol):
    """Who reports what is counted."""

    # Held by whoever changes a tally.
    lock: threading.RLock

    @property
    def now(self) -> Callable[[], float]:
        """A clock, in seconds."""

    def report_soon(self) -> None:
        """Report soon."""


class Histogram:
    """Lengths of time in buckets that grow: a quantile is right to a fifth, and adding to one costs an addition."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.total = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count so many of one length."""
        bucket = int(4 * math.log2(seconds * 1e6)) if seconds > 1e-6 else 0
        self.counts[min(bucket, _BUCKETS - 1)] += count
        self.total += count

    def quantile(self, share: float) -> int | None:
        """Return the microseconds below which a share of them is; None if there are none."""
        if not self.total:
            return None
        left = share * self.total
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0 and count:
                return round(2 ** ((bucket + 1) / 4))
        return None

    def halve(self) -> None:
        """Let what was long ago count less."""
        self.counts = [count // 2 for count in self.counts]
        self.total = sum(self.counts)


COUNTS = ("delivered", "batches", "acked", "failed", "checks")


class Tally:
    """What one client did for one group, and its breaker. Whoever changes it holds the lock of its reporter."""

    def __init__(self, queue: str, group: str, reports: Reporting) -> None:
        self.queue = queue
        self.group = group
        self.breaker = Breaker()
        # How many loops consume for the group now.
        self.loops = 0
        self.delivered = self.batches = self.succeeded = self.failed = self.checks = 0
        self.busy = 0.0
        self.handling = Histogram()
        self.waiting = Histogram()
        self.trailing = 0
        self.last_error: str | None = None
        # What the broker said last of the breaker that all consumers of the group share.
        self.group_state = "closed"
        self._reports = reports
        # Told when the breaker opens or closes.
        self.watchers: list[Callable[[], None]] = []
        # How much of `succeeded` and `failed` was reported, and how much of all counts was recorded.
        self.reported = (0, 0)
        self.recorded: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.recent = Histogram()

    def counts(self) -> tuple[int, ...]:
        """Return all counts that are recorded, in the order of `COUNTS`."""
        return self.delivered, self.batches, self.succeeded, self.failed, self.checks

    def checked(self) -> None:
        """Count a check for pending messages."""
        self.checks += 1

    def took(self, count: int, waited: float | None) -> None:
        """Count a batch that was claimed, whose first message was `waited` seconds old."""
        with self._reports.lock:
            self.delivered += count
            self.batches += 1
            if waited is not None:
                self.waiting.add(max(0.0, waited))

    def handled(self, count: int, seconds: float | None, *, probe: bool = False, breaks: bool = True) -> None:
        """Count messages that were handled, and how long that took, if anybody knows.

        `breaks` - whether they were taken by a loop, which obeys the breaker.
        """
        reports = self._reports
        with reports.lock:
            self.busy += seconds or 0.0
            if count > 0:
                self.succeeded += count
                self.trailing = 0
                if seconds is not None:
                    self.handling.add(seconds / count, count)
                    self.recent.add(seconds / count, count)
                closed = breaks and self.breaker.succeeded(count, reports.now(), probe=probe)
                if closed:
                    self.wake_watchers()
                if closed or self.group_state != "closed":
                    reports.report_soon()
            elif probe:
                # Given back, or failed; a failure has ended the probe already.
                self.breaker.end_probe()

    def fail(
        self, error: str | None, *, probe: bool = False, seconds: float | None = None, breaks: bool = True
    ) -> None:
        """Count a message that failed; `breaks` as in `handled`."""
        reports = self._reports
        with reports.lock:
            self.failed += 1
            self.trailing += 1
            self.last_error = error
            if seconds is not None:
                self.busy += seconds
                self.handling.add(seconds)
            if breaks and self.breaker.failed(1, reports.now(), probe=probe):
                self.wake_watchers()
                reports.report_soon()
            elif self.group_state != "closed" or self.trailing in (1, self.breaker.settings.errors):
                reports.report_soon()

    def admit(self) -> tuple[float, bool]:
        """Return for how many seconds nothing may be taken, and else whether it is one message, as a probe."""
        if self.breaker.is_closed:
            return 0.0, False
        with self._reports.lock:
            now = self._reports.now()
            wait = self.breaker.wait(now)
            if wait > 0:
                return wait, False
            if self.breaker.begin_probe(now):
                return 0.0, True
            # Another one has the probe, or it has just closed.
            return (0.0, False) if self.breaker.is_closed else (URGENT, False)

    def wake_watchers(self) -> None:
        """Let those who claim ahead see that the breaker has changed."""
        for watcher in list(self.watchers):
            watcher()

    def forget(self, watcher: Callable[[], None]) -> None:
        """Tell somebody no more."""
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def no_probe(self) -> None:
        """Give the right to a probe back: there was nothing to take."""
        with self._reports.lock:
            self.breaker.end_probe()
