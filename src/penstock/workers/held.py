"""A claim that a worker holds: which of its items are done, failed or still to be handled, and what they gave."""

import math
from collections import deque
from collections.abc import Callable

from penstock.broker.arguments import LONGEST_DELAY
from penstock.broker.claims import Claim
from penstock.broker.items import KEPT_FOR, RESULT_HEADER, ItemOutcome, ItemResult
from penstock.broker.messages import StoredMessage
from penstock.workers.parts import Part
from penstock.workers.verdicts import CANCELLED, DEAD, DONE, FAILED, RELEASED, SNOOZED, Produced, Verdict

# What ends a claim of an ordered group: what follows must not overtake.
_ENDS = frozenset((FAILED, SNOOZED, RELEASED))


class HeldClaim:
    """A claim, and what is known of its items."""

    __slots__ = (
        *("cancelled", "claim", "done", "ended", "gives_back", "left", "lost", "messages", "noted", "outcomes"),
        *("outputs", "over", "parts", "results", "settling", "shared", "since", "until"),
    )

    def __init__(self, claim: Claim, until: float = float("inf")) -> None:
        self.claim = claim
        # When its lease ends, by this process's monotonic clock.
        self.until = until
        self.messages: list[StoredMessage] = claim.messages
        self.shared = claim.shared
        # How many items are not known to be done, failed or given back.
        self.left = len(claim.messages)
        # Nothing more of it will be handled: an item of an ordered claim failed, or the worker ends.
        self.ended = False
        # Whether what is not handled goes back.
        self.gives_back = False
        # Somebody else may have it by now: nothing of it is settled any more.
        self.lost = False
        # All of it is settled: it has no lease any more.
        self.over = False
        # Offsets of items that were cancelled before they were begun; they are not handled.
        self.cancelled: set[int] = set()
        # What is to be settled: indexes of what is done, and the others by what became of them.
        self.done: list[tuple[int, int]] = []
        self.outcomes: list[ItemOutcome] = []
        # By the index of the item that gave them.
        self.outputs: list[tuple[int, Produced]] = []
        # Of items whose results somebody wants to know; the number of the claim is still to be set.
        self.results: list[ItemResult] = []
        self.noted: list[int] = []
        # What somebody began to settle, the next one first. Each is sent as it is until its fate is known: what comes
        # to be known meanwhile waits in the lists above, so that nothing is pushed twice.
        self.parts: deque[Part] = deque()
        # Since when something is to be settled.
        self.since: float | None = None
        # Whether a call that settles it is under way.
        self.settling = False

    def __repr__(self) -> str:
        claim = self.claim
        return f"<claim of {claim.partition}[{claim.start}:{claim.stop}]>"

    @property
    def complete(self) -> bool:
        """Whether nothing of it is being handled, or will be."""
        return self.left == 0

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do about it."""
        return self.left == 0 and (self.lost or self.over)

    def ends_with(self, verdict: Verdict) -> bool:
        """Say whether a verdict ends the claim, so that no item after it may be handled."""
        return not self.shared and verdict.kind in _ENDS

    def take(
        self, start: int, stop: int, verdict: Verdict | None, now: float, wait: Callable[[int], float | None]
    ) -> None:
        """Take note that items are done, or what became of one. `wait` returns the backoff of an attempt."""
        self.left -= stop - start
        if self.ended:
            return
        if self.since is None:
            self.since = now
        if verdict is None:
            self._add_done(start, stop)
            return
        kind = verdict.kind
        if kind == RELEASED:
            self.gives_back = True
            self.ended = not self.shared
            return
        message = self.messages[start]
        if verdict.noted:
            self.noted.append(message.offset)
        if kind != SNOOZED and message.headers is not None and RESULT_HEADER in message.headers:
            self.results.append(_result(message, verdict))
        if kind == DONE:
            self._add_done(start, stop)
            self.outputs.extend((start, each) for each in verdict.outputs)
            return
        pause = verdict.wait
        if kind == FAILED and pause is None:
            pause = wait(message.attempt)
        self.outcomes.append(ItemOutcome(message.offset, kind, pause, verdict.error, verdict.reason, verdict.traceback))
        if not self.shared and kind in _ENDS:
            self.ended = True

    def part(self) -> Part:
        """Return what is to be settled next; it stays the next until it is settled."""
        if not self.parts:
            whole = self.complete and not self.outcomes and not self.gives_back
            release = self.complete and self.gives_back
            ends = self.complete or (self.ended and not self.gives_back)
            part = Part(self.done, self.outcomes, self.outputs, self.results, self.noted, whole, release, ends)
            self.done, self.outcomes, self.outputs, self.results, self.noted = [], [], [], [], []
            self.since = None
            self.parts.append(part)
        return self.parts[0]

    def divide(self) -> None:
        """Make two parts of the next one."""
        self.parts.extendleft(reversed(self.parts.popleft().halves(self.messages)))

    def settled(self) -> None:
        """Forget the next part: it is settled."""
        self.over = self.parts.popleft().ends

    def end(self) -> None:
        """Forget all that is not settled: it comes again, behind an item of an ordered group that failed."""
        self.parts.clear()
        self.done, self.outcomes, self.outputs, self.results, self.noted = [], [], [], [], []
        self.since = None
        self.ended = self.over = self.lost = True

    def _add_done(self, start: int, stop: int) -> None:
        done = self.done
        if done and done[-1][1] == start:
            done[-1] = (done[-1][0], stop)
        else:
            done.append((start, stop))


def _result(message: StoredMessage, verdict: Verdict) -> ItemResult:
    """Return what is kept of a handler's result; the broker forgets it if the item comes again."""
    state = {FAILED: "raised", DEAD: "raised", CANCELLED: "cancelled"}.get(verdict.kind, verdict.result_state)
    keep_for = _keep_for((message.headers or {})[RESULT_HEADER])
    return ItemResult(0, message.offset, state, verdict.result, verdict.error, keep_for)


def _keep_for(wanted: str) -> float:
    """Return how long to keep a result: what the producer says, unless it is no time for which one can be kept."""
    try:
        seconds = float(wanted)
    except ValueError:
        return KEPT_FOR
    return seconds if math.isfinite(seconds) and 0 < seconds <= LONGEST_DELAY else KEPT_FOR
