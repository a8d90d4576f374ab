"""What a loop has claimed ahead: batches that wait for a handler, and batches whose acks are to be sent.

Nothing here does any input or output. One feeder fills it and empties it, and any number of consumers take from it, in
threads or tasks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from penstock.consuming.claimed import ClaimedMessages

B = TypeVar("B", bound=ClaimedMessages)

# How many bytes of messages wait at most, however many messages that are.
MAX_PREFETCHED_BYTES = 32 << 20
# Where no partitions are left for others, one in so many of those that are held is left to them.
_LEFT_TO_OTHERS = 4
# A batch with less of its lease left than this fraction is not handed out.
_NEAR_ITS_END = 0.1


class Room(NamedTuple):
    """What may be popped: so many partitions, and so many bytes of each."""

    partitions: int
    max_bytes: int


class Asker:
    """A consumer that waits for a batch."""

    __slots__ = ("deadline", "entered", "look", "signal")

    def __init__(self, wait: float, signal: Callable[[], object]) -> None:
        self.entered = time.monotonic()
        self.deadline = self.entered + wait
        self.signal = signal
        # Whether it waits for no time at all, so that timers that are due are served before it is told "nothing".
        self.look = wait <= 0


class Prefetched(Generic[B]):
    """The batches of one feeder."""

    def __init__(self, max_messages: int, take: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._take = take
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[B] = deque()
        self._messages = 0
        self._bytes = 0
        # The size of the largest batch of the last pop that found something.
        self._largest: int | None = None
        # How many partitions fewer than there is room for the next pop asks for.
        self._left_to_others = 0
        # All whose leases are renewed: those that wait, and those that were handed out.
        self._held: dict[B, None] = {}
        self._done: list[B] = []
        # Taken out because of their leases, and to be given back.
        self._dropped: list[B] = []
        self._askers: deque[Asker] = deque()
        self._look_wanted = False
        self._looked_at = float("-inf")
        self._failure: BaseException | None = None
        self._closed = False

    # Consumers

    def enter(self, asker: Asker) -> None:
        """Begin to wait; the feeder looks at once."""
        with self._lock:
            self._askers.append(asker)
            self._look_wanted = True

    def leave(self, asker: Asker) -> None:
        """Wait no more; what it was woken for, another one takes."""
        with self._lock:
            self._askers.remove(asker)
            if self._waiting and self._askers:
                self._askers[0].signal()

    def take(self) -> B | None:
        """Take the batch that has waited longest, if there is one; raises what ended the feeder."""
        with self._lock:
            while self._waiting:
                batch = self._waiting.popleft()
                self._messages -= len(batch.messages)
                self._bytes -= batch.size
                if batch.lease_left > _NEAR_ITS_END * batch.lease_seconds:
                    return batch
                # It could not be renewed, and would be another consumer's before its handler ends.
                del self._held[batch]
                self._dropped.append(batch)
            if self._failure is not None:
                raise self._failure
            return None

    def is_over(self, asker: Asker) -> bool:
        """Say whether an asker has waited long enough: its time is up, and a look that began after it came is over."""
        with self._lock:
            if self._closed:
                return True
            if time.monotonic() < asker.deadline:
                return False
            if self._looked_at >= asker.entered:
                return not self._waiting
            self._look_wanted = True
            return False

    def finished(self, batch: B) -> bool:
        """Take over the ack of a batch; say no when it is too late for that."""
        with self._lock:
            if self._closed:
                return False
            self._done.append(batch)
            return True

    def let_go(self, batch: B) -> None:
        """Take note that a consumer has settled a batch itself, or gives it back."""
        with self._lock:
            self._held.pop(batch, None)

    # The feeder

    def room(self, *, acks: int) -> Room | None:
        """Say what may be popped with acks of so many claims; without any, only when half of what waits was taken."""
        with self._lock:
            messages = self._max_messages - self._messages
            if messages < self._take or not (acks or self._look_wanted or 2 * self._messages <= self._max_messages):
                return None
            left = MAX_PREFETCHED_BYTES - self._bytes
            if self._largest is None:
                # How large they are, the first one tells.
                return Room(1, self._max_bytes)
            largest = max(1, self._largest)
            if left < largest and self._waiting:
                return None
            partitions = max(1, min(messages // self._take, left // largest))
            if acks and self._left_to_others:
                # Of those that are acknowledged now. With nothing left to hand out, one is popped all the same.
                partitions = max(min(partitions, acks) - self._left_to_others, 0 if self._waiting else 1)
                self._left_to_others = 0
                if partitions == 0:
                    return None
            return Room(partitions, max(1, min(self._max_bytes, left // partitions)))

    def look(self) -> tuple[bool, bool]:
        """Say whether a consumer wants a look, and whether it waits for no time."""
        with self._lock:
            return self._look_wanted, any(asker.look for asker in self._askers)

    def want_look(self) -> None:
        """Look once more."""
        with self._lock:
            self._look_wanted = True

    def looking(self) -> None:
        """Begin a look: who comes from now on wants another."""
        with self._lock:
            self._look_wanted = False

    def add(self, batches: Sequence[B]) -> None:
        """Add what was popped, and wake as many consumers."""
        with self._lock:
            self._waiting.extend(batches)
            for batch in batches:
                self._held[batch] = None
                self._messages += len(batch.messages)
                self._bytes += batch.size
            self._largest = max(batch.size for batch in batches)
            if len(self._askers) <= len(batches):
                self._look_wanted = False
            for asker, _ in zip(self._askers, batches, strict=False):
                asker.signal()

    def had_them_all(self) -> None:
        """Take note that a pop found no partitions but those that it acknowledged: next time, leave some to others.

        Without that the first consumer of an ordered group would hold all partitions ahead, and the second one none.
        """
        with self._lock:
            held = sum(len(batch.claims) for batch in self._held)
            self._left_to_others = held // _LEFT_TO_OTHERS

    def take_excess(self) -> list[B]:
        """Take out what came last and is too much, because it is larger than what came before, to give it back."""
        with self._lock:
            excess = []
            while self._bytes > MAX_PREFETCHED_BYTES and len(self._waiting) > 1:
                batch = self._waiting.pop()
                del self._held[batch]
                self._messages -= len(batch.messages)
                self._bytes -= batch.size
                excess.append(batch)
            return excess

    def found_nothing(self, began: float) -> None:
        """Take note of a look in vain; those whose time is up need not wait any more."""
        with self._lock:
            self._looked_at = began
            now = time.monotonic()
            for asker in self._askers:
                if asker.deadline <= now:
                    asker.signal()

    def take_done(self) -> list[B]:
        """Take the batches that are to be acknowledged."""
        if not self._done:
            return []
        with self._lock:
            done, self._done = self._done, []
            for batch in done:
                self._held.pop(batch, None)
            return done

    def take_done_before(self, batch: B) -> list[B]:
        """Take those that are to be acknowledged before somebody begins with a batch; called by consumers.

        What was delivered before has said that it is in work. If the next batch ends this process, that would count as
        a failure of all whose acks have not been sent.
        """
        if not self._done:
            return []
        with self._lock:
            retried = any(claim.attempt > 1 for each in (batch, *self._done) for claim in each.claims)
        return self.take_done() if retried else []

    def put_back_done(self, batches: Sequence[B]) -> None:
        """Take note that acks could not be sent."""
        with self._lock:
            self._done[:0] = batches
            for batch in batches:
                self._held[batch] = None

    def take_dropped(self) -> list[B]:
        """Take the batches that are to be given back."""
        if not self._dropped:
            return []
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped

    def empty(self) -> list[B]:
        """Take all that waits, to give it back."""
        with self._lock:
            rest = [*self._dropped, *self._waiting]
            self._dropped = []
            for batch in self._waiting:
                del self._held[batch]
            self._waiting.clear()
            self._messages = self._bytes = 0
            return rest

    def held(self) -> list[B]:
        """Return the batches whose leases are to be renewed."""
        with self._lock:
            return [batch for batch in self._held if not batch.abandoned and (batch.deferred or not batch.settled)]

    def lost(self, batch: B) -> bool:
        """Take note that a lease is lost, and hand the batch out no more; say whether anybody has it still."""
        with self._lock:
            if batch not in self._held:
                return False
            del self._held[batch]
            if batch in self._waiting:
                self._waiting.remove(batch)
                self._messages -= len(batch.messages)
                self._bytes -= batch.size
            return True

    def fail(self, error: BaseException) -> None:
        """Let all consumers raise an error once nothing waits any more."""
        with self._lock:
            self._failure = self._failure or error
            self._wake_all()

    def abandon(self) -> list[B]:
        """Close it, and return what is neither acknowledged nor given back."""
        with self._lock:
            rest = [*self._done, *self._dropped, *self._waiting]
            for some in (self._done, self._dropped, self._waiting, self._held):
                some.clear()
            self._messages = self._bytes = 0
            self._closed = True
            self._wake_all()
            return rest

    def close_if_all_acked(self) -> bool:
        """Close it, unless acks are still to be sent."""
        with self._lock:
            if self._done:
                return False
            self._closed = True
            self._held.clear()
            self._wake_all()
            return True

    def _wake_all(self) -> None:
        for asker in self._askers:
            asker.signal()
