"""One run of `penstock bench batching`: in a database of its own, reported and judged."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psycopg

from penstock import AsyncClient, Client
from penstock.bench import environment
from penstock.bench.batching import measures
from penstock.bench.batching.measures import Check, Idle, Pair
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.groups.report import Verdict


class Plan(NamedTuple):
    """How much is measured."""

    pops: int
    tasks: int
    partitions: tuple[int, ...]
    push_seconds: float
    lone_pushes: int
    checks: int
    check_rounds: int
    rounds: int
    waiters: int
    idle_seconds: float


FULL = Plan(100, 256, (1, 16), 2.0, 200, 500, 60, 9, 1000, 30)
QUICK = Plan(20, 32, (1,), 0.2, 20, 50, 5, 3, 50, 2)


class Report(msgspec.Struct, frozen=True):
    """What was measured."""

    environment: Environment
    pops: int
    tasks: int
    round_trips: Pair
    push_rates: dict[int, Pair]
    lone_push_us: Pair
    check_us: Check
    idle: Idle


def run(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """Measure everything."""
    with own_database(url) as own, psycopg.connect(own, autocommit=True) as connection:
        facts = environment.look(connection)
        # Makes the schema.
        Client(own).close()
        return asyncio.run(_run(own, plan, facts, say))


async def _run(own: str, plan: Plan, facts: Environment, say: Callable[[str], None]) -> Report:
    async with AsyncClient(own) as client:
        # First of all, while no timer of other measurements can give them something to do.
        say(f"{plan.waiters:,} who wait in vain")
        idling = await measures.idle(client, plan.waiters, plan.idle_seconds)
        say("the check beside a pop that finds nothing")
        check = await asyncio.to_thread(measures.check_cost, own, plan.checks, plan.check_rounds)
        say(f"{plan.pops} pops at once")
        trips = await measures.round_trips(client, plan.pops, plan.rounds)
        say("a lone push")
        lone = await measures.lone_push(client, plan.lone_pushes, plan.rounds)
        rates = {}
        for partitions in plan.partitions:
            say(f"{plan.tasks} tasks that push to {partitions} partition(s)")
            rates[partitions] = await measures.push_rate(
                client, plan.tasks, partitions, plan.push_seconds, plan.rounds // 3
            )
    return Report(facts, plan.pops, plan.tasks, trips, rates, lone, check, idling)


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by what penstock promises."""
    trips, lone, check = report.round_trips.ratio, report.lone_push_us.ratio, report.check_us.ratio
    return [
        Verdict(f"{report.pops} pops at once in ≤ 0.1 of the round trips", trips, trips <= 0.1),
        *(
            Verdict(
                f"{report.tasks} tasks push single messages to {partitions} partition(s) ≥ 8 × as fast as one by one",
                pair.ratio,
                pair.ratio >= 8,
            )
            for partitions, pair in report.push_rates.items()
        ),
        Verdict("p50 of a lone push ≤ 1.1 × that of an unbatched one", lone, lone <= 1.1),
        Verdict("has_pending_messages ≤ 0.3 of the cost of an empty pop", check, check <= 0.3),
        Verdict(
            f"{report.idle.waiters:,} idle waiters ≤ 5 queries a second in all",
            report.idle.per_second,
            report.idle.per_second <= 5,
        ),
    ]


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield ""
    yield f"{report.pops} pops at once: {_both(report.round_trips, 0)} calls of the database"
    for partitions, pair in report.push_rates.items():
        yield f"{report.tasks} tasks, {partitions} partition(s): {_both(pair, 0)} single pushes a second"
    yield f"a lone push, p50: {_both(report.lone_push_us, 0)} µs"
    check = report.check_us
    yield (
        f"on the server: has_pending_messages {median(check.check):.1f} µs, "
        f"a pop that finds nothing {median(check.empty_pop):.1f} µs"
    )
    idle = report.idle
    yield f"{idle.waiters:,} idle waiters: {idle.calls} calls of the database in {idle.seconds:.0f} s"
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Store a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "batching.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    text = "\n".join(["# penstock bench batching", "", "```", *lines(report), "```", ""])
    (folder / "batching.md").write_text(text)


def _both(pair: Pair, digits: int) -> str:
    return f"{median(pair.batched):,.{digits}f} batched, {median(pair.unbatched):,.{digits}f} unbatched"
