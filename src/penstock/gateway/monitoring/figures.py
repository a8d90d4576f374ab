"""Live figures: what a page shows at a glance, as one snapshot. No age is in it, so that it changes only with facts."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.broker.metrics import Facts, RecentCount, WorkInfo
from penstock.broker.tasks import TaskInfo
from penstock.gateway.monitoring.monitor import RATE_PERIOD
from penstock.gateway.monitoring.queues import utc
from penstock.operations.status import Problem, judge

# So many groups have a row of their own: those with the largest lag.
MOST_ROWS = 200
_MOST_PROBLEMS = 100


class Totals(msgspec.Struct, frozen=True):
    """What all groups have together.

    Rates are messages a second in the last `rate_period` seconds, as clients reported them; the newest report is of
    `rates_as_of`, None where there was none.
    """

    push_rate: float
    deliver_rate: float
    error_rate: float
    rate_period: float
    rates_as_of: datetime | None
    lag: int
    warm: int
    cold: int
    oldest_at: datetime | None
    open_breakers: int
    consumers: int
    running_tasks: int
    problems: int


class GroupFigures(msgspec.Struct, frozen=True):
    """A group: what waits for it as of `sampled_at`, its breaker, its rates. `push_rate` is that of its queue."""

    queue: str
    group: str
    flow: str | None
    action: str | None
    lag: int
    warm: int
    cold: int
    claimed: int
    waiting: int
    oldest_at: datetime | None
    oldest_did: str | None
    sampled_at: datetime
    breaker: str
    push_rate: float
    deliver_rate: float
    error_rate: float


class Found(msgspec.Struct, frozen=True):
    """A problem that a check found, and what to do about it."""

    check: str
    subject: str
    found: str
    since: datetime | None
    advice: str
    queue: str | None
    group: str | None


class Figures(msgspec.Struct, frozen=True):
    """A snapshot. Where the database cannot be reached, `error` says why, and there are no figures."""

    reachable: bool
    error: str | None = None
    totals: Totals | None = None
    groups: list[GroupFigures] | None = None
    omitted_groups: int | None = None
    problems: list[Found] | None = None


def figures(facts: Facts, tasks: Sequence[TaskInfo], counts: Sequence[RecentCount]) -> Figures:
    """Return the figures of one moment."""
    rates = _Rates(counts)
    breakers = {(each.queue, each.group): each.state for each in facts.breakers}
    largest = sorted(facts.work, key=lambda work: (-work.lag, work.queue, work.group))[:MOST_ROWS]
    problems = [_found(problem) for problem in judge(facts)]
    return Figures(
        True,
        totals=_totals(facts, tasks, rates, len(problems)),
        groups=[_row(work, breakers.get((work.queue, work.group), "closed"), rates) for work in largest],
        omitted_groups=len(facts.work) - len(largest),
        problems=problems[:_MOST_PROBLEMS],
    )


class _Rates:
    """Messages a second, by metric, queue and group."""

    def __init__(self, counts: Iterable[RecentCount]) -> None:
        self._sums: dict[tuple[str, str | None, str | None], float] = {}
        self.as_of: datetime | None = None
        for each in counts:
            rate = each.total / RATE_PERIOD
            for key in {(each.metric, each.queue, each.group), (each.metric, None, None)}:
                self._sums[key] = self._sums.get(key, 0.0) + rate
            self.as_of = each.newest_at if self.as_of is None else max(self.as_of, each.newest_at)

    def of(self, metric: str, queue: str | None = None, group: str | None = None) -> float:
        return round(self._sums.get((metric, queue, group), 0.0), 3)


def _totals(facts: Facts, tasks: Sequence[TaskInfo], rates: _Rates, problems: int) -> Totals:
    work = facts.work
    return Totals(
        push_rate=rates.of("pushed"),
        deliver_rate=rates.of("delivered"),
        error_rate=rates.of("failed"),
        rate_period=RATE_PERIOD,
        rates_as_of=utc(rates.as_of),
        lag=sum(each.lag for each in work),
        warm=sum(each.lag - each.cold for each in work),
        cold=sum(each.cold for each in work),
        oldest_at=utc(min((each.oldest_at for each in work if each.oldest_at is not None), default=None)),
        open_breakers=sum(each.state != "closed" for each in facts.breakers),
        consumers=sum(each.status != "gone" for each in facts.consumers),
        running_tasks=len(tasks),
        problems=problems,
    )


def _row(work: WorkInfo, breaker: str, rates: _Rates) -> GroupFigures:
    return GroupFigures(
        work.queue,
        work.group,
        work.flow,
        work.action,
        work.lag,
        work.lag - work.cold,
        work.cold,
        work.claimed,
        work.waiting,
        utc(work.oldest_at),
        work.oldest_did,
        work.sampled_at.astimezone(UTC),
        breaker,
        rates.of("pushed", work.queue),
        rates.of("delivered", work.queue, work.group),
        rates.of("failed", work.queue, work.group),
    )


def _found(problem: Problem) -> Found:
    return Found(
        problem.check,
        problem.subject,
        problem.found,
        utc(problem.since),
        problem.advice,
        problem.queue,
        problem.group,
    )
