"""What a synchronous consumer does with threads and timers. `tasks` has the same names for an asynchronous one."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import forks
from penstock.broker.arguments import Seconds
from penstock.consuming.batch import Batch
from penstock.consuming.handlers import LAST_MOMENT, Handler
from penstock.consuming.renewing import Leased, first_pause, renew
from penstock.consuming.renewing import pause as pause_between

# How often somebody who waits in a thread looks whether to stop.
_STOP_LATENCY = 0.1


def pause(stop: threading.Event | None, seconds: float) -> bool:
    """Sleep until somebody says stop, or for so many seconds; say whether to stop."""
    # Not by waiting for the event: a signal handler that sets it could find its lock taken by this very thread.
    until = time.monotonic() + seconds
    while not (stopped := stop is not None and stop.is_set()) and (left := until - time.monotonic()) > 0:
        time.sleep(left if stop is None else min(left, _STOP_LATENCY))
    return stopped


def is_cancelled() -> bool:
    """Say that this thread is not cancelled: no thread can be."""
    return False


class Signal:
    """Wakes whoever waits, from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.give = self._event.set

    def wait(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait for the signal, or for so many seconds, or for a moment where somebody may say stop."""
        most = float("inf") if stop is None else _STOP_LATENCY
        self._event.wait(min(max(seconds, 0.0), most, threading.TIMEOUT_MAX))
        self._event.clear()


# How long the thread that renews waits for the next batch, in seconds.
_LINGER = 10.0


class Renewals:
    """Renews batches while they are in work. One daemon thread for all, which ends when there are none for long."""

    def __init__(self) -> None:
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process: what the parent has, the parent renews."""
        self._changed = threading.Condition()
        self._due: dict[Leased, float] = {}
        self._leases: dict[Leased, Seconds | None] = {}
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, batch: Leased, lease: Seconds | None) -> Iterator[None]:
        """Renew a batch until the body is done."""
        with self._changed:
            self._leases[batch] = lease
            due = self._due[batch] = time.monotonic() + first_pause(batch, lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-renewals", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                # Most batches are done long before: for each of them it would wake up in vain.
                self._wakes_at = due
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(batch, None)
                self._leases.pop(batch, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = {batch: self._leases[batch] for batch, moment in self._due.items() if moment <= now}
                if not due:
                    # No later than it was to wake up before, although that batch is done: the next one would wake it.
                    before = self._wakes_at if self._wakes_at > now else now + _LINGER
                    self._wakes_at = min(before, *self._due.values()) if self._due else before
                    self._changed.wait(self._wakes_at - now)
                    if not self._due and time.monotonic() >= self._wakes_at:
                        # The next batch begins another one; until then nobody may need it, the client being closed.
                        self._thread = None
                        return
                    continue
                for batch, lease in due.items():
                    self._due[batch] = now + pause_between(batch, lease)
            for batch, lease in due.items():
                self._renewed(batch, renew(batch, lease))

    def _renewed(self, batch: Leased, wait: float | None) -> None:
        with self._changed:
            # It may be settled by now.
            if batch in self._due:
                if wait is None:
                    del self._due[batch]
                else:
                    self._due[batch] = time.monotonic() + wait


class Background:
    """Work that is done beside the consumers: a daemon thread."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def runs_here(self) -> bool:
        """Whether this is the thread that does it."""
        return threading.current_thread() is self._thread

    def join(self, within: float | None = None) -> bool:
        """Wait for its end, for so many seconds; say whether it came."""
        # Not by joining the thread: until Python 3.13 an interrupted join takes its thread for ended.
        return self._ended.wait(within)

    def cancel(self) -> None:
        """Leave it alone: a thread cannot be cancelled."""

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()


class Sweeper:
    """Sweeps, or reports, beside the consumers of a client: a daemon thread, which ends when nobody consumes."""

    def __init__(
        self, due_in: Callable[[], float | None], sweep: Callable[[], bool], name: str = "penstock-sweeper"
    ) -> None:
        # `due_in` says in how many seconds to sweep, None for never; `sweep` whether to go on.
        self._due_in = due_in
        self._name = name
        self._sweep = sweep
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._lock = threading.Lock()
        self._signal = Signal()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ensure(self) -> None:
        """See to it that somebody sweeps."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Let it see that a sweep is due earlier."""
        self._signal.give()

    def close(self) -> None:
        """Sweep no more."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._signal.give()
            thread.join(LAST_MOMENT)

    def _work(self) -> None:
        try:
            while (seconds := self._next()) is not None:
                if seconds > 0:
                    self._signal.wait(seconds, None)
                elif not self._sweep():
                    return
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _next(self) -> float | None:
        """Return the seconds until the next sweep; None at the end, after which `ensure` starts another thread."""
        with self._lock:
            seconds = None if self._closed else self._due_in()
            if seconds is None:
                self._thread = None
            return seconds


class Worker:
    """One thread, and what it is at."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.handled = 0
        # Held for whatever decides who settles the batch. `Handling` uses these as they are, for each message.
        self.lock = threading.Lock()
        self.done = 0
        self.began = 0.0
        self.left_behind = False
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        """Begin to handle a batch."""
        with self.lock:
            self._batch = batch
            self.done = 0
            self.began = time.monotonic()

    def end(self) -> bool:
        """Handle no more of the batch; say whether it is ours to settle."""
        with self.lock:
            self._batch = None
            return not self.left_behind

    def late_at(self, patience: float) -> float | None:
        """Return when its handler has used up its time; None while none is called."""
        with self.lock:
            return None if self._batch is None else self.began + patience

    def take_from(self, began_before: float) -> tuple[Batch, int] | None:
        """Take its batch away, and how many messages of it are done, if its handler was called before a moment."""
        with self.lock:
            if self._batch is None or self.left_behind or self.began > began_before:
                return None
            self.left_behind = True
            # Its own loop neither renews it nor gives it back.
            self._batch.abandoned = True
            return self._batch, self.done
