"""Adds up the chunks of a seek, and goes back for partitions that were busy."""

from penstock.broker.infos import SeekResult
from penstock.errors import Retryable

_ROUNDS = 100


class SeekTotal:
    """What a seek did so far."""

    def __init__(self) -> None:
        self._total = SeekResult(0, 0, 0, 0, 0, 0, None)
        self._next: int | None = 0
        self._busy = 0
        self._rounds = 0

    def next_chunk(self) -> int | None:
        """Return where to go on; None when every partition is where it should be."""
        if self._next is None and self._busy:
            # Somebody held them for a moment. Those that have been moved are there, and cost little.
            self._rounds += 1
            if self._rounds == _ROUNDS:
                raise Retryable(
                    f"{self._busy} partitions stayed busy; the others have moved. Run the same seek again, and see "
                    "`penstock doctor` for long transactions."
                )
            self._next, self._busy = 0, 0
        return self._next

    def add(self, chunk: SeekResult) -> None:
        """Add a chunk."""
        total = self._total
        self._total = SeekResult(
            total.visited + chunk.visited,
            total.moved + chunk.moved,
            total.redelivered + chunk.redelivered,
            total.skipped + chunk.skipped,
            total.revoked + chunk.revoked,
            0,
            None,
        )
        self._busy += chunk.busy
        self._next = chunk.next_partition

    def so_far(self) -> SeekResult:
        """Return the sum."""
        return self._total._replace(busy=self._busy)
