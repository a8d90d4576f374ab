"""Reports the positions of a query to its group, so that lag is right and retention waits, as for any other reader.

The offsets at which Spark asks for the next batch are committed. They are reported here, if they changed. The
group belongs to the query that started last: its first positions may be behind those of the query before.
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

# A partition that is being pushed to is skipped, and reported with the next batch. Only a query that ends waits for it.
_BUSY_PAUSE = 0.05
_BUSY_SECONDS = 2.0


class Progress:
    """The progress of one query in the groups of its queues."""

    def __init__(self, target: Target, group: str | None, watch: Watch) -> None:
        self._target = target
        self._group = group
        self._watch = watch
        self._reported: Positions | None = None
        self._owns = False

    def report(self, positions: Positions, lineage: int | None, *, wait: bool = False) -> None:
        """Advance the group to these positions; with `wait`, also in partitions that somebody is pushing to.

        `lineage` is the reader's lineage of snapshots, if it has one.
        """
        if self._group is None or self._reported is positions:
            return
        ids, offsets = positions.ids, positions.offsets
        if self._reported is not None:
            changed = self._reported.get(ids, np.full(len(ids), -1, dtype=np.int64)) != offsets
            ids, offsets = ids[changed], offsets[changed]
        deadline = time.monotonic() + (_BUSY_SECONDS if wait else 0)
        while len(ids) and self._advance(ids, offsets, lineage):
            if time.monotonic() >= deadline:
                return
            time.sleep(_BUSY_PAUSE)
        self._reported = positions
        self._owns = self._owns or (lineage is not None and len(ids) > 0)

    def _advance(self, ids: Numbers, offsets: Numbers, lineage: int | None) -> int:
        """Advance the group; return the number of busy partitions."""
        places = self._watch.places(ids)
        by_queue: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number, offset in zip(ids.tolist(), offsets.tolist(), strict=True):
            # A deleted partition has no name and no lag.
            if number in places:
                numbers, reached = by_queue[places[number].queue]
                numbers.append(number)
                reached.append(offset)
        assert self._group is not None  # noqa: S101
        busy = 0
        for queue, (numbers, reached) in by_queue.items():
            # A deleted queue has no lag either; whether that is an error is decided where its partitions are read.
            with suppress(NotFound):
                call = AdvanceReader(queue, self._group, numbers, reached, lineage, not self._owns)
                busy += run(self._target, call).busy
        return busy
