"""Reads a range page by page, without doing any of the reading: says what to read next, and is told what came of it."""

from datetime import datetime

from penstock.broker.names import check_whole
from penstock.broker.operations.reading import Read
from penstock.broker.packing import Slice
from penstock.broker.places import Place, Slices

PAGE_BYTES = 8 << 20


class Paging:
    """How far a range is read."""

    def __init__(
        self,
        place: Place,
        start: int,
        stop: int | None,
        start_time: datetime | None,
        stop_time: datetime | None,
        limit: int | None,
    ) -> None:
        if limit is not None:
            check_whole("limit", limit)
        self._place = place
        self._next: int | None = None if limit == 0 else start
        self._stop = stop
        self._times = (start_time, stop_time)
        self._left = limit
        self._limit_stop: int | None = None
        self._fell_short = False

    def next_page(self) -> Read | None:
        """Return what reads the next page, or None after the last."""
        if self._next is None:
            return None
        start_time, stop_time = self._times
        stop = self._stop
        # Without a time, the limit is a stop: offsets have no gaps.
        if self._left is not None and start_time is None and not self._fell_short:
            self._limit_stop = self._next + self._left
            stop = self._limit_stop if stop is None else min(stop, self._limit_stop)
        return Read(self._place, self._next, stop, start_time, stop_time, PAGE_BYTES)

    def took(self, page: Slices) -> Slices:
        """Take note of a page and return what of it is within the limit."""
        self._next = page.next_offset
        if self._left is None:
            return page
        kept: list[Slice] = []
        for part in page.slices:
            if self._left > 0:
                kept.append(part.first(self._left))
                self._left -= kept[-1].count
        if self._left == 0:
            self._next = None
        elif self._next is None and self._limit_stop is not None and not self._fell_short:
            # What lies below the floor does not count: look once more, from where the limit made us stop.
            self._fell_short = True
            self._next = self._limit_stop if self._stop is None or self._limit_stop < self._stop else None
        return Slices(page.partition_id, kept, self._next)
