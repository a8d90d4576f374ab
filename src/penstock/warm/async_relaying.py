"""What windows and PostgreSQL tell one another through a client: what was settled, and what does not hold any more."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import Release
from penstock.broker.operations.groups import ConfigureGroup, DeleteGroup, PauseGroup, Seek
from penstock.broker.operations.items import CancelMessages
from penstock.broker.operations.log import Delete, Purge
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.errors import ValkeyUnavailable, ValkeyUnusable
from penstock.warm.async_settling import AsyncSettling, Follow
from penstock.warm.async_window import AsyncWindows
from penstock.warm.links import Refused

log = logging.getLogger("penstock.warm")

AWAY = (Refused, ValkeyUnavailable, ValkeyUnusable)
# How long whoever asks PostgreSQL waits until it knows of this process's acknowledgements, and how often to look.
_REPORTED_WITHIN, _LOOK_EVERY = 2.0, 0.005


class AsyncRelay:
    """Tells both tiers what the other one knows."""

    def __init__(self, windows: AsyncWindows, settling: AsyncSettling) -> None:
        self._windows = windows
        self._settling = settling
        # The last acknowledgement of each group, and the last one that PostgreSQL knows of. A thread that waits for an
        # older one must not forget a newer one.
        self._noted: dict[int, bytes] = {}
        self._reported: dict[int, bytes] = {}

    @property
    def waits(self) -> bool:
        """Whether there is something that PostgreSQL may not know of yet."""
        return self._noted != self._reported

    def note(self, group_id: int, reported: bytes) -> None:
        """Take note of an entry in the stream of a window, which PostgreSQL is told of soon."""
        if reported:
            self._noted[group_id] = reported

    async def changed(self, operation: Operation[Any], answer: Any) -> None:
        """Tell windows what an operation has changed for them, and wait until their dispatchers know."""
        try:
            await self._send_changes(operation, answer)
            if self.waits:
                await self.until_reported()
        except AWAY:
            log.debug("the dispatcher will find out by itself", exc_info=True)

    async def _send_changes(self, operation: Operation[Any], answer: Any) -> None:
        """Tell windows what an operation has changed for them."""
        windows = self._windows
        match operation:
            case Seek(preview=False):
                for found in await windows.all(operation.queue, operation.group):
                    await self._withdraw(found.group_id, operation.partition)
            case DeleteGroup():
                for found in await windows.all(operation.queue, operation.group):
                    await windows.discard(found)
            case Delete(partition=None):
                for found in await windows.all(operation.queue):
                    await windows.discard(found)
            case Purge() | Delete():
                for found in await windows.all(operation.queue):
                    await self._withdraw(found.group_id, operation.partition)
            case PauseGroup() | ConfigureGroup():
                for found in await windows.all(operation.queue, operation.group):
                    await self._halt(found.group_id)
            case CancelMessages() if answer:
                for found in await windows.all():
                    if operation.group in (None, found.group):
                        await self._halt(found.group_id)
            case Push():
                # What a unique push replaced in the log was cancelled.
                for queue in _with_replaced(operation, answer):
                    for found in await windows.all(queue):
                        await self._halt(found.group_id)
            case Release(lease=lease):
                # It may be the claim of a window that was taken from its dispatcher.
                for found in await windows.all():
                    if found.group_id == lease.group_id:
                        self.note(found.group_id, await windows.withdraw(found.group_id, only=lease))

    async def _withdraw(self, group_id: int, partition: str | None) -> None:
        self.note(group_id, await self._windows.withdraw(group_id, partition))

    async def _halt(self, group_id: int) -> None:
        self.note(group_id, await self._windows.halt(group_id))

    async def until_reported(self) -> None:
        """Wait until PostgreSQL knows of what was acknowledged here: whoever asks it shall see that."""
        deadline, noted = time.monotonic() + _REPORTED_WITHIN, dict(self._noted)
        with suppress(*AWAY):
            for group_id, entry in noted.items():
                if self._reported.get(group_id) == entry:
                    continue
                # It is another process that does it.
                while not await self._windows.is_reported(group_id, entry) and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_EVERY)
        self._reported |= noted

    async def follow(self, following: Sequence[Follow]) -> None:
        """Tell windows what PostgreSQL knows already; if that gets lost, leases end and PostgreSQL says so again."""
        for follow in following:
            self._settling.settled(follow.part)
        for group_id in dict.fromkeys(follow.group_id for follow in following):
            try:
                await self._windows.follow(
                    group_id, [(follow.how, follow.part) for follow in following if follow.group_id == group_id]
                )
            except AWAY:
                log.debug("the window will find out when the lease ends", exc_info=True)


def _with_replaced(operation: Push, answer: Sequence[PushResult]) -> set[str]:
    """Return the queues in which a push has replaced messages that were in the log."""
    return {
        batch.place.queue
        for batch, result in zip(operation.batches, answer, strict=True)
        if any(each.scheduled_id is None for each in result.replaced)
    }
