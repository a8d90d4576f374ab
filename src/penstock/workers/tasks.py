"""Reports what a worker process is at: one row for all of it, rewritten every few seconds while something runs."""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.broker.arguments import storable
from penstock.broker.items import ItemNote
from penstock.broker.operations.items import NoteItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.workers import ReportTasks
from penstock.broker.tasks import ReportedTask
from penstock.errors import PenstockError
from penstock.workers.items import Item
from penstock.workers.lane import Lane
from penstock.workers.source import Source

log = logging.getLogger("penstock.worker")

EVERY = 5.0
# More tasks than this are too many to look at.
_MOST = 500


class Reporter:
    """Reports the running tasks of all lanes."""

    def __init__(self, source: Source, worker: str, lanes: Sequence[Lane]) -> None:
        self._source = source
        self._worker = worker
        self._lanes = lanes
        # Whether the row of this process has tasks in it.
        self._said_something = False
        # What was noted of items that run.
        self._noted: dict[Item, tuple[float | None, str | None]] = {}

    async def run(self) -> None:
        """Report until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.report()

    async def report(self) -> None:
        """Write what runs now; nothing, if nothing runs and that is known."""
        tasks = self._tasks()
        if tasks or self._said_something:
            await self._write(tasks)
        if notes := self._notes():
            await self._run(NoteItems(notes))

    async def close(self) -> None:
        """Take the row away."""
        if self._said_something:
            await self._write([])

    async def _write(self, tasks: list[ReportedTask]) -> None:
        if await self._run(ReportTasks(self._worker, tasks)):
            self._said_something = bool(tasks)

    async def _run(self, operation: Operation[Any]) -> bool:
        try:
            await self._source.run(operation)
        except PenstockError as error:
            log.debug("running tasks could not be reported: %s", error)
            return False
        return True

    def _notes(self) -> list[ItemNote]:
        """Return how far items are that have said so since the last time: it is kept for their next attempt, too."""
        noted, before, found = {}, self._noted, []
        for lane in self._lanes:
            for item, held, _ in lane.pool.running():
                said = item.percent, item.text
                if item.percent is not None:
                    noted[item] = said
                    if before.get(item) != said:
                        item.noted = True
                        found.append(ItemNote(held.claim.lease, item.offset, *said))
        self._noted = noted
        return found

    def _tasks(self) -> list[ReportedTask]:
        now, clock = datetime.now(UTC), time.monotonic()
        found = []
        for lane in self._lanes:
            action = lane.action
            for item, _, began in lane.pool.running():
                started = now - timedelta(seconds=clock - began)
                found.append(
                    ReportedTask(
                        action.action_class,
                        action.flow,
                        action.name,
                        item.did,
                        item.id,
                        started,
                        item.attempt,
                        item.percent,
                        None if item.text is None else storable(item.text),
                    )
                )
        # The longest running are what an operator looks for.
        return sorted(found, key=lambda task: task.started_at)[:_MOST]
