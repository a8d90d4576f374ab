"""Keeps the leases of a lane alive while its handlers run: all of them are renewed together."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from penstock.broker.operations.claiming import Renew
from penstock.errors import PenstockError
from penstock.workers.held import HeldClaim
from penstock.workers.source import Source

log = logging.getLogger("penstock.worker")

# Renewed when a third of the lease is over, so that two failures in a row do no harm.
_FRACTION = 3


class Leases:
    """The leases of all claims of a lane."""

    def __init__(self, source: Source, lose: Callable[[HeldClaim], None]) -> None:
        self._source = source
        self._lose = lose
        self._task: asyncio.Task[None] | None = None
        self._held: Iterable[HeldClaim] = ()
        self._seconds = float("inf")

    def keep(self, held: Iterable[HeldClaim], seconds: float) -> None:
        """See that all leases are renewed in time; those of new claims last so many seconds."""
        self._held = held
        if self._task is None or self._task.done() or seconds < 0.9 * self._seconds:
            self.close()
            self._seconds = seconds
            self._task = asyncio.create_task(self._renew(), name="penstock-leases")

    def expired(self) -> list[HeldClaim]:
        """Return the claims whose leases are over, as far as this process knows."""
        now = time.monotonic()
        return [one for one in self._held if not one.lost and not one.over and one.until < now]

    def close(self) -> None:
        """Renew no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(max(0.01, self._seconds / _FRACTION))
            # A claim that was made since the last time has most of its lease left.
            soon = time.monotonic() + self._seconds * 0.7
            due = [one for one in self._held if one.until < soon and not (one.lost or one.over or one.settling)]
            if not due:
                continue
            asked_at = time.monotonic()
            try:
                deadlines = await self._source.settle(Renew([one.claim.lease for one in due], durable=False))
            except PenstockError as error:
                log.warning("leases could not be renewed: %s", error)
                continue
            for one, deadline in zip(due, deadlines, strict=True):
                if deadline is not None:
                    one.until = asked_at + self._seconds
                elif one in self._held and not one.complete and not one.over:
                    self._lose(one)
