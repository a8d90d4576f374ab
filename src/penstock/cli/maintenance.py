"""Looking after the queues: `maintain`, and the loop that `up` shares with it."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, json_option
from penstock.errors import PenstockError, Retryable, Unavailable

if TYPE_CHECKING:
    from penstock.client.client import Client

_TICK = 0.5
_SWEEP_EVERY = 1.0
# A sweep takes up to a thousand timers; after so many in a row others have their turn.
_SWEEPS = 10
_COUNTS = ("visited", "dropped_segments", "dropped_messages", "merged_segments")


@click.command(
    cls=Command,
    examples=("penstock maintain --once", "penstock maintain --every 300", "penstock maintain --once --json"),
)
@click.option("--once", is_flag=True, help="Make one pass over all partitions, sweep, and return.")
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to make a pass.",
)
@json_option
@click.pass_obj
def maintain(given: Given, once: bool, every: float, as_json: bool) -> None:
    """Drop what retention says, merge small segments, do what is due.

    Runs until Ctrl-C or SIGTERM, and then exits with 0. Any number may run at once: one works, the others wait for
    their turn. Prints for each pass when it ended, how many partitions it visited, segments and messages it dropped,
    and segments it merged. Between the passes it sweeps, about once a second: it frees what expired leases hold and
    what has waited long enough, and publishes what was scheduled, so that this happens also when no consumer runs.
    """
    with ends_on_signal(), given.client() as client:
        if once:
            _show(one_pass(client), as_json)
            sweep(client)
            return
        for done in passes(client, every):
            if done is not None:
                _show(done, as_json)


def one_pass(client: "Client", between: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Look at every partition once, and do something else after each transaction of it; return what was done."""
    total = dict.fromkeys(_COUNTS, 0)
    chunks = 0
    with output.progress("partitions") as advance:
        for chunk in client.maintain():
            chunks += 1
            advance(chunk.visited)
            for name in _COUNTS:
                total[name] += getattr(chunk, name)
            between()
    if not chunks:
        output.remark("another process is at it")
    return {"time": datetime.now(UTC), **total}


def passes(client: "Client", every: float) -> Iterator[dict[str, Any] | None]:
    """Make a pass every so many seconds, for ever; between them sweep, and yield None so that the caller can look.

    A pass that has much to drop takes long, so there are sweeps during it, too. A database that is away for a while is
    reported, and waited for.
    """
    due = sweep_due = time.monotonic()

    def sweep_when_due() -> None:
        nonlocal sweep_due
        if time.monotonic() >= sweep_due:
            sweep_due = time.monotonic() + _SWEEP_EVERY
            try:
                sweep(client)
            except (Retryable, Unavailable):
                raise
            except PenstockError as error:
                # Retention and merging go on, and the next sweep tries again.
                output.remark(f"penstock: a sweep failed: {error}")

    while True:
        try:
            if time.monotonic() >= due:
                due = time.monotonic() + every
                yield one_pass(client, sweep_when_due)
            yield None
            sweep_when_due()
        except (Retryable, Unavailable) as error:
            output.remark(f"penstock: {error}")
        time.sleep(max(0.0, min(_TICK, due - time.monotonic())))


def sweep(client: "Client") -> None:
    """Do what time brings: free expired leases, wake what waited, publish what was scheduled."""
    for _ in range(_SWEEPS):
        done = client.sweep()
        if done is None or not done.woken + done.enrolled:
            return


@contextmanager
def ends_on_signal() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the body as what they are: the way it is meant to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.stdout.flush()


def _show(done: dict[str, Any], as_json: bool) -> None:
    output.show([done], ("time", *_COUNTS), as_json)
    sys.stdout.flush()
