"""Runs asynchronous handlers: a task per slot, which takes one job after the other, so that an item costs no task."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.consuming.handlers import CANCELLING
from penstock.workers.held import HeldClaim
from penstock.workers.items import Item, Place
from penstock.workers.pools import REPORT_EVERY, Job, Pool, Report, Slot, verdict_on_interrupted
from penstock.workers.verdicts import GIVEN_BACK, RESULT, Skipped, Verdict, raised, returned

# A handler that never waits for anything lets others run this often.
_YIELD_EVERY = 0.005


class _TaskSlot(Slot):
    __slots__ = ("task",)

    task: "asyncio.Task[None]"


class TaskPool(Pool):
    """The slots of one action with an asynchronous handler."""

    def __init__(
        self,
        handler: Callable[[Item], Awaitable[Any]],
        size: int,
        timeout: float | None,
        pushes: bool,
        place: Place,
        report: Report,
    ) -> None:
        super().__init__(size, timeout, pushes, place, report)
        self._handler = handler
        self._jobs: deque[Job] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def add(self, jobs: Sequence[Job]) -> None:  # noqa: D102
        self._jobs.extend(jobs)
        for _ in jobs:
            if self._idle:
                self._wake_one()
            elif len(self.slots) < self.size:
                self._start_slot()
            else:
                return

    def take_back(self) -> list[Job]:  # noqa: D102
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def waiting(self) -> int:  # noqa: D102
        return len(self._jobs)

    def interrupt(self, slot: _TaskSlot, item: Item, why: str) -> None:  # noqa: D102
        if slot.item is not item:
            return
        slot.why = why
        item.cancelled = True
        slot.task.cancel()
        asyncio.get_running_loop().call_later(CANCELLING, self._leave_behind, slot, item)

    def close(self) -> None:  # noqa: D102
        self._closed = True
        while self._idle:
            self._wake_one()

    def _wake_one(self) -> None:
        future = self._idle.popleft()
        if not future.done():
            future.set_result(None)

    def _start_slot(self) -> None:
        slot = _TaskSlot()
        self.slots.append(slot)
        slot.task = asyncio.create_task(self._work(slot), name=f"penstock-{self._place.flow}.{self._place.action}")

    def _leave_behind(self, slot: _TaskSlot, item: Item) -> None:
        """Let another slot take the place of one whose handler does not heed its cancellation."""
        if slot.item is not item or slot.held is None or slot.why is None:
            return
        slot.left_behind = True
        self.slots.remove(slot)
        verdict = verdict_on_interrupted(slot.why, self._timeout, None, item)
        self._report(slot.held, slot.index, slot.index + 1, verdict, time.monotonic() - slot.began)
        self._end_job(slot.held, slot.index + 1, slot.stop)
        if not self._closed:
            self._start_slot()

    async def _work(self, slot: _TaskSlot) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            if not self._jobs:
                future = loop.create_future()
                self._idle.append(future)
                await future
                continue
            job = self._jobs.popleft()
            await self._run(slot, job)
            if slot.left_behind:
                return
        if slot in self.slots:
            self.slots.remove(slot)

    async def _run(self, slot: _TaskSlot, job: Job) -> None:
        """Handle the items of a job, one after the other."""
        held, index, stop = job
        handler, place, clock = self._handler, self._place, time.monotonic
        messages, report = held.messages, self._report
        clean = index
        yielded = reported = now = clock()
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
                value = await handler(item)
                headers = message.headers
                verdict = (
                    None
                    if value is None
                    and not item.noted
                    and slot.why is None
                    and (headers is None or RESULT not in headers)
                    else self._verdict(slot, item, value)
                )
                slot.item = None
            except BaseException as error:
                slot.item = None
                verdict = self._raised(slot, item, error)
            if slot.left_behind:
                return
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
            if now - yielded > _YIELD_EVERY:
                await asyncio.sleep(0)
                yielded = now = clock()
        slot.held = None
        if clean < index:
            report(held, clean, index, None, now - reported)
        self._end_job(held, index, stop)

    def _end_job(self, held: HeldClaim, index: int, stop: int) -> None:
        if index < stop:
            self._report(held, index, stop, GIVEN_BACK, 0.0)

    def _verdict(self, slot: _TaskSlot, item: Item, value: Any) -> Verdict | None:
        if slot.why is None:
            return returned(item, value, self._pushes)
        return self._interrupted(slot, item, None)

    def _raised(self, slot: _TaskSlot, item: Item, error: BaseException) -> Verdict:
        if slot.why is None:
            return raised(item, error)
        return self._interrupted(slot, item, error)

    def _interrupted(self, slot: _TaskSlot, item: Item, error: BaseException | None) -> Verdict:
        why, slot.why = slot.why, None
        while slot.task.cancelling():
            slot.task.uncancel()
        return verdict_on_interrupted(why or "", self._timeout, error, item)
