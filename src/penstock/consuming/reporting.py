"""What a client counts of its own work, and when it reports it: additions per batch, and no input or output.

Totals only grow, and a report takes what they have grown by since the last one that arrived. A report that did not
arrive changes nothing, so its counts are in the next one.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker.health import ConsumerHealth, GroupHealth, GroupVerdict
from penstock.broker.metrics import Measured, SampleStep
from penstock.broker.operations.health import ReportHealth
from penstock.broker.operations.metrics import RecordMetrics
from penstock.consuming.breaker import BreakerSettings, BreakerState
from penstock.consuming.tallies import COUNTS, URGENT, Histogram, Tally

# How often it is seen whether a report is due.
TICK = 5.0
# At least so often a consumer says that it is there; so is what little it did reported.
HEARTBEAT = 30.0
# So many messages are worth a report at every tick: then reports are less than a hundredth of what is written for them.
_WORTH_A_REPORT = 1000
# The share of errors from which on a consumer is degraded.
_DEGRADED = 0.1
# What waits is sampled so often.
SAMPLE = 15.0
# Counts are recorded so often where much was done, and where little was.
MEASURE = 60.0
_MEASURE_LITTLE = 300.0
# So many batches are much: what is recorded of them is less than a hundredth of what was written for them.
_MUCH = 300
# How many groups a consumer names that consumes for very many.
_MOST_NAMES = 100


class Reports:
    """The tallies of one client, and when they are reported."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, enabled: bool = True) -> None:
        self.now = now
        # Called when there is something to report, or something that cannot wait.
        self.begin: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self.enabled = enabled
        self.kind = "consumer"
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self.lock = threading.RLock()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._number = 0
        self._reported_at = float("-inf")
        self._tried_at = float("-inf")
        self._urgent = False
        self._known = False
        self._zero = (0, 0)
        self._names: list[str] = []
        self._pushed: dict[str, list[int]] = {}
        self._measured_at: float | None = None
        self._sample_at = self.now() + SAMPLE

    def tally(self, queue: str, group: str) -> Tally:
        """Return the tally of a group."""
        found = self._tallies.get((queue, group))
        if found is None:
            with self.lock:
                found = self._tallies.setdefault((queue, group), Tally(queue, group, self))
        return found

    def enter(self, queue: str, group: str) -> Tally:
        """Say that a loop begins to consume for a group."""
        tally = self.tally(queue, group)
        with self.lock:
            is_first = not any(other.loops for other in self._tallies.values())
            tally.loops += 1
            if self._tried_at == float("-inf"):
                # A loop that ends at once reports at its end alone.
                self._tried_at = self.now()
        if self.enabled:
            self.begin()
            if is_first:
                # It may be waiting, for minutes, to record what was pushed.
                self.wake()
        return tally

    def visit(self, queue: str, group: str) -> Tally | None:
        """Return the tally of a group for a batch that no loop has taken; None if nothing is counted."""
        if not self.enabled:
            return None
        with self.lock:
            if self._tried_at == float("-inf"):
                self._tried_at = self.now()
        self.begin()
        return self.tally(queue, group)

    def leave(self, tally: Tally) -> None:
        """Say that a loop has ended."""
        with self.lock:
            tally.loops -= 1

    def pushed(self, queue: str, count: int) -> None:
        """Count messages that were pushed."""
        if not self.enabled:
            return
        with self.lock:
            known = self._pushed.get(queue)
            if known is None:
                known = self._pushed[queue] = [0, 0, 0, 0]
            known[0] += count
            known[1] += 1
            begin, self._measured_at = self._measured_at is None, self._measured_at or self.now()
        if begin:
            self.begin()

    def report_soon(self) -> None:
        """Report soon."""
        if not self._urgent:
            self._urgent = True
            self.wake()

    def due_in(self) -> float | None:
        """Return in how many seconds to look whether there is something to report; None when nobody consumes."""
        if not self.enabled:
            return None
        with self.lock:
            if not any(tally.loops or tally.reported != _both(tally) for tally in self._tallies.values()):
                # Nobody consumes. What was pushed is recorded when that is due.
                if not (much := self._uncounted()):
                    self._measured_at = None
                    return None
                # It may become much meanwhile, so it is looked at as often as that would be recorded.
                return min(MEASURE, max(0.0, _measured_every(much) - self._measured_for()))
            if self._urgent and not self._known:
                # Something fails, and only the answer to a report says when the breaker is to open.
                return 0.0
            pause = TICK if self._known and not self._urgent else URGENT
            return max(0.0, self._tried_at + pause - self.now())

    def report(self, consumer: str, *, ending: bool = False) -> ReportHealth | None:
        """Return what is to be reported now; None if nothing is."""
        with self.lock:
            now = self.now()
            self._tried_at = now
            tallies = [tally for tally in self._tallies.values() if ending or tally.loops or _both(tally) != (0, 0)]
            if not self.enabled or not tallies or (ending and not self._known and not any(map(_unsaid, tallies))):
                return None
            if not (ending or self._urgent or self._is_due(tallies, now)):
                return None
            self._urgent = False
            self._number += 1
            groups = [
                GroupHealth(
                    tally.queue,
                    tally.group,
                    tally.succeeded - tally.reported[0],
                    tally.failed - tally.reported[1],
                    tally.trailing,
                    tally.last_error,
                )
                for tally in tallies
            ]
            return ReportHealth(
                consumer, self._number, self._health(tallies, now, ending), groups, None, self._about(tallies)
            )

    def metrics(self, *, ending: bool = False) -> RecordMetrics | None:
        """Return what is to be recorded now; None if nothing is."""
        with self.lock:
            much = self._uncounted()
            if self._measured_at is None:
                self._measured_at = self.now()
            if not self.enabled or not much or not (ending or self._measured_for() >= _measured_every(much)):
                return None
            values = [
                Measured(queue, metric, value)
                for queue, (messages, batches, counted, sent) in self._pushed.items()
                for metric, value in (("pushed", messages - counted), ("push_batches", batches - sent))
                if value
            ]
            for tally in self._tallies.values():
                grown = [now_ - then for now_, then in zip(tally.counts(), tally.recorded, strict=True)]
                values += [
                    Measured(tally.queue, metric, value, tally.group)
                    for metric, value in zip(COUNTS, grown, strict=True)
                    if value
                ]
                for name, times in (("handling", tally.recent), ("wait", tally.waiting)):
                    for share in (50, 99):
                        if (found := times.quantile(share / 100)) is not None:
                            values.append(Measured(tally.queue, f"{name}_p{share}_us", found, tally.group))
            return RecordMetrics(values)

    def recorded(self, record: RecordMetrics) -> None:
        """Take note of values that arrived."""
        with self.lock:
            self._measured_at = self.now()
            names = {name: place for place, name in enumerate(COUNTS)}
            for value in record.values:
                if value.group is None:
                    self._pushed[value.queue][2 if value.metric == "pushed" else 3] += value.value
                    continue
                tally = self._tallies[value.queue, value.group]
                if value.metric in names:
                    known = list(tally.recorded)
                    known[names[value.metric]] += value.value
                    tally.recorded = tuple(known)
                else:
                    tally.recent, tally.waiting = Histogram(), Histogram()

    def sampling(self) -> bool:
        """Say whether to sample what waits: whoever consumes does so, if nobody did for a while."""
        with self.lock:
            consuming = any(tally.loops for tally in self._tallies.values())
            return self.enabled and consuming and self.now() >= self._sample_at

    def sampled(self, step: SampleStep | None) -> None:
        """Take note of a step of a sample; one that is not complete goes on at the next tick."""
        with self.lock:
            self._sample_at = self.now() + (SAMPLE if step is None or step.complete else 0.0)

    def _measured_for(self) -> float:
        """Return for how many seconds there is something that is not recorded."""
        return 0.0 if self._measured_at is None else self.now() - self._measured_at

    def _uncounted(self) -> int:
        """Return how many batches there were that are not recorded."""
        pushed = sum(batches - sent for _, batches, _, sent in self._pushed.values())
        taken = sum(tally.batches - tally.recorded[1] for tally in self._tallies.values())
        return pushed + taken or int(any(tally.counts()[:4] != tally.recorded[:4] for tally in self._tallies.values()))

    def reported(self, report: ReportHealth, verdicts: list[GroupVerdict]) -> None:
        """Take note of a report that arrived, and of what the broker said."""
        with self.lock:
            self._known = True
            self._reported_at = self.now()
            for group in report.groups:
                tally = self._tallies[group.queue, group.group]
                tally.reported = tally.reported[0] + group.succeeded, tally.reported[1] + group.failed
                if tally.handling.total > 10_000:
                    tally.handling.halve()
            for verdict in verdicts:
                tally = self._tallies[verdict.queue, verdict.group]
                tally.group_state = verdict.state
                tally.breaker.settings = BreakerSettings(
                    verdict.errors, verdict.rate, verdict.window, verdict.pause, verdict.pause_max
                )
            if any(verdict.reset for verdict in verdicts):
                self._begin_anew()

    def _about(self, tallies: Sequence[Tally]) -> dict[str, Any] | None:
        """Say who this is and what it consumes, where that is news."""
        names = sorted(f"{tally.queue}/{tally.group}" for tally in tallies)
        if self._known and names == self._names:
            return None
        self._names = names
        return {"kind": self.kind, "host": socket.gethostname(), "pid": os.getpid(), "groups": names[:_MOST_NAMES]}

    def _begin_anew(self) -> None:
        """Do what an operator wants who resets the consumer."""
        for tally in self._tallies.values():
            tally.breaker.reset()
            tally.handling = Histogram()
            tally.trailing = 0
            tally.last_error = None
            tally.wake_watchers()
        succeeded = sum(tally.reported[0] for tally in self._tallies.values())
        failed = sum(tally.reported[1] for tally in self._tallies.values())
        self._zero = succeeded, failed

    def _is_due(self, tallies: Sequence[Tally], now: float) -> bool:
        if now - self._reported_at >= HEARTBEAT:
            return True
        news = sum(sum(_both(tally)) - sum(tally.reported) for tally in tallies)
        return news >= _WORTH_A_REPORT or any(tally.failed > tally.reported[1] for tally in tallies)

    def _health(self, tallies: Sequence[Tally], now: float, ending: bool) -> ConsumerHealth:
        succeeded = sum(tally.succeeded for tally in tallies) - self._zero[0]
        failed = sum(tally.failed for tally in tallies) - self._zero[1]
        news = [(tally.succeeded - tally.reported[0], tally.failed - tally.reported[1]) for tally in tallies]
        trailing = max((tally.trailing for tally in tallies), default=0)
        states = {tally.breaker.state(now) for tally in tallies}
        if ending:
            status = "gone"
        elif BreakerState.OPEN in states:
            status = "open"
        elif BreakerState.HALF_OPEN in states:
            status = "half_open"
        elif trailing or sum(bad for _, bad in news) > _DEGRADED * sum(good + bad for good, bad in news):
            status = "degraded"
        else:
            status = "healthy"
        handled = sum(tally.handling.total for tally in tallies)
        busy = sum(tally.busy for tally in tallies)
        every = sum(tally.succeeded + tally.failed for tally in tallies)
        p99 = [found for tally in tallies if (found := tally.handling.quantile(0.99)) is not None]
        failing = [tally.last_error for tally in tallies if tally.last_error is not None]
        return ConsumerHealth(
            status,
            max(0, succeeded),
            max(0, failed),
            trailing,
            round(1e6 * busy / every) if every and handled else None,
            max(p99, default=None),
            failing[-1] if failing else None,
        )


def _both(tally: Tally) -> tuple[int, int]:
    return tally.succeeded, tally.failed


def _unsaid(tally: Tally) -> bool:
    return tally.reported != _both(tally)


def _measured_every(batches: int) -> float:
    return MEASURE if batches >= _MUCH else _MEASURE_LITTLE
