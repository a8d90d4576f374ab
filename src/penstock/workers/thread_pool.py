"""Runs synchronous handlers in threads: one per slot, which takes one job after the other.

A thread cannot be ended. One whose handler takes too long is left behind: another takes its place, and what it still
does counts for nothing.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.workers.items import Item, Place
from penstock.workers.pools import CANCEL, REPORT_EVERY, Job, Pool, Report, Slot, verdict_on_interrupted
from penstock.workers.verdicts import GIVEN_BACK, RESULT, Skipped, raised, returned


class _ThreadSlot(Slot):
    __slots__ = ("lock",)

    def __init__(self) -> None:
        super().__init__()
        # Held to say that a handler has ended, and to leave it behind: only one of both happens.
        self.lock = threading.Lock()


class ThreadPool(Pool):
    """The slots of one action with a synchronous handler."""

    def __init__(
        self,
        handler: Callable[[Item], Any],
        size: int,
        timeout: float | None,
        pushes: bool,
        place: Place,
        report: Report,
    ) -> None:
        super().__init__(size, timeout, pushes, place, report)
        self._handler = handler
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def add(self, jobs: Sequence[Job]) -> None:  # noqa: D102
        for job in jobs:
            self._jobs.put(job)
        for _ in range(min(self.size - len(self.slots), self._jobs.qsize())):
            self._start_slot()

    def take_back(self) -> list[Job]:  # noqa: D102
        jobs = []
        with suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    jobs.append(job)
        return jobs

    def waiting(self) -> int:  # noqa: D102
        return self._jobs.qsize()

    def interrupt(self, slot: _ThreadSlot, item: Item, why: str) -> None:  # noqa: D102
        with slot.lock:
            held = slot.held
            if slot.item is not item or held is None or slot.left_behind:
                return
            slot.why = why
            item.cancelled = True
            if why == CANCEL:
                # It may go on for as long as its timeout allows; when it ends, it is cancelled.
                return
            slot.left_behind = True
        self.slots.remove(slot)
        verdict = verdict_on_interrupted(why, self._timeout, None, item)
        self._report(held, slot.index, slot.index + 1, verdict, time.monotonic() - slot.began)
        if slot.index + 1 < slot.stop:
            self._report(held, slot.index + 1, slot.stop, GIVEN_BACK, 0.0)
        if not self.stopping:
            self._start_slot()

    def close(self) -> None:  # noqa: D102
        for _ in self.slots:
            self._jobs.put(None)

    def _start_slot(self) -> None:
        slot = _ThreadSlot()
        self.slots.append(slot)
        name = f"penstock-{self._place.flow}.{self._place.action}"
        threading.Thread(target=self._work, args=(slot,), name=name, daemon=True).start()

    def _work(self, slot: _ThreadSlot) -> None:
        while not slot.left_behind and (job := self._jobs.get()) is not None:
            self._run(slot, job)

    def _run(self, slot: _ThreadSlot, job: Job) -> None:
        """Handle the items of a job, one after the other."""
        held, index, stop = job
        handler, place, clock, lock = self._handler, self._place, time.monotonic, slot.lock
        messages, report = held.messages, self._report
        clean = index
        reported = now = clock()
        slot.held, slot.stop = held, stop
        # Past its lease, which nobody could renew while a handler held up the event loop, others may have the rest.
        while index < stop and not self.stopping and not held.lost and now < held.until:
            message = messages[index]
            slot.index = index
            slot.began = now
            slot.item = item = Item(message, place, held)
            try:
                if held.cancelled and message.offset in held.cancelled:
                    raise Skipped
                value = handler(item)
                headers = message.headers
                verdict = (
                    None
                    if value is None and not item.noted and (headers is None or RESULT not in headers)
                    else returned(item, value, self._pushes)
                )
            except BaseException as error:
                verdict = raised(item, error)
            with lock:
                if slot.left_behind:
                    return
                slot.item = None
                why, slot.why = slot.why, None
            if why is not None:
                verdict = verdict_on_interrupted(why, self._timeout, None, item)
            index += 1
            now = clock()
            if verdict is not None:
                if clean < index - 1:
                    report(held, clean, index - 1, None, slot.began - reported)
                report(held, index - 1, index, verdict, now - slot.began)
                clean, reported = index, now
                if held.ends_with(verdict):
                    break
            elif now - reported > REPORT_EVERY:
                report(held, clean, index, None, now - reported)
                clean, reported = index, now
        slot.held = None
        if clean < index:
            report(held, clean, index, None, now - reported)
        if index < stop:
            report(held, index, stop, GIVEN_BACK, 0.0)
