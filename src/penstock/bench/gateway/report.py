"""One run of `penstock bench gateway`: in a database of its own, reported and judged."""

import asyncio
import multiprocessing
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg

from penstock import Client
from penstock.bench import environment
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.gateway import load
from penstock.bench.groups.report import Verdict
from penstock.bench.plan import Ratio
from penstock.errors import PenstockError
from penstock.gateway import serving

API = "/api/v2"
CONSTANT, PUSH, TAKE = "constant", "push", "pop + ack"
SHARE = 0.5
IDLE_CORES = 0.1
# Partitions for those who pop: each takes one at a time.
_PARTITIONS = 512
# Groups that idle polls wait for.
_IDLE_GROUPS = 100


class Plan(NamedTuple):
    """How much is measured."""

    connections: int
    seconds: float
    rounds: int
    polls: int
    queues: int
    idle_seconds: float


FULL = Plan(64, 5.0, 5, 5000, 10_000, 30.0)
QUICK = Plan(16, 0.5, 2, 200, 100, 2.0)


class Report(msgspec.Struct, frozen=True):
    """Requests a second of each round, cores used by idle polls, and the memory of the gateway before and after."""

    environment: Environment
    connections: int
    samples: dict[str, list[float]]
    polls: int
    queues: int
    idle_cores: float | None
    memory_before: int | None
    memory_after: int | None

    def ratio(self, name: str) -> Ratio:
        """Compare with a constant answer, round by round."""
        return Ratio.of(self.samples[name], self.samples[CONSTANT])


def run(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """Measure everything."""
    with own_database(url) as own:
        with psycopg.connect(own, autocommit=True) as connection:
            facts = environment.look(connection)
        # Makes the schema.
        Client(own).close()
        with gateway(own) as (host, port, pid):
            samples: dict[str, list[float]] = {CONSTANT: [], PUSH: [], TAKE: []}
            before = memory_of(pid)
            for number in range(plan.rounds):
                for name in samples:
                    say(f"round {number + 1} of {plan.rounds}: {name}")
                    if name == TAKE:
                        _fill(own, plan)
                    measured = load.rate(host, port, plan.connections, plan.seconds, turn_of(name))
                    samples[name].append(asyncio.run(measured))
            after = memory_of(pid)
            say(f"{plan.polls} idle polls")
            idle = _idle(own, host, port, pid, plan)
    return Report(facts, plan.connections, samples, plan.polls, plan.queues, idle, before, after)


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by the targets."""
    found = []
    for name in (PUSH, TAKE):
        share = report.ratio(name).median
        found.append(Verdict(f"{name}: ≥ {SHARE:g} of the requests of a constant answer", share, share >= SHARE))
    if report.idle_cores is not None:
        groups = min(report.queues, _IDLE_GROUPS)
        promise = f"{report.polls} idle polls of {groups} groups, {report.queues} idle queues: ≤ {IDLE_CORES:g} core"
        found.append(Verdict(promise, report.idle_cores, report.idle_cores <= IDLE_CORES))
    return found


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield f"{report.connections} connections, one process of the gateway, the load from one process beside it"
    yield ""
    yield f"{'':<12} {'requests/s':>12}   × constant"
    for name, rates in report.samples.items():
        line = f"{name:<12} {sorted(rates)[len(rates) // 2]:12.0f}"
        if name != CONSTANT:
            ratio = report.ratio(name)
            line += f"   {ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
        yield line
    if report.memory_before is not None and report.memory_after is not None:
        yield f"memory of the gateway: {report.memory_before >> 20} MiB before, {report.memory_after >> 20} MiB after"
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Store a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gateway.json").write_bytes(msgspec.json.encode(report) + b"\n")
    text = "\n".join(["# penstock bench gateway", "", "```", *lines(report), "```", ""])
    (folder / "gateway.md").write_text(text, encoding="utf-8")


def turn_of(name: str, taken: str = "take") -> load.Turn:
    """Return what a connection asks for, again and again; `taken` is the queue that messages are taken from."""
    constant = load.get("/healthz")
    take = load.post(f"{API}/queues/{taken}/groups/g/pop?max_messages=1")

    async def ask_constant(connection: load.Connection, number: int) -> int:
        _require(await connection.ask(constant), b"200")
        return 1

    async def push(connection: load.Connection, number: int) -> int:
        body = b'{"messages":[{"value":{"id":%d,"customer":"c-%d"}}]}' % (number, number)
        request = load.post(f"{API}/queues/load/messages?partition={number}", body)
        _require(await connection.ask(request), b"201")
        return 1

    async def pop_and_ack(connection: load.Connection, number: int) -> int:
        lease = load.lease_in(await connection.ask(take))
        if lease is None:
            return 1
        ack = load.post(f"{API}/acks", b'{"acks":[{"lease":"' + lease + b'"}]}')
        _require(await connection.ask(ack), b"200")
        return 2

    return {CONSTANT: ask_constant, PUSH: push, TAKE: pop_and_ack}[name]


def _require(answer: bytes, status: bytes) -> None:
    if answer[9:12] != status:
        raise PenstockError(f"the gateway answered {answer[:300]!r}")


def _fill(url: str, plan: Plan) -> None:
    """Push more than can be taken in a turn."""
    with Client(url) as client:
        for _ in range(20):
            client.push_many("take", [(str(number), b"x" * 100) for number in range(_PARTITIONS) for _ in range(5)])


def _idle(url: str, host: str, port: int, pid: int, plan: Plan) -> float | None:
    """Return how many cores the gateway uses while polls wait and nothing comes."""
    if _cpu(pid) is None:
        return None
    queues = min(plan.queues, _IDLE_GROUPS)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT count(penstock.create_queue('idle-' || n)) FROM generate_series(1, %s) n", (plan.queues,)
        )
    polls = [load.post(f"{API}/queues/idle-{number % queues + 1}/groups/g/pop?wait=60") for number in range(plan.polls)]
    used = asyncio.run(load.hold(host, port, polls, plan.idle_seconds, lambda: _cpu(pid) or 0.0))
    return used / plan.idle_seconds


@contextmanager
def gateway(url: str) -> Iterator[tuple[str, int, int]]:
    """Run a gateway in a process of its own."""
    wanted = serving.Serving(url, port=0)
    bound = serving.bind(wanted)
    host, port = bound.getsockname()[:2]
    process = multiprocessing.get_context("spawn").Process(target=partial(serving.run_server, wanted, bound))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=10).close()
                break
            except OSError:
                if time.monotonic() > deadline or not process.is_alive():
                    raise PenstockError("the gateway did not start") from None
                time.sleep(0.1)
        yield host, port, process.pid or 0
    finally:
        process.terminate()
        process.join(60)
        process.kill()
        bound.close()


def _cpu(pid: int) -> float | None:
    """Return the seconds of CPU that a process has used, where the system says so."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int | None:
    """Return the bytes of memory that a process has, where the system says so."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
