"""What penstock promises of its speed and its disk, as ratios within one run."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.bench.plan import Case, Result
from penstock.bench.run import Report


class Promise(NamedTuple):
    """A ratio that must hold for some of the cases."""

    says: str
    applies: Callable[[Case], bool]
    other: str
    bound: float
    at_most: bool = False
    needs_lz4: bool = False

    def holds(self, ratio: float) -> bool:
        """Say whether a ratio keeps it."""
        return ratio <= self.bound if self.at_most else ratio >= self.bound


class Verdict(NamedTuple):
    """One promise, looked at in one case."""

    case: Case
    promise: Promise
    ratio: float
    kept: bool
    # What the limit reaches of it, or of the limit a log without gaps at its least: nothing can do better than that.
    limit: float | None = None


PROMISES = (
    Promise("writes at 0.85 of the limit or better", lambda c: c.kind == "write" and c.batch >= 100, "blob", 0.85),
    Promise(
        "writes 2.5 times as fast as a row per message",
        lambda c: c.kind == "write" and c.batch >= 100 and c.size == 100,
        "rows",
        2.5,
    ),
    Promise(
        "reads to Arrow 4 times as fast as a row per message",
        lambda c: c.target == "arrow" and c.batch >= 100 and c.size == 100,
        "rows",
        4.0,
    ),
    Promise(
        "reads to Python 1.5 times as fast as a row per message",
        lambda c: c.target == "python" and c.batch >= 100 and c.size == 100,
        "rows",
        1.5,
    ),
    Promise(
        "takes 0.35 of the disk of a row per message or less, for JSON with lz4",
        lambda c: c.kind == "disk" and c.data == "json",
        "rows",
        0.35,
        at_most=True,
        needs_lz4=True,
    ),
)


def verdicts(report: Report) -> Iterable[Verdict]:
    """Look at every promise in every case it applies to."""
    for promise in PROMISES:
        if promise.needs_lz4 and not report.environment.lz4:
            continue
        for result in report.results:
            if promise.applies(result.case):
                yield _verdict(promise, result)


def _verdict(promise: Promise, result: Result) -> Verdict:
    ratio = result.ratio(promise.other)
    assert ratio is not None  # noqa: S101
    limit = result.ratio(promise.other, of="numbered" if promise.other == "blob" else "blob")
    return Verdict(
        result.case, promise, ratio.median, promise.holds(ratio.median), None if limit is None else limit.median
    )
