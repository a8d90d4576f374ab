"""Keeps the leases of batches alive while their handlers work: a thread, or a task, that renews in time."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import forks
from penstock.broker.arguments import Seconds, seconds
from penstock.consuming.async_batch import AsyncBatch
from penstock.consuming.batch import Batch
from penstock.errors import LeaseLost, PenstockError

log = logging.getLogger("penstock.consumer")

# Renewed when a third of the lease is over, so that two failures in a row do no harm.
_FRACTION = 3


class Renewals:
    """Renews the batches of a synchronous client. One daemon thread, started when first used."""

    def __init__(self) -> None:
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process: what the parent has, the parent renews."""
        self._changed = threading.Condition()
        self._due: dict[Batch, float] = {}
        self._leases: dict[Batch, Seconds | None] = {}
        self._pauses: dict[Batch, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, batch: Batch, lease: Seconds | None) -> Iterator[None]:
        """Renew a batch until the body is done."""
        with self._changed:
            self._leases[batch] = lease
            self._pauses[batch] = _pause(batch, lease)
            self._due[batch] = time.monotonic() + _pause_now(batch, lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="penstock-renewals", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(batch, None)
                self._leases.pop(batch, None)
                self._pauses.pop(batch, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [batch for batch, moment in self._due.items() if moment <= now]
                if not due:
                    next_due = min(self._due.values(), default=now + 3600)
                    self._changed.wait(next_due - now)
                    continue
                for batch in due:
                    self._due[batch] = now + self._pauses[batch]
            for batch in due:
                self._renew(batch)

    def _renew(self, batch: Batch) -> None:
        try:
            if not batch.settled and not batch.abandoned:
                # As long as it was leased for, and not what is left of it.
                lease = self._leases.get(batch)
                batch.renew(lease)
                log.debug("renewed %s", batch)
                with self._changed:
                    if batch in self._due:
                        self._due[batch] = time.monotonic() + _pause_now(batch, lease)
        except LeaseLost as error:
            # The handler finds out when it settles the batch.
            log.warning("%s", error)
            with self._changed:
                self._due.pop(batch, None)
        except PenstockError as error:
            # The next turn comes well before the lease ends.
            log.warning("%s could not be renewed: %s", batch, error)


async def keep_renewed(batch: AsyncBatch, lease: Seconds | None) -> None:
    """Renew a batch until it is settled or its lease is lost; run it as a task beside the handler."""
    pause = _pause_now(batch, lease)
    while not batch.settled:
        await asyncio.sleep(pause)
        try:
            if not batch.settled and not batch.abandoned:
                # As long as it was leased for, and not what is left of it: renewals that are alike share a call.
                await batch.renew(lease)
                log.debug("renewed %s", batch)
                pause = _pause_now(batch, lease)
        except LeaseLost as error:
            log.warning("%s", error)
            return
        except PenstockError as error:
            log.warning("%s could not be renewed: %s", batch, error)
            pause = _pause(batch, lease)


def _pause(batch: Batch | AsyncBatch, lease: Seconds | None) -> float:
    return max(0.01, (seconds(lease) or batch.lease_seconds) / _FRACTION)


def _pause_now(batch: Batch | AsyncBatch, lease: Seconds | None) -> float:
    """Return the same right after a lease began: less if the answer took a while, or the lease time is shorter now."""
    return max(0.01, min(_pause(batch, lease), batch.lease_left / _FRACTION))
