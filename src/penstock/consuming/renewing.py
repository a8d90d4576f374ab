# Generated from async_renewing.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""When a lease is renewed, and how: a task or a thread beside the handler does it in time."""

import logging
from typing import Protocol

from penstock.broker.arguments import Seconds, seconds
from penstock.errors import LeaseLost, PenstockError

log = logging.getLogger("penstock.consumer")

# Renewed when a third of the lease is over, so that two failures in a row do no harm.
_FRACTION = 3


class Leased(Protocol):
    """A batch, or something that has many."""

    abandoned: bool

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to renew, for ever."""

    @property
    def lease_left(self) -> float:
        """How many seconds its lease lasts."""

    @property
    def lease_seconds(self) -> float:
        """How many seconds it was leased for."""

    def renew(self, lease: Seconds | None = None) -> None:
        """Extend the lease from now."""


def renew(batch: Leased, lease: Seconds | None) -> float | None:
    """Renew a batch that is still in work; return the seconds until the next renewal, None when its lease is lost."""
    try:
        if not batch.settled and not batch.abandoned:
            # As long as it was leased for, and not what is left of it: renewals that are alike share a call.
            batch.renew(lease)
            log.debug("renewed %s", batch)
            return first_pause(batch, lease)
    except LeaseLost as error:
        # The handler finds out when it settles the batch.
        log.warning("%s", error)
        return None
    except PenstockError as error:
        # The next turn comes well before the lease ends.
        log.warning("%s could not be renewed: %s", batch, error)
    return pause(batch, lease)


def pause(batch: Leased, lease: Seconds | None) -> float:
    """Return the seconds between two renewals."""
    return max(0.01, (seconds(lease) or batch.lease_seconds) / _FRACTION)


def first_pause(batch: Leased, lease: Seconds | None) -> float:
    """Return the same right after a lease began: less if the answer took a while, or the lease time is shorter now."""
    return max(0.01, min(pause(batch, lease), batch.lease_left / _FRACTION))
