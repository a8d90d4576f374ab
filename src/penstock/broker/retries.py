"""The one retry helper: whether a call is tried again after an error, and after what pause."""

import random
import time
from collections.abc import Iterator

from penstock.errors import Retryable, TimedOut, Unavailable


def pauses(seconds: float, first: float = 0.05, most: float = 1.0) -> Iterator[float]:
    """Yield how long to wait before each further attempt, and end when so many seconds have passed.

    Pauses double and are shortened at random, so that clients that failed together do not come back together.
    """
    deadline = time.monotonic() + seconds
    growing = backoff(first, most)
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, next(growing))


def backoff(first: float, most: float) -> Iterator[float]:
    """Yield pauses that double, shortened at random, without end."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311
        pause = min(most, pause * 2)


class Attempts:
    """The attempts at one call that began at `began`, by the monotonic clock, and has so many seconds.

    A call that does no harm twice is tried again until its time is up. A call that is stamped, a push, is tried again
    only where nobody knows whether it took effect, and once more if it timed out: it takes at most twice its time.
    While an earlier attempt may still be under way, an error that says "nothing was changed" speaks for the last one
    only: what is raised in the end is that the outcome is unknown.
    """

    def __init__(self, began: float, seconds: float, repeatable: bool, stamped: bool) -> None:
        self._pauses = pauses(began + seconds - time.monotonic())
        self._repeatable = repeatable
        self._stamped = stamped
        self._unknown: Unavailable | None = None

    def pause(self, error: Unavailable | Retryable, sent: bool) -> float:
        """Return how long to wait before the next attempt, or raise; `sent`: the server may have got the call."""
        if not self._repeatable:
            raise error
        if self._stamped:
            return self._pause_of_stamped(error, sent and isinstance(error, Unavailable))
        pause = None if isinstance(error, TimedOut | Retryable) else next(self._pauses, None)
        if pause is None:
            raise error
        return pause

    def pause_unsent(self, error: Unavailable) -> float:
        """Return how long to wait for a server that is away and has not got the call, or raise when the time is up."""
        pause = next(self._pauses, None)
        if pause is None:
            raise self._unknown or error
        return pause

    def _pause_of_stamped(self, error: Unavailable | Retryable, unknown: bool) -> float:
        is_first = self._unknown is None
        if is_first and unknown and isinstance(error, Unavailable):
            self._unknown = error
        if self._unknown is None:
            raise error
        pause = next(self._pauses, None)
        if pause is None and is_first and isinstance(error, TimedOut):
            pause = 0.0
        if pause is None:
            raise error if unknown else self._unknown
        return pause
