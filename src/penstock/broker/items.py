"""Items, as a worker settles them: what became of the messages of a claim, and what they gave."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from penstock.broker.claims import Claim, Lease
from penstock.broker.pushing import PushBatch

# What can become of an item, and what the broker answers to it.
OUTCOMES = ("done", "failed", "snoozed", "dead", "cancelled")
SETTLED = "settled"
REPEATED = "repeated"
RETRY = "retry"
DEAD_LETTER = "dead letter"
# What a handler may have done, as far as it is kept: `returned` has JSON as its value, `returned bytes` just those.
RESULTS = ("returned", "returned bytes", "raised", "discarded", "cancelled")
# A message with this header is one of which somebody wants to know the result; it says for how many seconds to keep it.
RESULT_HEADER = "penstock-result"
# How long results are kept unless somebody says so, in seconds.
KEPT_FOR = 3600.0


class ItemOutcome(NamedTuple):
    """What became of one item, where that is more than being done.

    `failed` counts an attempt: the item comes back after `wait` seconds or the group's backoff, or becomes a dead
    letter when its attempts are used up. `snoozed` comes back after `wait` seconds and counts none. `dead` becomes a
    dead letter at once. `cancelled` is done, and was not handled, because somebody cancelled it. `done` says the same
    as a range of one.
    """

    offset: int
    outcome: str
    wait: float | None = None
    error: str | None = None
    reason: str | None = None
    traceback: str | None = None


class SettledClaim(NamedTuple):
    """What became of the items of one claim.

    `done` has ranges of offsets, each from its first up to and without its last; `(None, None)` is all that is left of
    the claim and has no outcome of its own. What is not settled stays under the lease, or goes back with
    `release_rest`. In an ordered group items are settled in order, and one that failed or is snoozed comes last: it
    ends the claim. `noted` are the items that may have notes or steps, which go with an item that is done or dead.
    """

    lease: Lease
    done: Sequence[tuple[int | None, int | None]] = ()
    outcomes: Sequence[ItemOutcome] = ()
    release_rest: bool = False
    noted: Sequence[int] = ()

    @property
    def whole(self) -> bool:
        """Whether all that is left of it is done."""
        return not self.outcomes and len(self.done) == 1 and self.done[0][0] is None


class Output(NamedTuple):
    """Messages that an item gave. They are pushed only if the claim, by its place among the claims, is settled."""

    claim: int
    push: PushBatch


class ItemResult(NamedTuple):
    """What a handler returned or raised, for somebody who wants to know: kept for so many seconds.

    It is kept if the claim, by its place among the claims, is settled, and if the item does not come back.
    """

    claim: int
    offset: int
    state: str
    value: bytes | None = None
    error: str | None = None
    keep_for: float = KEPT_FOR


class ItemNote(NamedTuple):
    """What a handler notes about an item that it works on: percent, a text, and JSON to go on with at a later attempt.

    None leaves what was noted before.
    """

    lease: Lease
    offset: int
    progress: float | None = None
    note: str | None = None
    checkpoint: bytes | None = None


class ItemNotes(msgspec.Struct, frozen=True):
    """What earlier attempts of an item noted, and the results of the steps that are done, as JSON."""

    progress: float | None
    note: str | None
    checkpoint: bytes | None
    steps: dict[str, bytes]


class KeptResult(msgspec.Struct, frozen=True):
    """What is known of the result of a message in a group: a result that is kept, or else the state of the message."""

    group: str
    state: str
    kept: bool
    value: bytes | None
    error: str | None
    expires_at: datetime | None


class CancelledItem(NamedTuple):
    """A message that was cancelled while it waits or is in flight."""

    group_id: int
    partition_id: int
    offset: int


class SettledItems(NamedTuple):
    """What came of settling.

    For each claim 'settled'; None where the lease is not live; or 'repeated' where it is, and some of the items were
    settled before. In the last two cases nothing of the claim changed and none of its outputs was pushed. For each
    outcome of each claim 'done', 'cancelled', 'retry', 'snoozed' or 'dead letter', and None where the claim was not
    settled. Then what was claimed next.
    """

    settled: list[str | None]
    outcomes: list[list[str | None]]
    claims: list[Claim]
