"""How much of what is there a batch may read: the oldest messages first, whichever partition they are in.

So partitions advance together in time. If each got the same number of messages, a small one would run ahead, the
watermark of a window would follow it, and what the large ones have still to bring would come too late.

All ranges are cut at one moment. Messages within ten seconds of it count as pushed at the same time: each partition
gets the same part of those that it has, and at least one where that is possible. A batch that was loaded at once is
read evenly like this, though the partitions were filled one after the other. Where there is less than one message for
each, they take turns.

A limit of messages is never exceeded. Bytes are estimated: a message counts as the average of its segment, and one
message is always read.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.broker.operations.ranges import GetBacklog
from penstock.spark.connections import run
from penstock.spark.options import Target
from penstock.spark.positions import Numbers, numbers

# How far from the cut a message may be to count as of the same time.
SAME_SECONDS = 10
# How much of the backlog is looked at: about so many pieces at first, and more of where that was not enough.
_PIECES = 40_000
_FEWEST_PIECES = 4
_ROUNDS = 6
_MORE = 4
_NO_LIMIT = 1 << 62
_STEPS = 24

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Backlog:
    """What waits in ranges: pieces of messages that were pushed in one second, by range and offset."""

    ranges: Numbers
    firsts: Numbers
    messages: Numbers
    bytes: Numbers
    seconds: Numbers

    def without(self, ranges: Numbers) -> "Backlog":
        """Leave out some ranges."""
        kept = ~np.isin(self.ranges, ranges)
        return Backlog(*(column[kept] for column in self._columns()))

    def with_more(self, more: "Backlog") -> "Backlog":
        """Put two together that have none of their ranges in common."""
        columns = [np.concatenate(pair) for pair in zip(self._columns(), more._columns(), strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return Backlog(*(column[order] for column in columns))

    def _columns(self) -> tuple[Numbers, ...]:
        return self.ranges, self.firsts, self.messages, self.bytes, self.seconds


@dataclass(frozen=True)
class Admitted:
    """Where each range stops. `unseen` are ranges of which more must be looked at, where the limits are far."""

    stops: Numbers
    unseen: Numbers


def admit(
    target: Target,
    ranges: tuple[Numbers, Numbers, Numbers],
    max_messages: int | None,
    max_bytes: int | None,
    turn: int,
) -> Numbers:
    """Return where each range (id, start, end) stops; `turn` says who comes first where not everybody can."""
    ids, starts, ends = ranges
    if max_bytes is None and (max_messages is None or int((ends - starts).sum()) <= max_messages):
        return ends
    messages, size = max_messages or _NO_LIMIT, max_bytes or _NO_LIMIT
    pieces = max(_FEWEST_PIECES, _PIECES // len(ids))
    backlog = _look(target, np.arange(len(ids)), ranges, messages, pieces)
    admitted = cut(backlog, starts, ends, messages, size, turn)
    for _ in range(_ROUNDS):
        if not len(admitted.unseen):
            break
        pieces *= _MORE
        more = _look(target, admitted.unseen, ranges, messages, pieces)
        backlog = backlog.without(admitted.unseen).with_more(more)
        admitted = cut(backlog, starts, ends, messages, size, turn)
    return admitted.stops


def _look(
    target: Target, some: Numbers, ranges: tuple[Numbers, Numbers, Numbers], messages: int, pieces: int
) -> Backlog:
    ids, starts, ends = (column[some].tolist() for column in ranges)
    found = run(target, GetBacklog(ids, starts, ends, messages, pieces))
    columns = [numbers(column) for column in found]
    return Backlog(some[columns[0] - 1], *columns[1:])


def cut(backlog: Backlog, starts: Numbers, ends: Numbers, max_messages: int, max_bytes: int, turn: int) -> Admitted:
    """Cut ranges at one moment, so that what lies before it is within the limits."""
    count = len(starts)
    stops = starts.copy()
    known = np.zeros(count, dtype=bool)
    known[backlog.ranges] = True
    # What is gone from the log counts as read; whether that is an error, the plan of the batch says.
    stops[~known] = ends[~known]
    if not known.any():
        return Admitted(stops, numbers([]))
    is_last = np.append(np.diff(backlog.ranges) != 0, True)
    reached = np.zeros(count, dtype=np.int64)
    reached[backlog.ranges[is_last]] = (backlog.firsts + backlog.messages)[is_last]
    firsts = np.zeros(count, dtype=np.int64)
    is_first = np.append(True, is_last[:-1])
    firsts[backlog.ranges[is_first]] = backlog.firsts[is_first]
    seen_to = np.zeros(count, dtype=np.int64)
    seen_to[backlog.ranges[is_last]] = backlog.seconds[is_last]
    more = known & (reached < ends)
    # Nobody knows what comes later than this.
    horizon = int(seen_to[more].min()) if more.any() else _NO_LIMIT
    seen = backlog.seconds <= horizon
    moment = _moment(backlog, seen, max_messages, max_bytes)
    if moment is None:
        taken = _sums(backlog.ranges[seen], backlog.messages[seen], count)
    else:
        older = seen & (backlog.seconds < moment - SAME_SECONDS)
        same = seen & ~older & (backlog.seconds <= moment + SAME_SECONDS)
        taken = _sums(backlog.ranges[older], backlog.messages[older], count)
        left = max_messages - int(taken.sum()), max_bytes - int(backlog.bytes[older].sum())
        taken += _share(backlog, same, count, left, turn, is_needed=not taken.any())
    some = known & (taken > 0)
    stops[some] = (firsts + taken)[some]
    everything = some & (taken >= _sums(backlog.ranges, backlog.messages, count)) & ~more
    stops[everything] = ends[everything]
    if moment is not None or 2 * int(taken.sum()) >= max_messages:
        return Admitted(np.minimum(stops, ends), numbers([]))
    full = _moment(backlog, np.ones(len(seen), dtype=bool), max_messages, max_bytes)
    return Admitted(np.minimum(stops, ends), np.flatnonzero(more & (seen_to <= (full or _NO_LIMIT))))


def _moment(backlog: Backlog, seen: Mask, max_messages: int, max_bytes: int) -> int | None:
    """Return the second at which a limit is reached, if one is."""
    order = np.argsort(backlog.seconds[seen], kind="stable")
    over = (np.cumsum(backlog.messages[seen][order]) > max_messages) | (
        np.cumsum(backlog.bytes[seen][order]) > max_bytes
    )
    return int(backlog.seconds[seen][order][np.argmax(over)]) if over.any() else None


def _share(backlog: Backlog, same: Mask, count: int, left: tuple[int, int], turn: int, *, is_needed: bool) -> Numbers:
    """Share out messages of the same time: the same part of what each has, within the limits.

    With `is_needed`, at least one message is granted, whatever its size.
    """
    waiting = _sums(backlog.ranges[same], backlog.messages[same], count)
    # Messages and bytes of all ranges end to end: the bytes of a part are looked up between two of its messages.
    upto = np.append(0, np.cumsum(backlog.messages[same]))
    bytes_upto = np.append(0, np.cumsum(backlog.bytes[same])).astype(np.float64)
    begins = np.cumsum(waiting) - waiting

    def size(low: Numbers, high: Numbers) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.interp(begins + high, upto, bytes_upto) - np.interp(
            begins + low, upto, bytes_upto
        )
        return found

    def fits(granted: Numbers) -> bool:
        return int(granted.sum()) <= left[0] and float(size(granted * 0, granted).sum()) <= left[1]

    least = np.minimum(waiting, 1)
    if not fits(least):
        least = least * 0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if fits(np.maximum(least, np.rint(waiting * middle).astype(np.int64))):
            low = middle
        else:
            high = middle
    granted: Numbers = np.maximum(least, np.rint(waiting * low).astype(np.int64))
    # What does not divide goes to those first who got nothing, then to those who miss most; ties are settled by turns.
    order = np.roll(np.arange(count), -(turn * max(1, left[0])) % count)
    order = order[waiting[order] > granted[order]]
    order = order[np.lexsort((granted[order] - waiting[order] * low, granted[order] > 0))]
    costs = size(granted, granted + 1)[order]
    spare = left[0] - int(granted.sum()), left[1] - float(size(granted * 0, granted).sum())
    fitting = (np.arange(1, len(order) + 1) <= spare[0]) & (np.cumsum(costs) <= spare[1])
    granted[order[fitting]] += 1
    if is_needed and not granted.any():
        granted[order[0]] = 1
    return granted


def _sums(ranges: Numbers, values: Numbers, count: int) -> Numbers:
    sums: Numbers = np.bincount(ranges, weights=values, minlength=count).astype(np.int64)
    return sums
