"""A circuit breaker: it stops a consumer whose handlers fail, and lets it try again later.

Closed, all goes through. After so many errors in a row, or with too large a share of errors within a window, it opens:
nothing is taken for a while. Then it is half open: one message is taken as a probe. If that succeeds, it closes; if it
fails, it opens for twice as long. This is the state machine alone: it does no input or output, and is told the time.
"""

from enum import Enum
from typing import NamedTuple

# The share of errors says little before so many messages were handled.
_ENOUGH = 20


class BreakerSettings(NamedTuple):
    """When a breaker opens, and for how long; 0 errors or a rate of 0 means never."""

    errors: int = 50
    rate: float = 0.0
    window: float = 60.0
    pause: float = 30.0
    pause_max: float = 600.0


class BreakerState(Enum):
    """The three states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """The breaker of one consumer for one group. Times are seconds of any one clock, also one that is set back."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self.settings = settings or BreakerSettings()
        self.consecutive_errors = 0
        self._calls = 0
        self._errors = 0
        self._window_began: float | None = None
        self._opened = 0
        self._opened_at: float | None = None
        self._pause = 0.0
        self._probing = False

    @property
    def is_closed(self) -> bool:
        """Whether all goes through: the commonest case, and the cheapest question."""
        return self._opened_at is None

    @property
    def is_probing(self) -> bool:
        """Whether somebody has the one message that decides."""
        return self._probing

    def state(self, now: float) -> BreakerState:
        """Return the state at a time."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probing or self.wait(now) == 0 else BreakerState.OPEN

    def wait(self, now: float) -> float:
        """Return for how many seconds nothing may be taken; 0 where something may, if only a probe."""
        if self._opened_at is None:
            return 0.0
        if now < self._opened_at:
            # The clock was set back: the pause begins again, rather than last until the clock is where it was.
            self._opened_at = now
        return max(0.0, self._opened_at + self._pause - now)

    def begin_probe(self, now: float) -> bool:
        """Take the right to the one probe; False where another has it, or nothing may be taken yet."""
        if self._opened_at is None or self._probing or self.wait(now) > 0:
            return False
        self._probing = True
        return True

    def end_probe(self) -> None:
        """Give the right to the probe back unused: there was nothing to take."""
        self._probing = False

    def succeeded(self, count: int, now: float, *, probe: bool = False) -> bool:
        """Count messages that were handled; return whether that closed it, as only a probe does."""
        if count <= 0:
            return False
        if self._opened_at is not None:
            if probe and self._probing:
                self.reset()
                return True
            return False
        self.consecutive_errors = 0
        self._count(count, 0, now)
        return False

    def failed(self, count: int, now: float, *, probe: bool = False) -> bool:
        """Count messages that failed; return whether that opened it."""
        if count <= 0:
            return False
        if self._opened_at is not None:
            # What was taken before it opened ends now, and says nothing of how it is now.
            if probe and self._probing:
                self._open(now)
                return True
            return False
        self.consecutive_errors += count
        self._count(count, count, now)
        settings = self.settings
        in_a_row = 0 < settings.errors <= self.consecutive_errors
        too_many = self._calls >= _ENOUGH and 0 < settings.rate * self._calls <= self._errors
        if in_a_row or too_many:
            self._open(now)
            return True
        return False

    def reset(self) -> None:
        """Close it, and forget all errors."""
        self.consecutive_errors = self._calls = self._errors = self._opened = 0
        self._opened_at = self._window_began = None
        self._probing = False

    def _open(self, now: float) -> None:
        # Beyond 30 doublings any pause is at its limit.
        longest = max(self.settings.pause, self.settings.pause_max)
        self._pause = min(self.settings.pause * 2.0 ** min(self._opened, 30), longest)
        self._opened += 1
        self._opened_at = now
        self._probing = False

    def _count(self, calls: int, errors: int, now: float) -> None:
        began = self._window_began
        if began is None or not began <= now <= began + self.settings.window:
            self._window_began, self._calls, self._errors = now, 0, 0
        self._calls += calls
        self._errors += errors
