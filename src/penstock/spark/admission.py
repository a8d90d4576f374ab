"""How much of what is there a batch may read: the same for every partition, what one leaves goes to the others.

Where there is less than one message for each, they take turns, so nobody starves behind busy neighbours.
"""

import numpy as np

from penstock.engine import range_calls
from penstock.spark.connections import run
from penstock.spark.options import Target
from penstock.spark.positions import Numbers

# A turn is worth at least this much: a partition that is visited for less costs more than it gives.
_TURN_BYTES = 64 << 10
_ROUNDS = 3


def share_messages(available: Numbers, limit: int, turn: int) -> Numbers:
    """Share a number of messages out; `turn` says who comes first where not everybody can."""
    count = len(available)
    if int(available.sum()) <= limit:
        return available
    order = np.roll(np.arange(count), -(turn * limit) % count)
    granted = np.zeros(count, dtype=np.int64)
    if limit < count:
        granted[order[:limit]] = 1
        return granted
    # Everybody gets up to a level; it rises until the limit is spent.
    ascending = np.sort(available)
    spent = np.cumsum(ascending) + ascending * np.arange(count - 1, -1, -1)
    full = int(np.searchsorted(spent, limit, side="right"))
    before = int(ascending[:full].sum())
    level = (limit - before) // (count - full)
    granted = np.minimum(available, level)
    hungry = order[available[order] > level][: limit - int(granted.sum())]
    granted[hungry] += 1
    return granted


def share_bytes(target: Target, ids: Numbers, starts: Numbers, ends: Numbers, limit: int, turn: int) -> Numbers:
    """Share a number of bytes out; return where each partition stops."""
    stops = starts.copy()
    visited = min(len(ids), max(1, limit // _TURN_BYTES))
    order = np.roll(np.arange(len(ids)), -(turn * visited) % len(ids))[:visited]
    left = limit
    for _ in range(_ROUNDS):
        each = left // max(len(order), 1)
        if not len(order) or each < 1:
            break
        answer = run(target, range_calls.spend(ids[order].tolist(), stops[order].tolist(), ends[order].tolist(), each))
        stops[order] = [stop for stop, _ in answer]
        left -= sum(size for _, size in answer)
        order = order[stops[order] < ends[order]]
    return stops
