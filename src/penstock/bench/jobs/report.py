"""One run of `penstock bench workers`: rounds in turns on one server with one durability, and what was measured."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psycopg

from penstock.bench import environment
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.groups.report import Verdict
from penstock.bench.jobs import worker
from penstock.bench.jobs.contenders import CONTENDERS
from penstock.bench.programs import Program, Programs, ask_all
from penstock.errors import PenstockError
from penstock.postgres.migrate import migrate

_WORKER = Path(worker.__file__)
OURS = "penstock"
OTHERS = tuple(name for name in CONTENDERS if name != OURS)
# What penstock promises: so many times as fast as the better one.
_FASTER = 5.0
# How often a queue that is empty too early is filled with more.
_TRIES = 3


class Plan(NamedTuple):
    """How much is measured. `jobs` is more than one worker handles in a turn."""

    workers: tuple[int, ...]
    rounds: int
    seconds: float
    jobs: dict[str, int]
    latencies: int
    rate: float


FULL = Plan((1, 8), 5, 2.0, {OURS: 600_000, "procrastinate": 20_000, "pgqueuer": 60_000}, latencies=200, rate=10.0)
QUICK = Plan((1,), 1, 0.3, {OURS: 100_000, "procrastinate": 3_000, "pgqueuer": 10_000}, latencies=10, rate=10.0)


class Throughput(msgspec.Struct, frozen=True):
    """Jobs a second of each contender, round by round."""

    workers: int
    samples: dict[str, list[float]]

    @property
    def medians(self) -> dict[str, float]:
        """The median of the rounds."""
        return {name: median(found) for name, found in self.samples.items()}


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from the call that pushes a job to the start of its handler."""

    samples: dict[str, list[float]]

    def quantile(self, name: str, share: float) -> float:
        """Return how long that share of the jobs took at most."""
        found = sorted(self.samples[name])
        return found[min(len(found) - 1, int(share * len(found)))]


class Report(msgspec.Struct, frozen=True):
    """All that a run found."""

    environment: Environment
    rounds: int
    throughput: list[Throughput]
    latency: Latency


def run(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """Measure."""
    with Programs(None, _WORKER) as programs:
        with psycopg.connect(url) as connection:
            where = environment.look(connection)
        latencies: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        throughput = []
        for count in plan.workers:
            samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for number in range(plan.rounds):
                for name in _turn(number):
                    say(f"round {number + 1} of {plan.rounds}, {count} workers: {name}")
                    with _prepared(url, name, programs) as dsn:
                        samples[name].append(_throughput(name, dsn, plan, programs.first(count)))
            throughput.append(Throughput(count, samples))
        for number in range(plan.rounds):
            for name in _turn(number):
                say(f"round {number + 1} of {plan.rounds}, latency: {name}")
                with _prepared(url, name, programs) as dsn:
                    latencies[name] += _latencies(name, dsn, plan, programs.first(2))
    return Report(where, plan.rounds, throughput, Latency(latencies))


def _turn(number: int) -> list[str]:
    """Return the contenders in the order of a round: each comes first in turn."""
    names = list(CONTENDERS)
    first = number % len(names)
    return names[first:] + names[:first]


@contextmanager
def _prepared(url: str, name: str, programs: Programs) -> Iterator[str]:
    """A database of its own, in which a contender has made what it needs."""
    with own_database(url) as dsn:
        if name == OURS:
            with psycopg.connect(dsn, autocommit=True) as connection:
                migrate(connection)
        programs.first(1)[0].ask("prepare", way=name, url=dsn)
        yield dsn


def _throughput(name: str, dsn: str, plan: Plan, programs: Sequence[Program]) -> float:
    """Return how many jobs a second are started; measured again, with more of them, where they were too few."""
    count = plan.jobs[name] * (1 if len(programs) == 1 else 2)
    for _ in range(_TRIES):
        programs[0].ask("fill", way=name, url=dsn, count=count)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        ask_all(programs, "start", way=name, url=dsn)
        ask_all(programs, "warm")
        rates = ask_all(programs, "count", seconds=plan.seconds)
        left = programs[0].ask("left", way=name, url=dsn)
        ask_all(programs, "stop")
        if left:
            return float(sum(rates))
        count *= 4
    raise PenstockError(f"{name} has emptied its queue while it was measured, {_TRIES} times; give it more jobs")


def _latencies(name: str, dsn: str, plan: Plan, programs: Sequence[Program]) -> list[float]:
    pusher, consumer = programs
    consumer.ask("start", way=name, url=dsn)
    pusher.ask("send", way=name, url=dsn, rate=plan.rate, count=plan.latencies // plan.rounds or 1)
    found: list[float] = consumer.ask("latencies", count=plan.latencies // plan.rounds or 1)
    consumer.ask("stop")
    return found


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by the targets."""
    found = []
    for each in report.throughput:
        medians = each.medians
        better = max(OTHERS, key=lambda name: medians[name])
        ratio = medians[OURS] / max(medians[better], 1e-9)
        promise = f"{each.workers} workers: penstock ≥ {_FASTER:g} × {better}"
        found.append(Verdict(promise, ratio, ratio >= _FASTER))
    ours = report.latency.quantile(OURS, 0.5)
    best = min(report.latency.quantile(name, 0.5) for name in OTHERS)
    found.append(Verdict("push → start: the median of penstock over the better one ≤ 1", ours / best, ours <= best))
    return found


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield f"a handler that does nothing; {report.rounds} rounds in turns, the median (lowest–highest)"
    yield ""
    yield f"{'jobs a second':<24}" + "".join(f"{name:>28}" for name in CONTENDERS)
    for each in report.throughput:
        cells = (
            f"{median(found):,.0f} ({min(found):,.0f}–{max(found):,.0f})"
            for found in map(each.samples.get, CONTENDERS)
            if found
        )
        title = f"{each.workers} worker{'s' if each.workers > 1 else ''}"
        yield f"{title:<24}" + "".join(f"{cell:>28}" for cell in cells)
    yield ""
    yield f"{'push → start, ms':<24}" + "".join(f"{name:>28}" for name in CONTENDERS)
    for share in (0.5, 0.95, 0.99):
        cells = (f"{report.latency.quantile(name, share):.2f}" for name in CONTENDERS)
        yield f"{f'p{share * 100:g}':<24}" + "".join(f"{cell:>28}" for cell in cells)
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Write workers.json and workers.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workers.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    text = "\n".join(["# penstock bench workers", "", "```", *lines(report), "```", ""])
    (folder / "workers.md").write_text(text, encoding="utf-8")
