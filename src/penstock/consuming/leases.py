# Generated from async_leases.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Keeps alive the leases of all that a feeder has: what waits, is handled, or is still to be acknowledged."""

import logging
from contextlib import AbstractContextManager

from penstock.broker.arguments import Seconds, lease_time
from penstock.broker.operations.claiming import Renew
from penstock.consuming.batch import Batch
from penstock.consuming.prefetched import Prefetched
from penstock.consuming.source import Source
from penstock.consuming.threads import Renewals

log = logging.getLogger("penstock.consumer")


class Leases:
    """The leases of all batches of a feeder, which are renewed together, as if they were one batch."""

    def __init__(
        self, prefetched: Prefetched[Batch], source: Source, renewals: Renewals, lease: Seconds | None
    ) -> None:
        self.abandoned = False
        self.settled = False
        self.lease_seconds = float("inf")
        self._prefetched = prefetched
        self._source = source
        self._renewals = renewals
        self._lease = lease
        self._keeping: AbstractContextManager[None] | None = None

    @property
    def lease_left(self) -> float:
        """How many seconds the shortest lease lasts: all are renewed within a third of it."""
        return self.lease_seconds

    def keep(self, batch: Batch) -> None:
        """See that leases like that of a batch are renewed in time."""
        if batch.lease_seconds < 0.9 * self.lease_seconds:
            self.release()
            self.lease_seconds = batch.lease_seconds
            self._keeping = self._renewals.keep(self, self._lease)
            self._keeping.__enter__()

    def release(self) -> None:
        """Renew no more."""
        if self._keeping is not None:
            self._keeping.__exit__(None, None, None)
            self._keeping = None

    def renew(self, lease: Seconds | None = None) -> None:
        """Extend all leases from now; a batch whose lease is lost is handed out no more."""
        held = self._prefetched.held()
        if not held:
            return
        renewals = [(batch, claim.lease) for batch in held for claim in batch.claims]
        operation = Renew([lease for _, lease in renewals], lease_time(lease), durable=False)
        until = self._source.settle(operation)
        deadlines = {one.lease_id: deadline for (_, one), deadline in zip(renewals, until, strict=True)}
        for batch in held:
            for claim in batch.claims:
                claim.lease_until = deadlines[claim.lease_id] or claim.lease_until
            if not all(deadlines[claim.lease_id] for claim in batch.claims):
                if self._prefetched.lost(batch):
                    log.warning("the lease of %s is lost; its messages are delivered again", batch)
                continue
            # The group's lease time may be another by now.
            for claim in batch.claims:
                claim.lease_seconds = batch.lease_left
        self.lease_seconds = min((batch.lease_seconds for batch in held), default=self.lease_seconds)
