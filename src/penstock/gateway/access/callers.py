"""Callers: who one is, what it may do, and how often."""

import time
from dataclasses import dataclass

from penstock.broker.keys import EVERYTHING, Grants
from penstock.errors import Forbidden, RateLimited
from penstock.gateway.scopes import ANY_QUEUE, AnyQueue, Scope


class Bucket:
    """A token bucket: `rate` requests a second, and `burst` of them at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate = rate
        self.burst = burst
        self._left = float(burst)
        self._at = time.monotonic()

    def take(self) -> float:
        """Take a request; return 0, or for how many seconds there is none."""
        now = time.monotonic()
        self._left = min(float(self.burst), self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self.rate


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whom the gateway knows: `key:` and the name of a key, or `jwt:` and the subject of a token."""

    name: str
    grants: Grants
    bucket: Bucket | None = None
    key_id: str | None = None

    def count_request(self) -> None:
        """Count a request of this caller; raises RateLimited."""
        wait = 0.0 if self.bucket is None else self.bucket.take()
        if wait > 0.0:
            raise RateLimited(f"{self.name} has sent more requests than its rate limit allows", wait)

    def allows(self, scope: Scope, queue: str | AnyQueue | None) -> bool:
        """Say whether it may do this with a queue; None stands for all queues."""
        if scope is Scope.NONE:
            return True
        if scope is Scope.USE:
            return self.allows(Scope.PUSH, queue) or self.allows(Scope.POP, queue)
        if queue is ANY_QUEUE:
            return any(grant.scope in (scope, "admin") for grant in self.grants)
        return self.grants.allow(scope, queue if isinstance(queue, str) else None)

    def require(self, scope: Scope, queue: str | AnyQueue | None) -> None:
        """Raise Forbidden unless it may do this with a queue."""
        if self.allows(scope, queue):
            return
        where = f"queue {queue!r:.100}" if isinstance(queue, str) else "any queue" if queue else "all queues"
        raise Forbidden(f"{self.name} has no scope {scope.value} for {where}")


# Who calls a gateway that asks nobody.
ANYBODY = Caller("anybody", EVERYTHING)
