"""Following a queue, without doing any of the reading: what changed since the last look, and when to look again."""

import time
from collections.abc import Iterator, Sequence

from penstock.broker.infos import PartitionInfo
from penstock.broker.messages import StoredMessage
from penstock.broker.names import check_whole
from penstock.broker.places import Place

_SHORTEST, _LONGEST = 0.02, 1.0


class Tail:
    """Where a follower of a queue is, in each of its partitions."""

    def __init__(self, queue: str, last: int, idle_timeout: float | None) -> None:
        check_whole("last", last)
        self._queue = queue
        self._last = last
        self._idle_timeout = idle_timeout
        self._seen: dict[int, int] | None = None
        self._began = False
        self._found: list[StoredMessage] = []
        self._pause = _SHORTEST
        self._looked_at = self._news_at = time.monotonic()

    def changes(self, partitions: Sequence[PartitionInfo]) -> Iterator[tuple[Place, int, int]]:
        """Yield the ranges that are new since the last look."""
        first_look = self._seen is None
        seen = self._seen = {} if self._seen is None else self._seen
        for partition in partitions:
            # A partition that appears while we follow is new from its first message.
            known = seen.get(partition.partition_id, 0)
            start = partition.head - self._last if first_look else known
            start = max(start, partition.floor)
            seen[partition.partition_id] = partition.head
            if start < partition.head:
                yield Place(self._queue, partition.name), start, partition.head

    def add(self, messages: list[StoredMessage]) -> None:
        """Take messages of one range."""
        self._found += messages

    def take(self) -> list[StoredMessage]:
        """Return what was found, oldest first, and plan the next look."""
        found = sorted(self._found, key=lambda message: message.timestamp)
        if not self._began:
            self._began = True
            found = found[len(found) - min(self._last, len(found)) :]
        self._found = []
        now = time.monotonic()
        if found:
            self._pause = _SHORTEST
            self._news_at = now
        else:
            # Looking is never more than a tenth of the time, however many partitions there are.
            self._pause = min(_LONGEST, max(self._pause * 1.5, 9 * (now - self._looked_at - self._pause)))
        self._looked_at = now
        return found

    def idle(self) -> bool:
        """Say whether nothing came for as long as the caller wants to wait."""
        return self._idle_timeout is not None and time.monotonic() - self._news_at >= self._idle_timeout

    def pause(self) -> float:
        """Return how long to wait before the next look."""
        if self._idle_timeout is None:
            return self._pause
        return max(0.0, min(self._pause, self._news_at + self._idle_timeout - time.monotonic()))
