"""The maintenance loop: a pass over all partitions every so often, sweeps in between, and schedules.

A pass applies retention and merges small segments. A sweep fires due timers, so that leases expire and scheduled
messages are published also when no consumer runs; schedules push what is due also when no worker runs. The loop yields
what happened; its caller decides what to show.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Retryable, Unavailable

if TYPE_CHECKING:
    from penstock.client.client import Client

_TICK = 0.5
# What waits is sampled so often; a sample that takes several steps makes one at each tick.
_SAMPLE_EVERY = 15.0
_SWEEP_EVERY = 1.0
# A sweep fires up to a thousand timers. After this many sweeps in a row the pass continues.
_SWEEPS = 10

# Opened once per pass; what it returns is called with each number of partitions that were visited.
Progress = Callable[[], AbstractContextManager[Callable[[int], object]]]


@dataclass(frozen=True)
class Pass:
    """One pass over all partitions, and when it ended; `busy` means that another process was making one."""

    time: datetime
    visited: int
    dropped_segments: int
    dropped_messages: int
    merged_segments: int
    busy: bool


@dataclass(frozen=True)
class Failure:
    """A pass, a sweep or a round of schedules that failed; the loop goes on and tries again."""

    during: str
    error: PenstockError


COUNTS = tuple(field.name for field in fields(Pass) if field.name not in ("time", "busy"))


def no_progress() -> AbstractContextManager[Callable[[int], object]]:
    """Report no progress."""
    return nullcontext(lambda visited: None)


def run_once(client: "Client", progress: Progress = no_progress) -> Pass:
    """Make one pass, fire due timers and schedules, and return what the pass did."""
    [done] = (event for event in _pass(client, progress, lambda: None) if isinstance(event, Pass))
    fire_due_timers(client)
    fire_due_schedules(client)
    client.sample()
    client.run_rules()
    return done


def run(client: "Client", every: float, progress: Progress = no_progress) -> Iterator[Pass | Failure | None]:
    """Make a pass every so many seconds, without end; yields None between them, about twice a second.

    Sweeps and schedules run between the passes and also during a long one. While the database is away, the loop yields
    failures and waits.
    """
    due = sweep_due = schedules_due = sample_due = time.monotonic()

    def fire_when_due() -> Failure | None:
        nonlocal sweep_due, schedules_due
        doing = "sweep"
        try:
            if time.monotonic() >= sweep_due:
                sweep_due = time.monotonic() + _SWEEP_EVERY
                fire_due_timers(client)
            doing = "schedules"
            if time.monotonic() >= schedules_due:
                schedules_due = time.monotonic() + _SWEEP_EVERY
                schedules_due = time.monotonic() + fire_due_schedules(client)
        except (Retryable, Unavailable):
            raise
        except PenstockError as error:
            # Retention and merging go on, and the next round tries again.
            return Failure(doing, error)
        return None

    while True:
        try:
            if time.monotonic() >= due:
                due = time.monotonic() + every
                yield from _pass(client, progress, fire_when_due)
            yield None
            if failure := fire_when_due():
                yield failure
            if time.monotonic() >= sample_due:
                complete = client.sample(min_age=_SAMPLE_EVERY / 2)
                sample_due = time.monotonic() + (_SAMPLE_EVERY if complete else 0.0)
                if complete:
                    client.run_rules()
        except (Retryable, Unavailable) as error:
            yield Failure("pass", error)
        time.sleep(max(0.0, min(_TICK, due - time.monotonic(), schedules_due - time.monotonic())))


def fire_due_timers(client: "Client") -> None:
    """Fire due timers: expired leases, delays, backoffs, scheduled messages."""
    for _ in range(_SWEEPS):
        done = client.sweep()
        if done is None or not done.woken + done.enrolled:
            return


def fire_due_schedules(client: "Client") -> float:
    """Push what schedules have due, and return in how many seconds the next round is due."""
    for _ in range(_SWEEPS):
        wait = client.fire_schedules().next_in
        if wait > 0:
            return wait
    return 0.0


def _pass(client: "Client", progress: Progress, between: Callable[[], Failure | None]) -> Iterator[Pass | Failure]:
    """Make one pass and call `between` after each of its transactions; yields failures of that, and the pass last."""
    total = dict.fromkeys(COUNTS, 0)
    chunks = 0
    with progress() as advance:
        for chunk in client.maintain():
            chunks += 1
            advance(chunk.visited)
            for name in COUNTS:
                total[name] += getattr(chunk, name)
            if failure := between():
                yield failure
    yield Pass(datetime.now(UTC), **total, busy=not chunks)
