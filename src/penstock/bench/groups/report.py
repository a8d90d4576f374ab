"""One run of `penstock bench groups`: in a database of its own, reported and judged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from uuid import uuid4

import msgspec
import psycopg
from psycopg.sql import SQL, Identifier

from penstock import Client
from penstock.bench import environment
from penstock.bench.environment import Environment
from penstock.bench.groups import idle, load, scale
from penstock.bench.groups.idle import Idle
from penstock.bench.groups.load import Load
from penstock.bench.groups.scale import Scale
from penstock.engine.address import with_database


class Plan(NamedTuple):
    """How much is measured."""

    sizes: tuple[int, ...]
    rounds: int
    pops: int
    load_partitions: tuple[int, ...]
    load_seconds: float
    idle_consumers: int
    idle_seconds: float


FULL = Plan((100, 10_000, 1_000_000), 5, 200, (8, 1000), 60, 64, 60)
QUICK = Plan((10, 1000), 2, 20, (8,), 4, 8, 2)


class Report(msgspec.Struct, frozen=True):
    """What was measured."""

    environment: Environment
    scale: Scale
    loads: list[Load]
    idle: Idle


class Verdict(NamedTuple):
    """A promise and what came of it."""

    promise: str
    measured: float
    kept: bool


def run(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """Measure everything."""
    with own_database(url) as own, Client(own) as client, psycopg.connect(own, autocommit=True) as connection:
        facts = environment.look(connection)
        # First of all, while no timer of other measurements can give them something to do.
        say(f"{plan.idle_consumers} idle consumers")
        idling = idle.measure(own, plan.idle_consumers, plan.idle_seconds)
        loads = [load.measure(own, count, plan.load_seconds, say) for count in plan.load_partitions]
        scaling = scale.measure(client, plan.sizes, plan.rounds, plan.pops, say)
    return Report(facts, scaling, loads, idling)


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by what penstock promises."""
    growth, rivals = report.scale.growth, report.scale.rivals
    sizes = sorted(report.scale.pop_ack_ms)
    found = [
        Verdict(f"pop + ack at {sizes[-1]:,} partitions ≤ 1.5 × that at {sizes[0]:,}", growth, growth <= 1.5),
        *(Verdict(f"≥ 100 × faster than the {name} query", ratio, ratio >= 100) for name, ratio in rivals.items()),
        *(
            Verdict(
                f"≥ 0.95 of the free rate beside an open transaction, {one.partitions:,} partitions",
                one.ratio,
                one.ratio >= 0.95,
            )
            for one in report.loads
        ),
    ]
    written = report.idle.records_of_pollers
    if written is not None:
        found.append(Verdict("WAL records written by idle consumers = 0", written, written == 0))
    return found


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield ""
    for size, times in sorted(report.scale.pop_ack_ms.items()):
        yield f"pop + ack at {size:>9,} partitions: {median(times):8.2f} ms  ({min(times):.2f} … {max(times):.2f})"
    yield f"lookup query of a cursor-row design: {median(report.scale.lookup_ms):8.1f} ms"
    yield f"count query of a cursor-row design:  {median(report.scale.count_ms):8.1f} ms"
    for one in report.loads:
        yield f"{one.partitions:,} partitions, free: {_thousands(one.free)} k messages/s in steps"
        yield f"{one.partitions:,} partitions, held: {_thousands(one.held)} k messages/s in steps"
    idling = report.idle
    pollers = "not known before PostgreSQL 18" if idling.records_of_pollers is None else idling.records_of_pollers
    yield (
        f"{idling.consumers} idle consumers, {idling.polls:,} polls in {idling.seconds:g} s: WAL records of theirs: "
        f"{pollers}; of the whole server: {idling.records_of_server} (without them: {idling.records_without_pollers})"
    )
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Store a report, and the plans it saw."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "groups.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    plans = "\n\n".join(f"{name}:\n\n```\n{plan}\n```" for name, plan in report.scale.plans.items())
    text = "\n".join(["# penstock bench groups", "", "```", *lines(report), "```", "", "## Plans", "", plans, ""])
    (folder / "groups.md").write_text(text)


def _thousands(rates: list[float]) -> str:
    return " ".join(f"{rate / 1000:.1f}" for rate in rates)


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """Make a database for one run."""
    name = f"penstock_bench_{uuid4().hex[:8]}"
    _execute(url, "CREATE DATABASE {}", name)
    try:
        yield with_database(url, name)
    finally:
        _execute(url, "DROP DATABASE {} WITH (FORCE)", name)


def _execute(url: str, statement: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL(statement).format(Identifier(name)))
