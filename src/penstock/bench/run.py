"""One run: every case of the plan, each contender in turn, round after round.

The order changes with every round, so that nobody always writes right after the same neighbour. What a case stored is
removed before the next one begins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.bench.contenders import CONTENDERS, SCHEMA, Space, cleaned_schema
from penstock.bench.environment import Environment, look
from penstock.bench.payloads import Payload
from penstock.bench.plan import Case, Plan, Result
from penstock.bench.workers import Job, Reading, Workers, Writing
from penstock.client.client import Client
from penstock.errors import NotFound, PenstockError

ALL = ("penstock", "rows", "blob")
WRITERS = (*ALL, "numbered")
LOGS = ("penstock", "rows")
Progress = Callable[[int, str], None]


class Report(msgspec.Struct, frozen=True):
    """All that a run found."""

    environment: Environment
    rounds: int
    quick: bool
    results: list[Result]


class Run:
    """A run against one database."""

    def __init__(self, client: Client, connection: psycopg.Connection[Any], workers: Workers, plan: Plan) -> None:
        self._client = client
        self._connection = connection
        self._workers = workers
        self._plan = plan
        self._names = (f"{SCHEMA}_{uuid4().hex[:8]}_{number}" for number in count())

    def results(self, progress: Progress) -> Iterator[Result]:
        """Measure everything."""
        steps = count(1)
        for payload, batch in self._plan.writes:
            yield self._writes(payload, batch, _at(progress, next(steps)))
        for payload, batch in self._plan.reads:
            yield from self._reads(payload, batch, _at(progress, next(steps)))
        yield from self._singles(_at(progress, next(steps)))

    def _writes(self, payload: Payload, batch: int, say: Callable[[Case], None]) -> Result:
        plan = self._plan
        case = Case("write", payload.data, payload.size, batch, plan.writers)
        say(case)
        with self._space(payload, WRITERS, plan.writers) as space:
            jobs = {name: Writing(name, space, payload, batch, plan.write_seconds) for name in WRITERS}
            return Result(case, self._rounds(jobs, plan.writers))

    def _reads(self, payload: Payload, batch: int, say: Callable[[Case], None]) -> Iterator[Result]:
        disk = Case("disk", payload.data, payload.size, batch)
        say(disk)
        messages = self._plan.read_bytes // payload.size
        with self._space(payload, ALL, 1) as space:
            stored = self._fill(ALL, space, payload, messages, batch)
            sizes = {name: [CONTENDERS[name].disk_bytes(self._connection, space) / stored] for name in ALL}
            yield Result(disk, sizes)
            yield from self._read_back(space, Case("read", payload.data, payload.size, batch), say)

    def _singles(self, say: Callable[[Case], None]) -> Iterator[Result]:
        payload = Payload("json", 100)
        case = Case("read", payload.data, payload.size, 1)
        say(case)
        with self._space(payload, LOGS, 1) as space:
            self._fill(LOGS, space, payload, self._plan.singles, 1)
            yield from self._read_back(space, case, say)
            for _ in self._client.maintain(min_segments=2):
                pass
            yield from self._read_back(space, msgspec.structs.replace(case, merged=True), say)

    def _read_back(self, space: Space, case: Case, say: Callable[[Case], None]) -> Iterator[Result]:
        for target in ("python", "arrow"):
            for readers in self._plan.readers:
                this = msgspec.structs.replace(case, target=target, workers=readers)
                say(this)
                jobs = {name: Reading(name, space, target, self._plan.read_seconds) for name in LOGS}
                yield Result(this, self._rounds(jobs, readers))

    def _rounds(self, jobs: dict[str, Any], workers: int) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {name: [] for name in jobs}
        order = list(jobs)
        for number in range(self._plan.rounds):
            turn = number % len(order)
            for name in order[turn:] + order[:turn]:
                job: Job = jobs[name]
                samples[name].append(self._workers.run(job, workers))
        return samples

    def _fill(self, names: Sequence[str], space: Space, payload: Payload, messages: int, batch: int) -> int:
        """Store the same messages with each contender. Nothing is timed here, so nothing waits for the disk."""
        options = conninfo_to_dict(self._client.dsn).get("options") or ""
        dsn = make_conninfo(self._client.dsn, options=f"{options} -c synchronous_commit=off".strip())
        batches = payload.batches(messages, batch, seed=1)
        for name in names:
            with contextmanager(CONTENDERS[name].writer)(dsn, space, 0) as write:
                for one in batches:
                    write(one)
        return len(batches) * batch

    @contextmanager
    def _space(self, payload: Payload, names: Sequence[str], partitions: int) -> Iterator[Space]:
        space = Space(next(self._names), payload.size, partitions)
        with cleaned_schema(self._connection):
            try:
                for name in names:
                    CONTENDERS[name].create(self._connection, space)
                yield space
                self._workers.forget()
            finally:
                with suppress(NotFound):
                    self._client.delete(space.name)
        # Not left to autovacuum, which would come at a moment of its own; a role that may not is only warned.
        self._connection.execute("VACUUM penstock.segments")


def run(url: str | None, plan: Plan, quick: bool, progress: Progress) -> Report:
    """Measure everything on the database of an address, or the embedded one."""
    with (
        Client(url) as client,
        psycopg.connect(client.dsn, autocommit=True) as connection,
        Workers(client.dsn, max(plan.writers, *plan.readers)) as workers,
    ):
        _alone(client, connection)
        environment = look(connection)
        results = list(Run(client, connection, workers, plan).results(progress))
    return Report(environment, plan.rounds, quick, results)


def _alone(client: Client, connection: psycopg.Connection[Any]) -> None:
    """Refuse to run beside another benchmark, and remove what one that was killed left behind."""
    row = connection.execute("SELECT pg_try_advisory_lock(hashtext(%s))", (SCHEMA,)).fetchone()
    if row != (True,):
        raise PenstockError(
            "another benchmark runs on this database: wait for its end, or its figures are worth nothing"
        )
    for queue in client.queues():
        if queue.name.startswith(f"{SCHEMA}_"):
            client.delete(queue.name)


def _at(progress: Progress, step: int) -> Callable[[Case], None]:
    return lambda case: progress(step, case.title)
