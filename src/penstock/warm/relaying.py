# Generated from async_relaying.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""What windows and PostgreSQL tell one another through a client: what was settled, and what does not hold any more."""

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
from penstock.warm.links import Refused
from penstock.warm.settling import Follow, Settling
from penstock.warm.window import Windows

log = logging.getLogger("penstock.warm")

AWAY = (Refused, ValkeyUnavailable, ValkeyUnusable)
# How long whoever asks PostgreSQL waits until it knows of this process's acknowledgements, and how often to look.
_REPORTED_WITHIN, _LOOK_EVERY = 2.0, 0.005


class Relay:
    """Tells both tiers what the other one knows."""

    def __init__(self, windows: Windows, settling: Settling) -> None:
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

    def changed(self, operation: Operation[Any], answer: Any) -> None:
        """Tell windows what an operation has changed for them, and wait until their dispatchers know."""
        try:
            self._send_changes(operation, answer)
            if self.waits:
                self.until_reported()
        except AWAY:
            log.debug("the dispatcher will find out by itself", exc_info=True)

    def _send_changes(self, operation: Operation[Any], answer: Any) -> None:
        """Tell windows what an operation has changed for them."""
        windows = self._windows
        match operation:
            case Seek(preview=False):
                for found in windows.all(operation.queue, operation.group):
                    self._withdraw(found.group_id, operation.partition)
            case DeleteGroup():
                for found in windows.all(operation.queue, operation.group):
                    windows.discard(found)
            case Delete(partition=None):
                for found in windows.all(operation.queue):
                    windows.discard(found)
            case Purge() | Delete():
                for found in windows.all(operation.queue):
                    self._withdraw(found.group_id, operation.partition)
            case PauseGroup() | ConfigureGroup():
                for found in windows.all(operation.queue, operation.group):
                    self._halt(found.group_id)
            case CancelMessages() if answer:
                for found in windows.all():
                    if operation.group in (None, found.group):
                        self._halt(found.group_id)
            case Push():
                # What a unique push replaced in the log was cancelled.
                for queue in _with_replaced(operation, answer):
                    for found in windows.all(queue):
                        self._halt(found.group_id)
            case Release(lease=lease):
                # It may be the claim of a window that was taken from its dispatcher.
                for found in windows.all():
                    if found.group_id == lease.group_id:
                        self.note(found.group_id, windows.withdraw(found.group_id, only=lease))

    def _withdraw(self, group_id: int, partition: str | None) -> None:
        self.note(group_id, self._windows.withdraw(group_id, partition))

    def _halt(self, group_id: int) -> None:
        self.note(group_id, self._windows.halt(group_id))

    def until_reported(self) -> None:
        """Wait until PostgreSQL knows of what was acknowledged here: whoever asks it shall see that."""
        deadline, noted = time.monotonic() + _REPORTED_WITHIN, dict(self._noted)
        with suppress(*AWAY):
            for group_id, entry in noted.items():
                if self._reported.get(group_id) == entry:
                    continue
                # It is another process that does it.
                while not self._windows.is_reported(group_id, entry) and time.monotonic() < deadline:
                    time.sleep(_LOOK_EVERY)
        self._reported |= noted

    def follow(self, following: Sequence[Follow]) -> None:
        """Tell windows what PostgreSQL knows already; if that gets lost, leases end and PostgreSQL says so again."""
        for follow in following:
            self._settling.settled(follow.part)
        for group_id in dict.fromkeys(follow.group_id for follow in following):
            try:
                self._windows.follow(
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
