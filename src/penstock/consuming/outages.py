"""How consumers live through an outage of the database: they try again, ever less often, until it is over."""

import logging
import time

from penstock.broker.retries import backoff
from penstock.errors import PenstockError, ReadOnlyServer, Retryable, Unavailable

log = logging.getLogger("penstock.consumer")

_FIRST, _LONGEST = 0.1, 5.0


def is_outage(error: PenstockError) -> bool:
    """Say whether an error is the database's, and may be over in a while."""
    # During a failover an address may lead to a standby for a while, which takes no writes.
    return isinstance(error, Unavailable | Retryable | ReadOnlyServer)


class Outage:
    """Outages, one after the other, as somebody sees them who wants to do one thing.

    After `give_up_after` seconds without a success it is raised what went wrong; None goes on for ever.
    """

    def __init__(self, doing: str, give_up_after: float | None = None) -> None:
        self._doing = doing
        self.give_up_after = give_up_after
        self._began: float | None = None
        self._pauses = backoff(_FIRST, _LONGEST)

    @property
    def begun(self) -> bool:
        """Whether there is one now."""
        return self._began is not None

    def left(self) -> float | None:
        """Return how many seconds are left for attempts; None for any number."""
        if self.give_up_after is None:
            return None
        if self._began is None:
            return self.give_up_after
        return max(0.0, self._began + self.give_up_after - time.monotonic())

    def pause(self, error: PenstockError) -> float:
        """Return how long to wait before the next attempt; raises the error if it is none of the database's."""
        if not is_outage(error):
            raise error
        now = time.monotonic()
        if self._began is None:
            self._began = now
            log.warning("cannot %s: %s. Trying again until it works", self._doing, error)
        else:
            log.debug("still cannot %s after %.1f s: %s", self._doing, now - self._began, error)
        pause = next(self._pauses)
        if self.give_up_after is None:
            return pause
        left = self._began + self.give_up_after - now
        if left <= 0:
            raise error
        return min(pause, left)

    def over(self) -> None:
        """Take note of a success."""
        if self._began is not None:
            log.warning("can %s again, after %.1f s", self._doing, time.monotonic() - self._began)
            self._began = None
            self._pauses = backoff(_FIRST, _LONGEST)
