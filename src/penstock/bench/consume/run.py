"""One run: every case, each contender in turn, round after round, in databases of their own on one server.

A queue is filled once, and every turn consumes it with a group that begins at its first message; the plain queue, which
deletes what it gave out, is filled for each turn. Between turns the databases are vacuumed, so that autovacuum does not
come at a moment of its own.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from penstock.bench import environment
from penstock.bench.consume import breakdown, worker
from penstock.bench.consume.breakdown import Breakdown
from penstock.bench.consume.plan import Case, Fill, Plan, Result
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.programs import Program, Programs, ask_all
from penstock.errors import PenstockError

Say = Callable[[str], None]
_WORKER = Path(worker.__file__)
# More than it takes in a turn.
_PLAIN_MESSAGES = {1: 20_000, 100: 120_000, 1000: 400_000}
_PLAIN_TABLES = """
CREATE TABLE IF NOT EXISTS plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE IF NOT EXISTS pushed (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL, at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS lanes (lane integer PRIMARY KEY);
INSERT INTO lanes SELECT generate_series(0, 7) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS logged (
    lane integer, place bigint, body bytea NOT NULL, at timestamptz NOT NULL, PRIMARY KEY (lane, place)
);
CREATE OR REPLACE FUNCTION append(into_lane integer, given bytea) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    newest bigint;
BEGIN
    PERFORM 1 FROM lanes WHERE lane = into_lane FOR NO KEY UPDATE;
    -- A new statement, hence a new snapshot: whoever had the lock has committed, and is seen.
    INSERT INTO logged (lane, place, body, at)
    SELECT into_lane, coalesce((SELECT place FROM logged WHERE lane = into_lane ORDER BY place DESC LIMIT 1), 0) + 1,
           given, clock_timestamp()
    RETURNING place INTO newest;
    RETURN newest;
END
$$;
"""


class Report(msgspec.Struct, frozen=True):
    """All that a run found."""

    environment: Environment
    rounds: int
    quick: bool
    before: str | None
    remarks: list[str]
    results: list[Result]
    breakdown: Breakdown


class Side:
    """One penstock: a database that it has migrated itself, and its workers."""

    def __init__(self, url: str, programs: Programs) -> None:
        self.url = url
        self.programs = programs

    def fill(self, queue: str, fill: Fill) -> None:
        """Fill a queue. Nothing is timed here, so nothing waits for the disk."""
        fast = breakdown.with_options(self.url, "-c synchronous_commit=off")
        self._first.ask(
            "fill", url=fast, queue=queue, partitions=fill.partitions, stored=fill.stored, messages=fill.messages
        )
        vacuum(self.url)

    def turn(
        self, way: str, queue: str, case: Case, group: str, settings: dict[str, Any], seconds: float, most: int
    ) -> float | str:
        """Consume with a new group; return messages a second, or why its settings are not to be had."""
        refused = self._first.ask(
            "begin_group", url=self.url, queue=queue, group=group, mode=case.mode, settings=settings
        )
        if refused is not None:
            return str(refused)
        programs = self.programs.first(case.workers)
        ask_all(programs, "open", way=way, url=self.url, queue=queue, group=group, take=case.take)
        rate = run_all(programs, seconds, most)
        self._first.ask("end_group", url=self.url, queue=queue, group=group)
        vacuum(self.url)
        return rate

    def delete(self, queue: str) -> None:
        """Delete a queue, by the client that knows this schema."""
        self._first.ask("delete", url=self.url, queue=queue)

    @property
    def _first(self) -> Program:
        return self.programs.first(1)[0]


class Run:
    """A run with all its databases open."""

    def __init__(self, plan: Plan, now: Side, before: Side | None, plain_url: str, say: Say) -> None:
        self._plan = plan
        self._now = now
        self._before = before
        self._plain_url = plain_url
        self._say = say
        self._numbers = count()
        self.remarks: list[str] = []
        self._relaxed = True
        with psycopg.connect(plain_url, autocommit=True) as connection:
            connection.execute(_PLAIN_TABLES)

    def results(self) -> Iterator[Result]:
        """Measure everything."""
        for workers in self._plan.pushers:
            case = Case(0, workers)
            self._say(case.title)
            yield Result(case, self._rounds(self._pushing(case)))
        for fill in self._plan.fills():
            queue = f"q{next(self._numbers)}"
            self._say(f"filling {fill.partitions:,} partitions with {fill.messages:,} messages")
            for side in self._sides:
                side.fill(queue, fill)
            for case in fill.cases:
                self._say(case.title)
                yield Result(case, self._rounds(self._consuming(queue, fill, case)))
            for side in self._sides:
                side.delete(queue)
                vacuum(side.url)

    @property
    def _sides(self) -> list[Side]:
        return [self._now] if self._before is None else [self._now, self._before]

    def _pushing(self, case: Case) -> dict[str, Callable[[], float]]:
        turns = {"penstock": lambda: self._push(self._now, case)}
        if self._before is not None:
            before = self._before
            turns["before"] = lambda: self._push(before, case)
        turns["gapless"] = lambda: self._append(case)
        turns["insert"] = lambda: self._insert(case)
        return turns

    def _consuming(self, queue: str, fill: Fill, case: Case) -> dict[str, Callable[[], float]]:
        most = fill.messages * 9 // 10 // case.take // case.workers - worker.WARM_UP

        def turn(side: Side, way: str, settings: dict[str, Any]) -> float:
            group = f"g{next(self._numbers)}"
            rate = side.turn(way, queue, case, group, settings, self._plan.seconds, most)
            if isinstance(rate, str):
                raise PenstockError(rate)
            return rate

        turns = {
            "penstock": lambda: turn(self._now, "consume", {}),
            "pop + ack": lambda: turn(self._now, "pop", {}),
        }
        ahead = self._now.programs.first(1)[0].ask("can", option="prefetch")
        if ahead:
            turns["prefetch"] = lambda: turn(self._now, "prefetch", {})
        if self._relaxed and case.take == 1 and self._can_relax(queue):
            turns["relaxed"] = lambda: turn(self._now, "consume", {"durable_acks": False})
            if ahead:
                turns["relaxed + prefetch"] = lambda: turn(self._now, "prefetch", {"durable_acks": False})
        if self._before is not None:
            before = self._before
            turns["before"] = lambda: turn(before, "consume", {})
        turns["plain"] = lambda: self._plain(case)
        return turns

    def _can_relax(self, queue: str) -> bool:
        """Find out whether groups have the setting."""
        first = self._now.programs.first(1)[0]
        arguments = {"url": self._now.url, "queue": queue, "group": "relaxed"}
        refused = first.ask("begin_group", **arguments, mode="ordered", settings={"durable_acks": False})
        if refused is None:
            first.ask("end_group", **arguments)
            return True
        self._relaxed = False
        remark = "durable_acks = false was not measured: this penstock has no such setting of a group"
        self.remarks.append(remark)
        self._say(remark)
        return False

    def _push(self, side: Side, case: Case) -> float:
        programs = side.programs.first(case.workers)
        for number, program in enumerate(programs):
            program.send("open", way="push", url=side.url, queue="pushed", partition=f"p{number}")
        for program in programs:
            program.answer()
        return run_all(programs, self._plan.seconds, 1 << 30)

    def _append(self, case: Case) -> float:
        programs = self._now.programs.first(case.workers)
        for number, program in enumerate(programs):
            program.send("open", way="append", url=self._plain_url, lane=number)
        for program in programs:
            program.answer()
        return run_all(programs, self._plan.seconds, 1 << 30)

    def _insert(self, case: Case) -> float:
        programs = self._now.programs.first(case.workers)
        ask_all(programs, "open", way="insert", url=self._plain_url)
        return run_all(programs, self._plan.seconds, 1 << 30)

    def _plain(self, case: Case) -> float:
        messages = _PLAIN_MESSAGES[case.take]
        with psycopg.connect(self._plain_url, autocommit=True) as connection:
            connection.execute("TRUNCATE plain")
            connection.execute(
                "INSERT INTO plain (body) SELECT %s FROM generate_series(1, %s)", (worker.MESSAGE, messages)
            )
            connection.execute("VACUUM ANALYZE plain")
        programs = self._now.programs.first(case.workers)
        ask_all(programs, "open", way="plain", url=self._plain_url, take=case.take)
        return run_all(programs, self._plan.seconds, messages // case.take // case.workers - worker.WARM_UP)

    def _rounds(self, turns: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {name: [] for name in turns}
        order = list(turns)
        for number in range(self._plan.rounds):
            first = number % len(order)
            for name in order[first:] + order[:first]:
                samples[name].append(turns[name]())
        return samples


def run(url: str, plan: Plan, quick: bool, checkout: Path | None, say: Say) -> Report:
    """Measure everything on the server of an address, beside another checkout if one is given."""
    with ExitStack() as stack:
        now = _side(stack, url, None)
        before = None if checkout is None else _side(stack, url, checkout)
        plain_url = stack.enter_context(own_database(url))
        with psycopg.connect(now.url, autocommit=True) as connection:
            facts = environment.look(connection)
        one = Run(plan, now, before, plain_url, say)
        say("where the time goes")
        spent = breakdown.measure(now.url, plan.calls)
        results = list(one.results())
        name = None if checkout is None else _name(checkout)
        return Report(facts, plan.rounds, quick, name, one.remarks, results, spent)


def run_all(programs: Sequence[Program], seconds: float, most: int) -> float:
    """Let workers that are ready begin at the same time; return messages a second of all together."""
    answers = ask_all(programs, "run", seconds=seconds, most=most)
    return float(sum(one["messages"] / one["seconds"] for one in answers if one["messages"]))


def vacuum(url: str) -> None:
    """Clean up after a turn."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")


def _side(stack: ExitStack, url: str, checkout: Path | None) -> Side:
    own = stack.enter_context(own_database(url))
    programs = stack.enter_context(Programs(checkout, _WORKER))
    first = programs.first(1)[0]
    about = first.ask("about")
    if checkout is not None and not Path(about["file"]).is_relative_to(checkout.absolute()):
        raise PenstockError(f"the Python of {checkout} imports penstock from {about['file']}, not from that folder")
    # Migrates the database.
    first.ask("migrate", url=own)
    return Side(own, programs)


def _name(checkout: Path) -> str:
    """Say which commit a checkout is at, or only that there was one."""
    git = shutil.which("git")
    if git is None:
        return "another checkout"
    done = subprocess.run(
        [git, "-C", str(checkout), "log", "-1", "--format=%h"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "another checkout"
