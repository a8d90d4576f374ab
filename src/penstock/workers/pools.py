"""What the three kinds of pool have in common: jobs, slots, and how a slot says what came of its items."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.consuming.handlers import timed_out
from penstock.workers.held import HeldClaim
from penstock.workers.items import Item, Place
from penstock.workers.verdicts import CANCELLED, GIVEN_BACK, Verdict, raised

# Clean items of a job that goes on are reported this often, so that what is done is settled soon.
REPORT_EVERY = 0.02

# Why a handler is interrupted.
TIMEOUT, CANCEL, STOP, LOST = "timeout", "cancel", "stop", "lost"
# It was cancelled, and has not ended in the time that its timeout allows.
OVERDUE = "overdue"

# Says that items of a claim, from one index to another, are done, or what became of one of them; and for how many
# seconds they were handled.
Report = Callable[[HeldClaim, int, int, Verdict | None, float], None]


class Job(NamedTuple):
    """Items of a claim to be handled one after the other, by their indexes."""

    held: HeldClaim
    start: int
    stop: int


class Running(NamedTuple):
    """An item whose handler runs."""

    item: Item
    held: HeldClaim
    began: float


class Slot:
    """One place where a handler can run, and what runs there."""

    __slots__ = ("began", "held", "index", "item", "left_behind", "stop", "why")

    def __init__(self) -> None:
        self.held: HeldClaim | None = None
        self.index = 0
        # Where the job ends that it is at.
        self.stop = 0
        self.item: Item | None = None
        self.began = 0.0
        # Why its handler was interrupted, if it was.
        self.why: str | None = None
        # Another slot has taken its place: what its handler still does counts for nothing.
        self.left_behind = False

    def running(self) -> Running | None:
        """Return what runs here."""
        item, held = self.item, self.held
        return None if item is None or held is None else Running(item, held, self.began)


def verdict_on_interrupted(why: str, timeout: float | None, error: BaseException | None, item: Item) -> Verdict:
    """Return what becomes of an item whose handler was interrupted; `error` shows where it was."""
    if why == TIMEOUT:
        late = timed_out(timeout)
        return raised(item, late.with_traceback(error.__traceback__ if error is not None else None))
    return Verdict(CANCELLED, noted=item.noted) if why in (CANCEL, OVERDUE) else GIVEN_BACK


class Pool(ABC):
    """Runs the handler of one action in several slots."""

    def __init__(self, size: int, timeout: float | None, pushes: bool, place: Place, report: Report) -> None:
        self.size = size
        self.slots: list[Any] = []
        self._timeout = timeout
        self._pushes = pushes
        self._place = place
        self._report = report
        self.stopping = False

    @abstractmethod
    def add(self, jobs: Sequence[Job]) -> None:
        """Give jobs to slots as they become free."""

    @abstractmethod
    def take_back(self) -> list[Job]:
        """Take the jobs that no slot has begun."""

    @abstractmethod
    def waiting(self) -> int:
        """Return how many jobs no slot has begun."""

    @abstractmethod
    def interrupt(self, slot: Any, item: Item, why: str) -> None:
        """Interrupt the handler of a slot, unless it has gone on to another item meanwhile."""

    @abstractmethod
    def close(self) -> None:
        """Let idle slots end; nothing must run any more, or be interrupted before."""

    def chunk(self, count: int) -> int:
        """Return how many items of a shared claim, of so many, make a job."""
        return 1

    async def join(self) -> None:  # noqa: B027 - tasks and threads are left to end by themselves
        """Wait for the end of the slots, where that matters."""

    def running(self) -> list[Running]:
        """Return what runs now."""
        return [found for slot in self.slots if (found := slot.running()) is not None]

    def idle(self) -> int:
        """Return how many more jobs could be begun at once."""
        busy = sum(slot.held is not None for slot in self.slots)
        return max(0, self.size - busy - self.waiting())

    def stop(self) -> None:
        """Begin nothing any more: jobs end after the item that they are at."""
        self.stopping = True

    def interrupt_all(self, why: str) -> None:
        """Interrupt every handler that runs."""
        for slot in list(self.slots):
            if (item := slot.item) is not None:
                self.interrupt(slot, item, why)

    def cancel(self, held: HeldClaim, offsets: "set[int]") -> None:
        """Interrupt the handlers of some items of a claim, and skip those that are not begun."""
        held.cancelled |= offsets
        self.interrupt_items(lambda other, offset: other is held and offset in offsets, CANCEL)

    def interrupt_items(self, wanted: Callable[[HeldClaim, int], bool], why: str) -> None:
        """Interrupt the handlers of some items, by claim and offset."""
        for slot in list(self.slots):
            item, held = slot.item, slot.held
            if item is not None and held is not None and slot.why is None and wanted(held, item.offset):
                self.interrupt(slot, item, why)

    def expire(self) -> float | None:
        """Interrupt handlers that take too long; return the seconds until the next one does, None without a timeout."""
        if self._timeout is None:
            return None
        now = time.monotonic()
        earliest = now
        for slot in list(self.slots):
            item, began = slot.item, slot.began
            if item is None or slot.why not in (None, CANCEL):
                continue
            if began + self._timeout <= now:
                self.interrupt(slot, item, TIMEOUT if slot.why is None else OVERDUE)
            else:
                earliest = min(earliest, began)
        return max(0.001, earliest + self._timeout - now)
