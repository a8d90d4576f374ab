"""Tells a group how far its query is, so that lag is true beside all other readers and retention waits.

What a query asks to go on from is what Spark has committed. That is told here, and only what changed since. The group
follows the query that started last: what that one tells first may be behind what the group had read before.
"""

import time
from collections import defaultdict
from contextlib import suppress

import numpy as np

from penstock.broker.operations.ranges import AdvanceReader
from penstock.errors import NotFound
from penstock.spark.connections import run
from penstock.spark.options import Target
from penstock.spark.positions import Numbers, Positions, Watch

# A partition that is being pushed to is passed over, and told with the next batch. Only who will not come again waits.
_BUSY_PAUSE = 0.05
_BUSY_SECONDS = 2.0


class Progress:
    """The progress of one query in the groups of its queues."""

    def __init__(self, target: Target, group: str | None, watch: Watch) -> None:
        self._target = target
        self._group = group
        self._watch = watch
        self._told: Positions | None = None
        self._owns = False

    def tell(self, positions: Positions, lineage: int | None, *, wait: bool = False) -> None:
        """Advance the group to where everything is done; with `wait`, also where somebody holds a partition.

        The lineage says whose progress it is, where there is one.
        """
        if self._group is None or self._told is positions:
            return
        ids, offsets = positions.ids, positions.offsets
        if self._told is not None:
            changed = self._told.get(ids, np.full(len(ids), -1, dtype=np.int64)) != offsets
            ids, offsets = ids[changed], offsets[changed]
        deadline = time.monotonic() + (_BUSY_SECONDS if wait else 0)
        while len(ids) and self._advance(ids, offsets, lineage):
            if time.monotonic() >= deadline:
                return
            time.sleep(_BUSY_PAUSE)
        self._told = positions
        self._owns = self._owns or (lineage is not None and len(ids) > 0)

    def _advance(self, ids: Numbers, offsets: Numbers, lineage: int | None) -> int:
        """Return how many partitions were busy."""
        places = self._watch.places(ids)
        by_queue: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number, offset in zip(ids.tolist(), offsets.tolist(), strict=True):
            # A partition that was deleted has no name any more, and no lag.
            if number in places:
                numbers, reached = by_queue[places[number].queue]
                numbers.append(number)
                reached.append(offset)
        assert self._group is not None  # noqa: S101
        busy = 0
        for queue, (numbers, reached) in by_queue.items():
            # A queue that was deleted has no lag either; whether that is an error, who looks at its partitions decides.
            with suppress(NotFound):
                call = AdvanceReader(queue, self._group, numbers, reached, lineage, not self._owns)
                busy += run(self._target, call).busy
        return busy
