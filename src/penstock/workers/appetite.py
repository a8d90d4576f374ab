"""How much a lane claims at a time: what its pool handles in half a second, so that slow handlers hoard nothing."""

import msgspec

from penstock.broker.operations.claiming import Pop

# So many seconds of work are claimed ahead, and at most so many items.
_AHEAD = 0.5
_MOST = 4000
# One call claims at most so many partitions, and so many items of each.
_MOST_PARTITIONS = 200
_MOST_MESSAGES = 1000
# How fast old measurements of the rate are forgotten: the weight of a new one that took a tenth of a second.
_WEIGHT = 0.5
_WINDOW = 0.1


class Appetite:
    """What one lane knows of its pool's speed and of the sizes of claims."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._counted = 0
        self._since: float | None = None
        # How many messages a claim had, on average of late.
        self._length = float(_MOST_MESSAGES)

    def handled(self, count: int, now: float) -> None:
        """Take note that items were handled."""
        if self._since is None:
            self._since = now
            self._counted = count
            return
        self._counted += count
        elapsed = now - self._since
        if elapsed >= _WINDOW or self._counted >= _MOST:
            rate = self._counted / max(elapsed, 1e-6)
            # Faster counts at once; slower, in a few steps: an idle moment is no slow handler.
            self._rate = rate if rate > self._rate else self._rate + _WEIGHT * (rate - self._rate)
            self._since, self._counted = now, 0

    def pop(self, wanted: Pop, slots: int, pending: int, idle: int = 0) -> Pop | None:
        """Return how much to pop; None when enough is claimed, and no slot is idle."""
        target = min(_MOST, max(2 * slots, round(self._rate * _AHEAD)))
        room = target - pending
        messages = max(1, min(_MOST_MESSAGES, -(-target // slots) if slots > 1 else target))
        if room <= 0 or (pending > slots and room < target // 2):
            if idle == 0:
                return None
            # What is pending lies behind a few slow items of its partitions: it must not hold up all others.
            return msgspec.structs.replace(wanted, max_messages=messages, max_partitions=min(_MOST_PARTITIONS, idle))
        partitions = max(1, min(_MOST_PARTITIONS, round(room / max(1.0, min(self._length, messages)))))
        return msgspec.structs.replace(wanted, max_messages=messages, max_partitions=partitions)

    def found(self, wanted: Pop, lengths: list[int]) -> bool:
        """Take note of what a pop claimed; say whether there may be more at once."""
        if not lengths:
            return False
        average = sum(lengths) / len(lengths)
        self._length += 0.5 * (average - self._length) if average < self._length else average - self._length
        return len(lengths) >= wanted.max_partitions or max(lengths) >= wanted.max_messages
