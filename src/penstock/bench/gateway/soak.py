"""`penstock bench gateway --soak`: load of every kind for minutes, and what memory the gateway has meanwhile."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import msgspec
import psycopg

from penstock import Client
from penstock.bench import environment
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.bench.gateway import load
from penstock.bench.gateway.report import API, PUSH, TAKE, gateway, memory_of, turn_of
from penstock.bench.groups.report import Verdict
from penstock.errors import PenstockError

# Caches and pools fill in this share of the time; what counts is what comes after it.
_WARMING_UP = 0.25
MOST_GROWTH = 0.05
_CONNECTIONS = 16
_POLLS = 200
_LISTENERS = 20
# So often somebody goes away in the middle, and comes back.
_TURN = 5.0


class Report(msgspec.Struct, frozen=True):
    """Bytes of memory of the gateway, once a second, and how many requests it answered."""

    environment: Environment
    seconds: float
    requests: int
    memory: list[int]

    @property
    def growth(self) -> float:
        """By which share memory grew: the last quarter of the time beside the quarter after the first."""
        quarter = max(1, len(self.memory) // 4)
        before = median(self.memory[int(len(self.memory) * _WARMING_UP) :][:quarter])
        return median(self.memory[-quarter:]) / before - 1


def run(url: str, seconds: float, say: Callable[[str], None]) -> Report:
    """Push, pop, poll and listen for so many seconds."""
    with own_database(url) as own:
        with psycopg.connect(own, autocommit=True) as connection:
            facts = environment.look(connection)
        Client(own).close()
        with gateway(own) as (host, port, pid):
            if memory_of(pid) is None:
                raise PenstockError("this system does not say how much memory a process has: it needs /proc")
            requests, memory = asyncio.run(_load(host, port, pid, seconds, say))
    return Report(facts, seconds, requests, memory)


async def _load(host: str, port: int, pid: int, seconds: float, say: Callable[[str], None]) -> tuple[int, list[int]]:
    memory: list[int] = []
    until = time.monotonic() + seconds
    answered = 0

    async def requests(name: str) -> None:
        nonlocal answered
        while (left := until - time.monotonic()) > 0:
            # New connections every few seconds, as callers come and go.
            some = min(_TURN, left)
            answered += round(some * await load.rate(host, port, _CONNECTIONS, some, turn_of(name, "load")))

    async def waiting(count: int, request: bytes) -> None:
        """Wait for something that hardly ever comes, go away, and come back."""
        loop = asyncio.get_running_loop()
        while (left := until - time.monotonic()) > 0:
            opened = [(await loop.create_connection(load.Connection, host, port))[1] for _ in range(count)]
            asked = [asyncio.ensure_future(each.ask(request)) for each in opened]
            await asyncio.sleep(min(_TURN, left))
            for task, connection in zip(asked, opened, strict=True):
                task.cancel()
                connection.close()
            await asyncio.gather(*asked, return_exceptions=True)

    async def watch() -> None:
        began = time.monotonic()
        while time.monotonic() < until:
            memory.append(memory_of(pid) or 0)
            if len(memory) % 30 == 0:
                say(f"{time.monotonic() - began:.0f} of {seconds:.0f} s: {memory[-1] >> 20} MiB")
            await asyncio.sleep(1)

    await asyncio.gather(
        requests(PUSH),
        requests(TAKE),
        waiting(_POLLS, load.post(f"{API}/queues/quiet/groups/g/pop?wait=60")),
        waiting(_LISTENERS, load.get(f"{API}/events")),
        watch(),
    )
    return answered, memory


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report."""
    promise = f"growth of the gateway's memory in {report.seconds:.0f} s of load: ≤ {MOST_GROWTH:g} of it"
    return [Verdict(promise, report.growth, report.growth <= MOST_GROWTH)]


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    beside = f"{_POLLS} long polls and {_LISTENERS} listeners that come and go"
    yield f"{report.requests:,} pushes, pops and acks in {report.seconds:.0f} s, beside {beside}"
    step = max(1, len(report.memory) // 10)
    yield "memory of the gateway, MiB: " + ", ".join(str(each >> 20) for each in report.memory[::step])
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.3f}"


def save(report: Report, folder: Path) -> None:
    """Store a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gateway-soak.json").write_bytes(msgspec.json.encode(report) + b"\n")
    text = "\n".join(["# penstock bench gateway --soak", "", "```", *lines(report), "```", ""])
    (folder / "gateway-soak.md").write_text(text, encoding="utf-8")
