"""One run of `penstock bench latency`: in a database of its own, reported and judged."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import msgspec
import psycopg

from penstock import Client
from penstock.bench import environment
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.groups.report import Verdict
from penstock.bench.latency import worker
from penstock.bench.plan import Ratio
from penstock.bench.programs import Program, Programs
from penstock.errors import PenstockError

# Each by its way and by the setting `notify`.
CONTENDERS: dict[str, tuple[str, bool | None]] = {
    "round trip": ("round trip", None),
    "one way": ("one way", None),
    "plain queue": ("plain", None),
    "default": ("penstock", None),
    "notify on": ("penstock", True),
    "notify off": ("penstock", False),
    "valkey": ("penstock", True),
}
# Measured where there is one.
VALKEY = "valkey"
BARE = "round trip"
# A round trip stores nothing and takes nothing. This is the least that a queue does, as one would write it oneself: a
# row and a NOTIFY in one transaction, a LISTEN and a DELETE that returns the row.
PLAIN = "plain queue"
P50_BOUND = 1.5
P99_BOUND = 5.0
# What is sent first pays for connections and plans.
_WARM_UP = 12
# Of fewer messages, the slowest is the 99th percentile.
_ENOUGH = 200
# Long enough for consumers who get nothing to poll as seldom as they do.
_REST = 1.0


class Plan(NamedTuple):
    """How much is measured."""

    # Messages a second, and for how many seconds a turn lasts.
    rates: tuple[tuple[float, float], ...]
    rounds: int


FULL = Plan(((5, 10), (500, 2)), 5)
QUICK = Plan(((5, 2), (500, 0.3)), 2)


class Result(msgspec.Struct, frozen=True):
    """Milliseconds of each message at one rate, for each contender a list per round."""

    rate: float
    samples: dict[str, list[list[float]]]

    def percentile(self, name: str, percent: int) -> float:
        """Return a percentile of all rounds together."""
        return _percentile([each for turn in self.samples[name] for each in turn], percent)

    def p50_ratio(self, name: str, other: str = BARE) -> Ratio:
        """Compare the medians of each round."""
        ours, theirs = ([_percentile(turn, 50) for turn in self.samples[each]] for each in (name, other))
        return Ratio.of(ours, theirs)

    def p99_ratio(self, name: str, other: str = BARE) -> float:
        """Compare round by round, or all rounds together where one alone has too few messages for it."""
        if min(len(turn) for each in (name, other) for turn in self.samples[each]) < _ENOUGH:
            return self.percentile(name, 99) / self.percentile(other, 99)
        ours, theirs = ([_percentile(turn, 99) for turn in self.samples[each]] for each in (name, other))
        return Ratio.of(ours, theirs).median


class Report(msgspec.Struct, frozen=True):
    """What was measured."""

    environment: Environment
    rounds: int
    results: list[Result]


def run(url: str, plan: Plan, say: Callable[[str], None], valkey_url: str | None = None) -> Report:
    """Measure everything; hints through Valkey if there is one."""
    with ExitStack() as stack:
        own = stack.enter_context(own_database(url))
        with psycopg.connect(own, autocommit=True) as connection:
            facts = environment.look(connection)
        # Makes the schema.
        Client(own).close()
        programs = stack.enter_context(Programs(None, Path(worker.__file__)))
        sender, receiver = programs.first(2)
        results = [
            Result(rate, _rounds((own, valkey_url), sender, receiver, rate, seconds, plan, say))
            for rate, seconds in plan.rates
        ]
    return Report(facts, plan.rounds, results)


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by the targets, which are for penstock as it comes."""
    found = []
    for result in report.results:
        what = f"push → handler at {result.rate:g} a second"
        for rival, name in ((BARE, "a bare round trip"), (PLAIN, "a plain queue")):
            p50, p99 = result.p50_ratio("default", rival).median, result.p99_ratio("default", rival)
            found.append(Verdict(f"{what}, p50 ≤ {P50_BOUND:g} × {name}", p50, p50 <= P50_BOUND))
            found.append(Verdict(f"{what}, p99 ≤ {P99_BOUND:g} × {name}", p99, p99 <= P99_BOUND))
    return found


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield f"{report.rounds} rounds; round trip and one way: a bare NOTIFY to the other process, and back or not;"
    yield "plain queue: a row and a NOTIFY in one transaction; LISTEN and a DELETE that returns the row"
    for result in report.results:
        yield ""
        heading = f"{result.rate:g} a second"
        yield f"{heading:<14} {'p50 ms':>8} {'p99 ms':>8}   messages   p50 and p99 × round trip; × plain queue"
        for name, turns in result.samples.items():
            p50, p99 = result.percentile(name, 50), result.percentile(name, 99)
            line = f"{name:<14} {p50:8.2f} {p99:8.2f}   {sum(map(len, turns)):>8}"
            if CONTENDERS[name][0] == "penstock":
                ratio = result.p50_ratio(name)
                plain = result.p50_ratio(name, PLAIN)
                line += (
                    f"   {ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f}), {result.p99_ratio(name):.2f}; "
                    f"{plain.median:.2f} ({plain.low:.2f}–{plain.high:.2f}), {result.p99_ratio(name, PLAIN):.2f}"
                )
            yield line
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Store a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latency.json").write_bytes(msgspec.json.encode(report) + b"\n")
    text = "\n".join(["# penstock bench latency", "", "```", *lines(report), "```", ""])
    (folder / "latency.md").write_text(text, encoding="utf-8")


def _rounds(
    urls: tuple[str, str | None],
    sender: Program,
    receiver: Program,
    rate: float,
    seconds: float,
    plan: Plan,
    say: Callable[[str], None],
) -> dict[str, list[list[float]]]:
    order = [name for name in CONTENDERS if name != VALKEY or urls[1]]
    samples: dict[str, list[list[float]]] = {name: [] for name in order}
    for number in range(plan.rounds):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            say(f"{rate:g} a second, round {number + 1} of {plan.rounds}: {name}")
            samples[name].append(_turn(urls, sender, receiver, name, rate, seconds))
    return samples


def _turn(
    urls: tuple[str, str | None], sender: Program, receiver: Program, name: str, rate: float, seconds: float
) -> list[float]:
    """Send for some seconds, and return how long each took."""
    way, notify = CONTENDERS[name]
    # A queue of its own for each, so that nobody gets what was left by another.
    valkey_url = urls[1] if name == VALKEY else "none"
    job = {"way": way, "url": urls[0], "valkey_url": valkey_url, "queue": name.replace(" ", "-"), "notify": notify}
    receiver.ask("receive", **job)
    sender.ask("prepare", **job)
    sender.ask("send", rate=rate, count=_WARM_UP)
    time.sleep(_REST)
    count = _WARM_UP + max(2, round(rate * seconds))
    sender.ask("send", rate=rate, count=count - _WARM_UP)
    came = receiver.ask("received", count=count)
    went = sender.ask("sent", count=count)
    found: list[float] = went if way == BARE else came
    if len(found) < count:
        raise PenstockError(f"{count - len(found)} of {count} messages did not arrive in time ({name}); run it again")
    return found[_WARM_UP:]


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]
