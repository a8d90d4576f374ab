"""How many callers may hold a stream open: so many in all, and of them so many with one key."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.gateway.problems import Refused


class Slots:
    """Places for streams, by the name of the caller; one without a name has no limit of its own."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def check(self, caller: str | None) -> None:
        """Refuse a caller for whom there is no place."""
        own = caller is not None and self._taken[caller] >= self.most_of_one
        if own or self.taken >= self.most:
            who = f"{caller} holds {self.most_of_one} streams" if own else f"{self.most} streams are open"
            raise Refused(
                503,
                "too_many_listeners",
                f"{who}, which is all that this gateway gives",
                "Close one, or try again later.",
                {"Retry-After": "10"},
            )

    @contextmanager
    def held(self, caller: str | None) -> Iterator[None]:
        """Hold a place."""
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
