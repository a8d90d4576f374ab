"""What a process of the gateway counts and times itself, for Prometheus.

With several processes at one address a scrape reaches any of them. prometheus_client then shares counts through files
in the folder of PROMETHEUS_MULTIPROC_DIR, which must be set before it is imported: `penstock serve` does that.
"""

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from penstock.broker.counters import NAMES

PREFIX = "penstock"
# The operations that select work.
SELECTS = ("Pop", "PopMany", "AckAndPop")
SHARED = "PROMETHEUS_MULTIPROC_DIR"
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTS = {
    "push_batch_count": "Batches that pushes of several callers were joined to",
    "push_batch_size": "Pushes in these batches",
    "pop_batch_count": "Batches that pops of several callers were joined to",
    "pop_batch_size": "Pops in these batches",
    "ack_batch_count": "Batches that acknowledgements of several callers were joined to",
    "ack_batch_size": "Acknowledgements in these batches",
    "renew_batch_count": "Batches that renewals of several callers were joined to",
    "renew_batch_size": "Renewals in these batches",
    "has_pending_checks": "Checks whether something is pending",
    "has_pending_hits": "Checks that found something",
    "has_pending_misses": "Checks that found nothing",
    "sweeps": "Sweeps of due timers",
    "hints_sent": "Notifications sent after pushes",
    "hints_received": "Notifications received of the pushes of other processes",
    "wake_up_errors": "Failures of the connection that sends and receives notifications",
}


class Instruments:
    """The counters, gauges and histograms of one process."""

    def __init__(self) -> None:
        self._own = CollectorRegistry()
        self.requests = Counter(
            f"{PREFIX}_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self._own,
        )
        self.request_seconds = Histogram(
            f"{PREFIX}_http_request_seconds",
            "Time to answer a request, with the time that it asked to wait",
            ("method", "route"),
            buckets=_SLOW,
            registry=self._own,
        )
        self.in_progress = self._gauge("http_requests_in_progress", "Requests being answered")
        self.selection_seconds = Histogram(
            f"{PREFIX}_selection_seconds",
            "Time in which the database selects work: pops, by type of operation",
            ("operation",),
            buckets=_FAST,
            registry=self._own,
        )
        for operation in SELECTS:
            # There from the first scrape on, also where nobody pops.
            self.selection_seconds.labels(operation)
        self.operations = Counter(
            f"{PREFIX}_operations", "Operations run on the database", ("operation",), registry=self._own
        )
        self.failed_operations = Counter(
            f"{PREFIX}_failed_operations", "Operations that failed", ("operation", "code"), registry=self._own
        )
        self._batches = {name: Counter(f"{PREFIX}_{name}", _COUNTS[name], registry=self._own) for name in NAMES}
        self._counted = dict.fromkeys(NAMES, 0)
        self._pool = {
            name: self._gauge(f"pool_{name}", text)
            for name, text in {
                "used": "Connections to the database that are in use",
                "size": "Connections to the database that are open",
                "limit": "Connections to the database that may be open",
                "waiting": "Calls that wait for a connection",
            }.items()
        }
        self.listeners = self._gauge("event_listeners", "Callers that listen to events")

    def note_client(self, counts: Mapping[str, int], pool: Mapping[str, int]) -> None:
        """Take over what the client of this process has counted, and how its pool is used."""
        for name, count in counts.items():
            # A client that was made anew begins at 0.
            grown = count - self._counted[name] if count >= self._counted[name] else count
            self._batches[name].inc(grown)
            self._counted[name] = count
        for name, value in pool.items():
            self._pool[name].set(value)

    def registry(self) -> CollectorRegistry:
        """Return what to expose: of this process, or of all that serve the same address."""
        if SHARED not in os.environ:
            return self._own
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return shared

    def close(self) -> None:
        """Count no more for what this process held."""
        if SHARED in os.environ:
            mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self._own, multiprocess_mode="livesum")
