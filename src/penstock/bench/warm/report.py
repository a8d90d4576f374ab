"""One run of `penstock bench warm`: what was measured, and what is promised of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg

from penstock.bench import environment
from penstock.bench.environment import Environment
from penstock.bench.groups.report import Verdict
from penstock.bench.warm import measures
from penstock.bench.warm.measures import FULL, QUICK, Plan
from penstock.bench.warm.stage import stage

_CASES = (("shared", 1), ("ordered", 1), ("shared", 50), ("ordered", 50))


class Rates(msgspec.Struct, frozen=True):
    """Items a second: from the window (warm), beyond it (sustained), from PostgreSQL alone, from bare lists."""

    mode: str
    batch: int
    found: dict[str, float]


class Report(msgspec.Struct, frozen=True):
    """All that a run found; latencies in ms."""

    environment: Environment
    rates: list[Rates]
    latency: dict[str, dict[str, float]]
    neighbours: dict[str, float]
    busy_share: float


def run(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """Measure."""
    found = []
    with stage(url) as where:
        with psycopg.connect(where.dsn) as connection:
            machine = environment.look(connection)
        for mode, batch in _CASES:
            say(f"take and ack, {mode}, {batch} at a time")
            found.append(Rates(mode, batch, measures.rates(where, plan, mode, batch)))
        say("latency")
        latency = {
            name: {"p50": measures.quantile(each, 0.5), "p99": measures.quantile(each, 0.99)}
            for name, each in measures.latencies(where, plan).items()
        }
        say("two groups of one action class")
        neighbours = measures.neighbours(where, plan)
        say("more arrivals than workers can handle")
        busy = measures.busy_share(where, plan)
    return Report(machine, found, latency, neighbours, busy)


def verdicts(report: Report) -> Iterator[Verdict]:
    """Look at every promise."""
    for each in report.rates:
        found, what = each.found, f"{each.mode}, {each.batch} at a time"
        of_lists = found["warm"] / found["lists"]
        if each.batch == 1:
            times = found["warm"] / found["postgres"]
            yield Verdict(f"{what}: 5 times PostgreSQL alone", times, times >= 5)
            yield Verdict(f"{what}: 0.5 of bare lists", of_lists, of_lists >= 0.5)
        else:
            yield Verdict(f"{what}: 0.4 of bare lists", of_lists, of_lists >= 0.4)
    slower = report.latency["warm"]["p50"] / report.latency["lists"]["p50"]
    yield Verdict("push → handler, p50: at most twice a bare blocking pop", slower, slower <= 2)
    slower = report.latency["warm"]["p50"] / report.latency["insert"]["p50"]
    yield Verdict("push → handler, p50: at most twice a durable insert and a bare blocking pop", slower, slower <= 2)
    kept = report.neighbours["beside a slow one"] / report.neighbours["alone"]
    yield Verdict("beside a slow group: 0.9 of the rate alone", kept, kept >= 0.9)
    yield Verdict("cold: workers 0.95 busy", report.busy_share, report.busy_share >= 0.95)


def lines(report: Report) -> Iterator[str]:
    """Write a report for a person, good and bad alike."""
    for each in report.rates:
        shown = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in each.found.items())
        yield f"take and ack, {each.mode}, {each.batch} at a time: {shown}"
    for name, found in report.latency.items():
        yield f"push → handler, {name}: p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms"
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'} {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Write warm.json and warm.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "warm.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    text = "\n".join(["# penstock bench warm", "", "```", *lines(report), "```", ""])
    (folder / "warm.md").write_text(text, encoding="utf-8")


__all__ = ["FULL", "QUICK", "Report", "lines", "run", "save", "verdicts"]
