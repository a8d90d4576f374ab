"""What one run measures, full or quick, and the names of what it finds."""

from statistics import median
from typing import Literal, NamedTuple

import msgspec

from penstock.bench.payloads import Payload

Kind = Literal["write", "read", "disk"]


class Case(msgspec.Struct, frozen=True):
    """One thing that is measured of every contender."""

    kind: Kind
    data: str
    size: int
    batch: int
    workers: int = 1
    target: str | None = None
    merged: bool = False

    @property
    def title(self) -> str:
        """What to call it in a table."""
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"
        what = f"{self.kind} to {self.target}" if self.target else self.kind
        who = f", {self.workers} at once" if self.kind != "disk" else ""
        how = "one by one, merged" if self.merged else "one by one" if self.batch == 1 else f"batches of {self.batch}"
        return f"{what}: {size} {self.data}, {how}{who}"


class Ratio(NamedTuple):
    """One contender over another: the median of the rounds, and the lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: list[float], theirs: list[float]) -> "Ratio":
        """Compare two contenders round by round: noise that lasts hits both."""
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        return cls(median(ratios), min(ratios), max(ratios))


class Result(msgspec.Struct, frozen=True):
    """What came of a case: messages per second, or bytes of disk per message, of each round."""

    case: Case
    samples: dict[str, list[float]]

    def ratio(self, other: str, of: str = "penstock") -> Ratio | None:
        """Compare two contenders, where both took part."""
        if not {of, other} <= self.samples.keys():
            return None
        return Ratio.of(self.samples[of], self.samples[other])


class Plan(NamedTuple):
    """How much is measured."""

    writers: int
    readers: tuple[int, ...]
    rounds: int
    write_seconds: float
    read_seconds: float
    writes: tuple[tuple[Payload, int], ...]
    reads: tuple[tuple[Payload, int], ...]
    read_bytes: int
    singles: int

    @property
    def steps(self) -> int:
        """How many cases it has, to show how far a run is."""
        return len(self.writes) + len(self.reads) + 1


_SMALL = (Payload("json", 100), Payload("random", 100))
_LARGE = (Payload("json", 1024), Payload("random", 1024))

FULL = Plan(
    writers=2,
    readers=(1, 5),
    # Many short rounds: a busy second of the machine spoils a few of them, and the median forgets those.
    rounds=15,
    write_seconds=0.3,
    read_seconds=0.1,
    writes=tuple((payload, batch) for payload in _SMALL + _LARGE for batch in (1, 100, 1000)),
    # Of 1 KiB messages JSON alone: what is in them makes no difference to readers, and a run should take minutes.
    reads=tuple((payload, batch) for payload in (*_SMALL, _LARGE[0]) for batch in (100, 1000)),
    read_bytes=6 << 20,
    singles=2_000,
)
QUICK = Plan(
    writers=2,
    readers=(1, 2),
    rounds=2,
    write_seconds=0.1,
    read_seconds=0.05,
    writes=tuple((payload, batch) for payload in _SMALL for batch in (1, 100)),
    reads=tuple((payload, 100) for payload in _SMALL),
    read_bytes=1 << 20,
    singles=300,
)
