"""How those who wait for messages share the work of looking.

All who wait with one client for the same (queue, partition, group) form one *wait group*. The one who came first looks
for all of them, at growing intervals: with a pop at first, and from a tenth of a second on with the cheap question
whether anything is pending. The others sleep. Whoever finds something wakes two more, so that a burst wakes as many as
it can feed and a single message wakes no crowd. A push in this process wakes as many as it has partitions.

Everybody who waits is sure of one look that began after they came; when one is due soon they share it. Nothing here
does any input or output: `step` says what to do next, and is told what came of it. So both clients wait alike.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum, auto
from math import floor
from typing import NamedTuple

from penstock.broker.infos import SweepResult

# Pauses between looks grow from the first to the longest. From CHECK_FROM on, only the check is made.
_FIRST, _GROWTH, _LONGEST = 0.0005, 2.0, 0.5
CHECK_FROM = 0.1
# Where nobody else's pushes are heard of, pauses are shorter for so long after something came.
_LATELY, _LONGEST_LATELY = 5.0, 0.1
# Those who come into a wait group that is known to be idle share a look, at most so often.
_SHARED_LOOK = 0.25
# A sweep is due when its predecessor said so, within these bounds; after something happened here, soon.
_SWEEP_SOONEST, _SWEEP_SOON, _SWEEP_LATEST = 0.05, 0.1, 1.0
# A client that nobody waits with goes on sweeping for so long after it did something.
_SWEEP_ON = 1.0

Clock = Callable[[], float]


class Key(NamedTuple):
    """What somebody waits for; without a partition, for any."""

    queue: str
    partition: str | None
    group: str


class Step(Enum):
    """What whoever waits does next."""

    POP = auto()
    CHECK = auto()
    SLEEP = auto()
    OVER = auto()


class Waiter:
    """One who waits."""

    __slots__ = ("deadline", "entered", "group", "signal", "woken")

    def __init__(self, group: "WaitGroup", entered: float, deadline: float, signal: Callable[[], None]) -> None:
        self.group = group
        self.entered = entered
        self.deadline = deadline
        self.signal = signal
        self.woken = False

    def wake(self) -> None:
        """Let it look at once."""
        self.woken = True
        self.signal()


class WaitGroup:
    """All who wait for the same (queue, partition, group)."""

    __slots__ = ("idle", "key", "look_at", "looked_at", "pause", "slowed_at", "waiters")

    def __init__(self, key: Key, now: float) -> None:
        self.key = key
        self.waiters: deque[Waiter] = deque()
        self.pause = _FIRST
        self.look_at = now
        # When the last look began that found nothing; idle: nothing has happened since.
        self.looked_at = float("-inf")
        self.slowed_at = float("-inf")
        self.idle = False

    def wake(self, count: int) -> None:
        """Wake some who have not been woken, those first who came first."""
        for waiter in self.waiters:
            if count <= 0:
                return
            if not waiter.woken:
                waiter.wake()
                count -= 1

    def look_by(self, moment: float) -> None:
        """See to it that somebody looks by a moment."""
        if moment < self.look_at:
            self.look_at = moment
            if self.waiters:
                self.waiters[0].signal()

    def found_nothing(self, began: float, now: float, longest: float) -> None:
        """Take note of a look in vain, and look less often, with pauses of `longest` at most."""
        self.looked_at = max(self.looked_at, began)
        self.idle = True
        # Several who looked at the same time count as one.
        if began >= self.slowed_at:
            self.slowed_at = now
            self.look_at = now + self.pause if self.pause < _LONGEST else _beat(now)
            self.pause = min(longest, self.pause * _GROWTH)


# Wait groups that have been idle for long look at the same moments, so that their checks are one call: see
# `batching.CheckJoiner`. Those of other processes look at others.
_PHASE = random.random() * _LONGEST  # noqa: S311


def _beat(now: float) -> float:
    """Return the next common moment, also where rounding puts `now` a little before the last one."""
    return (floor((now - _PHASE) / _LONGEST + 1e-6) + 1) * _LONGEST + _PHASE


class WaitGroups:
    """All wait groups of a client, and when it sweeps."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        # Called when a sweep is due earlier than it was before; it must not wait for anything.
        self.sweep_sooner: Callable[[], object] = lambda: None
        # Says whether the pushes of other processes are heard of.
        self.listening: Callable[[], bool] = lambda: False
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._lock = threading.RLock()
        self._groups: dict[Key, WaitGroup] = {}
        self._sweep_at = 0.0
        self._swept_at = float("-inf")
        self._stirred_at = float("-inf")
        self._found_at = float("-inf")

    def enter(self, key: Key, deadline: float, signal: Callable[[], None]) -> Waiter:
        """Begin to wait; `signal` is woken, from any thread, when there is a new step."""
        with self._lock:
            now = self._clock()
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = WaitGroup(key, now)
            waiter = Waiter(group, now, deadline, signal)
            group.waiters.append(waiter)
            if group.waiters[0] is not waiter:
                if group.idle:
                    group.look_by(max(now, group.looked_at + min(group.pause, _SHARED_LOOK)))
                else:
                    waiter.woken = True
            return waiter

    def has(self, key: Key) -> bool:
        """Say whether somebody waits for the same."""
        return key in self._groups

    def found(self) -> None:
        """Take note that somebody who did not wait found something."""
        self._found_at = self._clock()

    def leave(self, waiter: Waiter) -> None:
        """Wait no more: somebody else looks for the wait group, and takes over a wake that was not used."""
        with self._lock:
            group = waiter.group
            group.waiters.remove(waiter)
            if not group.waiters:
                if self._groups.get(group.key) is group:
                    del self._groups[group.key]
                return
            if waiter.woken:
                group.wake(1)
            group.waiters[0].signal()

    def step(self, waiter: Waiter, *, pending_check: bool) -> tuple[Step, float]:
        """Say what to do next, and for how many seconds in the case of SLEEP."""
        with self._lock:
            now = self._clock()
            group = waiter.group
            if waiter.woken:
                waiter.woken = False
                return Step.POP, 0.0
            if now >= waiter.deadline:
                return Step.OVER if group.looked_at >= waiter.entered else Step.POP, 0.0
            if group.waiters[0] is not waiter:
                return Step.SLEEP, waiter.deadline - now
            if now >= group.look_at:
                return Step.CHECK if pending_check and group.pause >= CHECK_FROM else Step.POP, 0.0
            return Step.SLEEP, min(group.look_at, waiter.deadline) - now

    def popped(self, waiter: Waiter, began: float, found: bool) -> None:
        """Take note of a pop: whoever found something wakes two others, who may find more."""
        with self._lock:
            now, group = self._clock(), waiter.group
            if found:
                self._found_at = now
                group.idle = False
                group.pause = _FIRST
                group.look_at = now + _FIRST
                for other in [each for each in group.waiters if each is not waiter and not each.woken][:2]:
                    other.wake()
                self._stir(now)
            else:
                group.found_nothing(began, now, self._longest(now))
                # It may have parked a partition, to be looked at soon.
                self._stir(now)

    def checked(self, waiter: Waiter, began: float, pending: bool) -> None:
        """Take note of a check."""
        with self._lock:
            group = waiter.group
            if pending:
                group.idle = False
                waiter.woken = True
            else:
                now = self._clock()
                group.found_nothing(began, now, self._longest(now))

    def now(self) -> float:
        """Return the time by which it all goes."""
        return self._clock()

    def sweep_in(self) -> float | None:
        """Return the seconds until the next sweep is due; None when this client consumes no more."""
        with self._lock:
            now = self._clock()
            if not self._groups and now > self._stirred_at + _SWEEP_ON:
                return None
            return max(0.0, self._sweep_at - now)

    def swept(self, sweep: SweepResult | None, *, all_due: bool = True) -> None:
        """Take note of a sweep (None: another process was at it, or it failed), and whether it did all that was due."""
        with self._lock:
            now = self._clock()
            self._swept_at = now
            worked = sweep is not None and sweep.woken + sweep.enrolled > 0
            if not all_due:
                self._sweep_at = now
            elif sweep is None or worked or sweep.trimmed:
                self._sweep_at = now + _SWEEP_SOON
            elif sweep.due_in is None:
                self._sweep_at = now + _SWEEP_LATEST
            else:
                self._sweep_at = now + min(max(sweep.due_in, _SWEEP_SOONEST), _SWEEP_LATEST)
            if worked:
                for group in self._groups.values():
                    group.idle = False
                    group.look_by(now)

    def stir(self, *, look: bool = False) -> None:
        """Take note that something happened here that may have set a timer, or made something ready again (`look`)."""
        with self._lock:
            now = self._clock()
            self._stir(now)
            if look:
                for group in self._groups.values():
                    group.look_by(now + _FIRST)

    def wake(self, queue: str, partitions: Collection[str]) -> None:
        """Wake those who wait for what was just pushed; '' among the partitions may be any."""
        if not self._groups:
            return
        with self._lock:
            now = self._clock()
            for group in self._groups.values():
                key = group.key
                if key.queue != queue or not (key.partition is None or {key.partition, ""} & set(partitions)):
                    continue
                group.idle = False
                group.pause = _FIRST
                group.look_by(now + _FIRST)
                group.wake(len(partitions) if key.partition is None else 1)

    def __len__(self) -> int:
        """How many wait."""
        with self._lock:
            return sum(len(group.waiters) for group in self._groups.values())

    def _longest(self, now: float) -> float:
        return _LONGEST_LATELY if now < self._found_at + _LATELY and not self.listening() else _LONGEST

    def _stir(self, now: float) -> None:
        self._stirred_at = now
        soon = max(now, self._swept_at + _SWEEP_SOON)
        if soon < self._sweep_at:
            self._sweep_at = soon
            self.sweep_sooner()
