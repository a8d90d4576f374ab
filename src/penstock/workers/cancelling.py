"""Finds out which of the items at hand were cancelled: asked for all of them together, about once a second."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from penstock.broker.operations.items import ListCancelled
from penstock.errors import PenstockError
from penstock.workers.lane import Lane
from penstock.workers.source import Source

log = logging.getLogger("penstock.worker")

_EVERY = 1.0


class Cancelling:
    """Watches the items of all lanes. Those that end within a second are never asked about."""

    def __init__(self, source: Source, lanes: Sequence[Lane]) -> None:
        self._source = source
        self._lanes = lanes

    async def run(self) -> None:
        """Watch until it is cancelled itself."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self._look()
            except PenstockError as error:
                log.debug("nobody knows what was cancelled: %s", error)

    async def _look(self) -> None:
        before = time.monotonic() - _EVERY
        # What lies behind an item that takes long may have been cancelled, too.
        slow = [lane for lane in self._lanes if any(each.began < before for each in lane.pool.running())]
        held = [(lane, each) for lane in slow for each in lane.held if not each.complete]
        if not held:
            return
        places = {(each.claim.group_id, each.claim.partition_id) for _, each in held}
        cancelled: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for group, partition, offset in await self._source.run(ListCancelled(sorted(places))):
            cancelled[group, partition].add(offset)
        for lane, each in held:
            offsets = cancelled.get((each.claim.group_id, each.claim.partition_id))
            if offsets:
                lane.pool.cancel(each, offsets)
