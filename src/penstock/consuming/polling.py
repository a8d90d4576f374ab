"""How a client looks for work, without doing any of it: where in the ready list to begin, and when to sweep.

Entries of the ready list that were taken leave dead index entries where the next pop would begin, and while somebody
holds a transaction open nothing removes them. So a client remembers how far it has seen the list taken, and begins
there. An entry that became visible late (its transaction was slower than its neighbours) lies before that; therefore
the mark trails by half a second, and every few seconds one pop begins at the very front and takes the mark back to what
it finds.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import uuid4

from penstock.broker.arguments import Seconds, patience
from penstock.broker.claims import Claim
from penstock.broker.infos import SweepResult
from penstock.errors import PenstockError

log = logging.getLogger("penstock")

_TRAIL = 0.5
_FRONT_EVERY = 5.0
_SWEEP_ALL_EVERY = 10.0


class ReadyCursor:
    """What one client has seen of the ready list of one group."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._seen: deque[tuple[float, int, int]] = deque()
        self._front_at = time.monotonic()

    def lows(self) -> list[int] | None:
        """Return where to begin, for each level of priority; None for the front."""
        now = time.monotonic()
        if now - self._front_at > _FRONT_EVERY:
            self._front_at = now
            return None
        while self._seen and self._seen[0][0] < now - _TRAIL:
            _, level, seq = self._seen.popleft()
            self._lows += [0] * (level - len(self._lows))
            self._lows[level - 1] = max(self._lows[level - 1], seq)
        return list(self._lows) or None

    def begin_at_front(self) -> None:
        """Let the next one look from the front: somebody has seen something there."""
        self._front_at = float("-inf")

    def took(self, claims: Iterable[Claim]) -> None:
        """Take note of the entries that a pop has taken."""
        now = time.monotonic()
        for claim in claims:
            if claim.level > 0:
                self._go_back(claim.level, claim.ready_seq)
                self._seen.append((now, claim.level, claim.ready_seq))

    def _go_back(self, level: int, seq: int) -> None:
        """Begin where an entry was found before the mark: it came late, or a restore has set the list back."""
        if level <= len(self._lows) and seq < self._lows[level - 1]:
            self._lows[level - 1] = seq
            # Of a list that was set back, what was seen before would move the mark past all of it again.
            self._seen = deque(seen for seen in self._seen if seen[1] != level)


class Sweeping:
    """Where the next sweep of a client begins, and what the last one brought.

    Timers that were served leave dead index entries, too, so a sweep begins where the last one of this process says,
    and every few seconds at the very beginning.
    """

    def __init__(self) -> None:
        # When the last sweep began, and how many have brought work.
        self.began = float("-inf")
        self.brought = 0
        self._all_at = 0.0
        self._swept_to: datetime | None = None

    def since(self) -> datetime | None:
        """Return where the next sweep begins; None for the beginning."""
        now = self.began = time.monotonic()
        if now < self._all_at:
            return self._swept_to
        self._all_at = now + _SWEEP_ALL_EVERY
        return None

    def did(self, sweep: SweepResult | None) -> None:
        """Take note of a sweep."""
        if sweep is not None:
            self._swept_to = sweep.swept_to or self._swept_to
            if sweep.woken + sweep.enrolled > 0:
                self.brought += 1


def sweep_failed(error: PenstockError) -> None:
    """Say that a sweep failed, which is nothing to its caller: the next one tries again."""
    log.warning("a sweep failed, and is tried again: %s", error)


def wait_for_each(idle_timeout: Seconds | None, wait: Seconds = 0.0, **options: Any) -> float:
    """Return how long `consume` waits for each batch."""
    least, idle = patience("wait", wait), patience("idle_timeout", idle_timeout)
    return float("inf") if idle is None else max(least, idle)


def make_consumer_id() -> str:
    """Return a name under which operators find this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
