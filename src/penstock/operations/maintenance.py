"""The maintenance loop: a pass over all partitions every so often, and sweeps in between.

A pass applies retention and merges small segments. A sweep fires due timers, so that leases expire and scheduled
messages are published also when no consumer runs. The loop yields what happened; its caller decides what to show.
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
    """A pass or a sweep that failed; the loop goes on and tries again."""

    during: str
    error: PenstockError


COUNTS = tuple(field.name for field in fields(Pass) if field.name not in ("time", "busy"))


def no_progress() -> AbstractContextManager[Callable[[int], object]]:
    """Report no progress."""
    return nullcontext(lambda visited: None)


def run_once(client: "Client", progress: Progress = no_progress) -> Pass:
    """Make one pass, fire due timers, and return what the pass did."""
    [done] = (event for event in _pass(client, progress, lambda: None) if isinstance(event, Pass))
    fire_due_timers(client)
    return done


def run(client: "Client", every: float, progress: Progress = no_progress) -> Iterator[Pass | Failure | None]:
    """Make a pass every so many seconds, without end; yields None between them, about twice a second.

    Sweeps run between the passes and also during a long one. While the database is away, the loop yields failures and
    waits.
    """
    due = sweep_due = time.monotonic()

    def sweep_when_due() -> Failure | None:
        nonlocal sweep_due
        if time.monotonic() < sweep_due:
            return None
        sweep_due = time.monotonic() + _SWEEP_EVERY
        try:
            fire_due_timers(client)
        except (Retryable, Unavailable):
            raise
        except PenstockError as error:
            # Retention and merging go on, and the next sweep tries again.
            return Failure("sweep", error)
        return None

    while True:
        try:
            if time.monotonic() >= due:
                due = time.monotonic() + every
                yield from _pass(client, progress, sweep_when_due)
            yield None
            if failure := sweep_when_due():
                yield failure
        except (Retryable, Unavailable) as error:
            yield Failure("pass", error)
        time.sleep(max(0.0, min(_TICK, due - time.monotonic())))


def fire_due_timers(client: "Client") -> None:
    """Fire due timers: expired leases, delays, backoffs, scheduled messages."""
    for _ in range(_SWEEPS):
        done = client.sweep()
        if done is None or not done.woken + done.enrolled:
            return


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
