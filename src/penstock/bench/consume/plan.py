"""What one run of `penstock bench consume` measures, and what it is to reach."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.bench.plan import Ratio

# Who takes part in a case of consuming, and of pushing.
CONSUMERS = ("penstock", "prefetch", "pop + ack", "relaxed", "relaxed + prefetch", "before", "plain")
PUSHERS = ("penstock", "before", "gapless", "insert")


class Case(msgspec.Struct, frozen=True):
    """So many processes that take so many messages at a time, or push one at a time where `take` is 0."""

    take: int
    workers: int
    partitions: int = 1
    mode: str = "ordered"
    # How many messages a segment holds.
    stored: int = 1

    @property
    def title(self) -> str:
        """What to call it in a table."""
        if self.take == 0:
            return f"push one message, {self.workers} at once"
        how = "" if self.stored == self.take else ", pushed one by one"
        return f"{self.mode}, {self.partitions:,} partitions, {self.workers} at once: take {self.take:,}{how}"


class Result(msgspec.Struct, frozen=True):
    """Messages a second of each contender, round by round."""

    case: Case
    samples: dict[str, list[float]]

    def ratio(self, other: str, of: str = "penstock") -> Ratio | None:
        """Compare two contenders, where both took part."""
        if not {of, other} <= self.samples.keys():
            return None
        return Ratio.of(self.samples[of], self.samples[other])


class Fill(NamedTuple):
    """What a queue holds, and the cases that consume it, each turn with a group of its own."""

    partitions: int
    stored: int
    messages: int
    cases: tuple[Case, ...]


class Plan(NamedTuple):
    """How much is measured."""

    takes: tuple[int, ...]
    workers: tuple[int, ...]
    partitions: tuple[int, ...]
    modes: tuple[str, ...]
    pushers: tuple[int, ...]
    rounds: int
    seconds: float
    messages: dict[int, int]
    # Calls that the breakdown of one case times.
    calls: int

    def fills(self) -> Iterator[Fill]:
        """Yield the queues, in the order in which they are measured."""
        for partitions in self.partitions:
            for take in self.takes:
                yield self._fill(partitions, take, take, self.workers)
        # Of what was pushed one by one, a few cases tell enough; over many partitions a take would find too few.
        if len(self.workers) > 1 and 100 in self.takes:
            yield self._fill(min(self.partitions), 100, 1, (2,))

    def _fill(self, partitions: int, take: int, stored: int, workers: tuple[int, ...]) -> Fill:
        # Two batches a partition, or the last message of each would be a case of its own.
        messages = max(self.messages[take] if stored == take else 40_000, 2 * partitions * stored)
        cases = tuple(Case(take, count, partitions, mode, stored) for mode in self.modes for count in workers)
        return Fill(partitions, stored, messages, cases)


FULL = Plan(
    takes=(1, 100, 1000),
    workers=(1, 2, 8),
    partitions=(8, 1000),
    modes=("ordered", "shared"),
    pushers=(1, 2),
    # Many short rounds: a busy second of the machine spoils a few of them, and the median forgets those.
    rounds=9,
    seconds=0.3,
    messages={1: 16_000, 100: 400_000, 1000: 1_000_000},
    calls=400,
)
QUICK = FULL._replace(workers=(2,), partitions=(8,), rounds=15)


class Target(NamedTuple):
    """A ratio to reach with two workers: `of` over `other`, at least `bound`."""

    take: int
    of: str
    other: str
    bound: float

    def applies(self, case: Case) -> bool:
        """Say whether a case is judged by it."""
        return case.take == self.take and case.workers == 2 and case.stored == max(case.take, 1)


TARGETS = (
    *(
        target
        for way in ("penstock", "prefetch")
        for target in (
            Target(1, way, "before", 2.5),
            Target(1, way, "plain", 1.0),
            Target(100, way, "before", 2.0),
            Target(100, way, "plain", 2.0),
        )
    ),
    Target(1, "relaxed", "plain", 1.5),
    Target(1, "relaxed + prefetch", "plain", 1.5),
    Target(0, "penstock", "insert", 0.9),
    # Nothing that numbers its messages reaches the one above.
    Target(0, "penstock", "gapless", 0.8),
)
