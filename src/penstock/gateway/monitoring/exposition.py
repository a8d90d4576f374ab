"""What the database tells, as metrics for Prometheus: groups, breakers, consumers, checks, the server.

No label names a partition, and there is a limit to how many groups have series of their own; the others are added up
under the name `other`. What is not known has no value: a database that cannot be reached gives `penstock_up 0` alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.broker.metrics import Facts, RecentCount, WorkInfo
from penstock.broker.server import Difference, ServerInfo
from penstock.broker.tasks import TaskInfo
from penstock.gateway.monitoring.instruments import PREFIX
from penstock.gateway.monitoring.monitor import RATE_PERIOD
from penstock.gateway.monitoring.queues import labels as action_labels
from penstock.operations.status import CHECKS, judge

# So many groups, queues and action classes have series of their own.
MOST = 500
OTHER = "other"
_STATES = ("closed", "open", "half_open")


class Known(NamedTuple):
    """What is known at one moment; of the server only where this gateway may look at it."""

    facts: Facts
    tasks: Sequence[TaskInfo]
    rates: Sequence[RecentCount]
    server: ServerInfo | None
    differences: Sequence[Difference]


class Exposition:
    """A collector of what is known; None: the database could not be asked."""

    def __init__(self, known: Known | None) -> None:
        self._known = known

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield _gauge("up", "Whether the database answers", 0 if self._known is None else 1)
        if self._known is not None:
            known = self._known
            yield from _groups(known.facts, known.rates)
            yield from _actions(known.facts.work)
            yield from _breakers(known.facts)
            yield from _checks(known)
            if known.server is not None:
                yield from _server(known.server)


def expose(registries: Iterable[CollectorRegistry], known: Known | None) -> bytes:
    """Return the text that Prometheus reads."""
    database = CollectorRegistry()
    database.register(Exposition(known))
    return b"".join(generate_latest(registry) for registry in (*registries, database))


def _groups(facts: Facts, rates: Sequence[RecentCount]) -> Iterator[Metric]:
    every = {(work.queue, work.group) for work in facts.work} | {
        (r.queue, r.group) for r in rates if r.group is not None
    }
    # By name, and not by size: which series there are must not change from one scrape to the next.
    shown = set(sorted(every)[:MOST])

    def family(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=("queue", "group"))

    def summed(metric: GaugeMetricFamily, values: Iterable[tuple[str, str, float]], *, largest: bool = False) -> Metric:
        sums: dict[tuple[str, str], float] = {}
        for queue, group, value in values:
            key = (queue, group) if (queue, group) in shown else (OTHER, OTHER)
            sums[key] = max(sums.get(key, 0.0), value) if largest else sums.get(key, 0.0) + value
        for key, value in sums.items():
            metric.add_metric(key, value)
        return metric

    work = facts.work
    yield summed(
        family("group_lag_messages", "Messages that the group has not acknowledged"),
        ((each.queue, each.group, each.lag) for each in work),
    )
    yield summed(
        family("group_warm_messages", "Messages that are in Valkey, or handed out to consumers, and not acknowledged"),
        ((each.queue, each.group, each.lag - each.cold) for each in work),
    )
    yield summed(
        family("group_cold_messages", "Messages that wait in PostgreSQL alone"),
        ((each.queue, each.group, each.cold) for each in work),
    )
    yield summed(
        family("group_oldest_age_seconds", "For how long the oldest message has waited; 0 when none waits"),
        ((each.queue, each.group, each.oldest_age or 0.0) for each in work),
        largest=True,
    )
    yield summed(family("group_claims", "Claims that are held"), ((e.queue, e.group, e.claimed) for e in work))
    for metric, name, text in (
        ("delivered", "group_delivered_per_second", "Messages handed out"),
        ("acked", "group_acked_per_second", "Messages handled"),
        ("failed", "group_failed_per_second", "Messages whose handlers failed"),
        ("dead_lettered", "group_dead_lettered_per_second", "Messages that became dead letters"),
    ):
        yield summed(
            family(name, f"{text}, a second, in the last {RATE_PERIOD:g} seconds, as clients reported it"),
            [
                *((each.queue, each.group, 0.0) for each in work),
                *(
                    (r.queue, r.group, r.total / RATE_PERIOD)
                    for r in rates
                    if r.group is not None and r.metric == metric
                ),
            ],
        )
    pushed = GaugeMetricFamily(
        f"{PREFIX}_queue_pushed_per_second",
        f"Messages pushed, a second, in the last {RATE_PERIOD:g} seconds, as clients reported it",
        labels=("queue",),
    )
    for queue, value in _capped({r.queue: r.total / RATE_PERIOD for r in rates if r.metric == "pushed"}).items():
        pushed.add_metric((queue,), value)
    yield pushed
    yield _gauge("groups_not_shown", "Groups that are under the name other", len(every) - len(shown))
    if work:
        newest = max(each.sampled_at for each in work)
        yield _gauge("sample_age_seconds", "How old the newest sample of what waits is", _age(facts.now, newest))


def _actions(work: Sequence[WorkInfo]) -> Iterator[Metric]:
    sizes: dict[str, float] = {}
    for each in work:
        name = action_labels(each)[2]
        sizes[name] = sizes.get(name, 0.0) + each.lag - each.cold
    queue_size = GaugeMetricFamily(
        f"{PREFIX}_action_queue_queue_size", "Warm messages of an action class", labels=("action_class",)
    )
    for name, size in _capped(sizes).items():
        queue_size.add_metric((name,), size)
    yield queue_size
    yield _gauge("warm_queued_count", "Warm messages of all groups", sum(each.lag - each.cold for each in work))
    yield _gauge("cold_queued_count", "Cold messages of all groups", sum(each.cold for each in work))


def _breakers(facts: Facts) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        f"{PREFIX}_breaker_state",
        "1 for the state that the breaker of a group is in",
        labels=("queue", "group", "state"),
    )
    for breaker in sorted(facts.breakers, key=lambda each: (each.state == "closed", each.queue, each.group))[:MOST]:
        for state in _STATES:
            states.add_metric((breaker.queue, breaker.group, state), float(breaker.state == state))
    yield states
    yield _gauge(
        "breakers_open", "Breakers that are not closed", sum(each.state != "closed" for each in facts.breakers)
    )
    consumers = GaugeMetricFamily(f"{PREFIX}_consumers", "Consumers by status", labels=("status",))
    for status in ("healthy", "degraded", "open", "half_open", "gone"):
        consumers.add_metric((status,), sum(each.status == status for each in facts.consumers))
    yield consumers


def _checks(known: Known) -> Iterator[Metric]:
    found = dict.fromkeys(CHECKS, 0)
    for problem in judge(known.facts):
        found[problem.check] += 1
    problems = GaugeMetricFamily(f"{PREFIX}_problems", "What the checks of `penstock status` find", labels=("check",))
    for name, count in found.items():
        problems.add_metric((name,), count)
    yield problems
    yield _gauge("running_tasks", "Items whose handlers run, as workers have reported", len(known.tasks))
    if known.differences:
        differences = GaugeMetricFamily(
            f"{PREFIX}_verify_differences", "Differences of state and log; must be 0", labels=("check",)
        )
        for difference in known.differences:
            differences.add_metric((difference.check,), difference.violations)
        yield differences
        oldest = min(difference.checked_at for difference in known.differences)
        yield _gauge("verify_age_seconds", "How long ago that was checked", _age(known.facts.now, oldest))


def _server(server: ServerInfo) -> Iterator[Metric]:
    yield _gauge("database_bytes", "Size of the database", server.database_bytes)
    yield _gauge("lock_waits", "Sessions that wait for a lock", server.waiting_for_locks)
    yield _gauge("max_connections", "Connections that the server allows", server.max_connections)
    connections = GaugeMetricFamily(f"{PREFIX}_connections", "Connections of the server by state", labels=("state",))
    for state, count in server.connections.items():
        connections.add_metric((state,), count)
    yield connections
    since = min((transaction.since for transaction in server.transactions), default=server.now)
    yield _gauge(
        "oldest_transaction_age_seconds", "For how long the oldest transaction is open", _age(server.now, since)
    )
    dead = GaugeMetricFamily(f"{PREFIX}_dead_tuples", "Dead tuples of the schema's tables", labels=("table",))
    for table in server.tables:
        dead.add_metric((table.name,), table.dead_tuples)
    yield dead
    failing = GaugeMetricFamily(f"{PREFIX}_failing_timers", "Timers that fail, by kind", labels=("kind",))
    for kind in ("journal", "claim", "late_wakeup", "enrolment", "scheduled", "sweep", "maintenance"):
        failing.add_metric((kind,), server.failing_timers.get(kind, 0))
    yield failing
    if server.maintained_at is not None:
        yield _gauge(
            "maintenance_age_seconds",
            "How long ago maintenance began its last complete pass",
            _age(server.now, server.maintained_at),
        )


def _capped(values: dict[str, float]) -> dict[str, float]:
    """Return the first values by name, and the sum of the others."""
    names = sorted(values)
    kept = {name: values[name] for name in names[:MOST]}
    if len(names) > MOST:
        kept[OTHER] = kept.get(OTHER, 0.0) + sum(values[name] for name in names[MOST:])
    return kept


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _age(now: datetime, moment: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())
