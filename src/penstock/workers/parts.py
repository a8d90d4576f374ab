"""A part of a claim, which is settled in one go or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.broker.claims import Claim
from penstock.broker.items import ItemOutcome, ItemResult, SettledClaim
from penstock.broker.messages import StoredMessage
from penstock.workers.verdicts import FAILED, Produced


@dataclass(slots=True)
class Part:
    """What became of items, and what they gave. It is sent as it is until its fate is known, and takes effect once."""

    # Indexes of the items that are done.
    done: Sequence[tuple[int, int]]
    outcomes: Sequence[ItemOutcome] = ()
    outputs: Sequence[tuple[int, Produced]] = ()
    results: Sequence[ItemResult] = ()
    noted: Sequence[int] = ()
    # Whether it is all that is left of the claim, and done.
    whole: bool = False
    # Whether what is left goes back.
    release: bool = False
    # Whether nothing is left of the claim after it.
    ends: bool = False
    # Whether it was sent, and nobody knows what came of it.
    unknown: bool = False
    # Whether it says that an item failed because what its handler gave was refused.
    refused: bool = False

    @property
    def divisible(self) -> bool:
        """Whether it is about several things."""
        return sum(stop - start for start, stop in self.done) + len(self.outcomes) + self.release > 1

    @property
    def bare(self) -> bool:
        """Whether it has nothing that a handler gave, so that it can be refused for no item's fault."""
        return self.refused or not (self.outputs or self.results or self.outcomes)

    def settled_claim(self, claim: Claim) -> SettledClaim:
        """Return it as the broker takes it."""
        if self.whole:
            return SettledClaim(claim.lease, ((None, None),), noted=tuple(self.noted))
        ranges = _ranges(claim, self.done)
        return SettledClaim(claim.lease, ranges, tuple(self.outcomes), self.release, tuple(self.noted))

    def halves(self, messages: Sequence[StoredMessage]) -> "tuple[Part, Part]":
        """Divide it: those of an ordered group are settled in order, and what goes back comes last."""
        indexes = {messages[index].offset: index for start, stop in self.done for index in range(start, stop)}
        offsets = sorted([*indexes, *(each.offset for each in self.outcomes)])
        middle = (len(offsets) + 1) // 2
        first, second = (
            Part(
                [(indexes[offset], indexes[offset] + 1) for offset in half if offset in indexes],
                [each for each in self.outcomes if each.offset in half],
                [each for each in self.outputs if messages[each[0]].offset in half],
                [each for each in self.results if each.offset in half],
                [each for each in self.noted if each in half],
            )
            for half in (dict.fromkeys(offsets[:middle]), dict.fromkeys(offsets[middle:]))
        )
        return first, replace(second, whole=self.whole, release=self.release, ends=self.ends)

    def failed(self, messages: Sequence[StoredMessage], error: str, reason: str) -> "Part":
        """Return what says that its only item has failed, because this was refused."""
        offset = self.outcomes[0].offset if self.outcomes else messages[self.done[0][0]].offset
        # How long it wanted to wait may be what was refused: the backoff of the group cannot be.
        outcomes = [ItemOutcome(offset, FAILED, None, error, reason)]
        results = [each._replace(state="raised", value=None, error=error) for each in self.results]
        return Part([], outcomes, (), results, self.noted, ends=self.ends, refused=True)


def _ranges(claim: Claim, done: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of offsets for ranges of indexes."""
    messages = claim.messages
    ranges: list[tuple[int, int]] = []
    for start, stop in sorted(done):
        first, last = messages[start].offset, messages[stop - 1].offset + 1
        if claim.shared and last - first > stop - start:
            # Somebody else has what lies between.
            ranges += [(each.offset, each.offset + 1) for each in messages[start:stop]]
        elif ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges
