"""Maintenance: `maintain` runs the loop, `verify` compares state with the log, `resync` repairs the ready list."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.interrupts import ends_on_signal
from penstock.cli.options import Command, json_option

if TYPE_CHECKING:
    from penstock.operations.maintenance import Pass

_VIOLATIONS = 1
_COLUMNS = ("time", "visited", "dropped_segments", "dropped_messages", "merged_segments")


@click.command(
    cls=Command,
    examples=("penstock maintain --once", "penstock maintain --every 300", "penstock maintain --once --json"),
)
@click.option("--once", is_flag=True, help="Make one pass over all partitions, fire due timers, and exit.")
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Set the time between passes.",
)
@json_option
@click.pass_obj
def maintain(given: Given, once: bool, every: float, as_json: bool) -> None:
    """Apply retention, merge small segments, fire due timers.

    Runs until Ctrl-C or SIGTERM, then exits with 0. Any number of processes may run it: one works at a time. For each
    pass, prints when it ended, the partitions visited, the segments and messages dropped, and the segments merged.
    Between passes it fires due timers about once a second: it releases expired leases, ends delays and backoffs, and
    publishes scheduled messages, so that this happens even when no consumer runs. It also fires schedules.
    """
    from penstock.operations import maintenance

    with ends_on_signal(), given.client() as client:
        if once:
            _show(maintenance.run_once(client, output.partition_progress), as_json)
            return
        for event in maintenance.run(client, every, output.partition_progress):
            if isinstance(event, maintenance.Failure):
                output.remark(f"penstock: {event.during} failed: {event.error}")
            elif event is not None:
                _show(event, as_json)


@click.command(cls=Command, examples=("penstock verify", "penstock verify --json"))
@json_option
@click.pass_context
def verify(context: click.Context, as_json: bool) -> None:
    """Verify that state and log agree.

    Prints each check's name, number of violations, and meaning. Exits with 1 if there is any violation. Safe to run at
    any time; it reads everything except message values.
    """
    import msgspec

    from penstock.operations import verification

    with context.ensure_object(Given).client() as client:
        found = verification.verify(client)
    output.show(map(msgspec.structs.asdict, found.checks), ("name", "violations", "meaning"), as_json)
    if not found.passed:
        context.exit(_VIOLATIONS)


@click.command(cls=Command, examples=("penstock resync", "penstock resync --json"))
@json_option
@click.pass_obj
def resync(given: Given, as_json: bool) -> None:
    """Rebuild the ready list after a restore.

    Adds every partition with unread messages to the ready list, and removes entries that belong to nothing. Safe to run
    at any time. Prints how many partitions were repaired.
    """
    with given.client() as client:
        repaired = client.resync()
    if as_json:
        output.show_one({"repaired": repaired}, True)
    else:
        click.echo(f"{output.counted(repaired, 'partition')} repaired")


def _show(done: "Pass", as_json: bool) -> None:
    if done.busy:
        output.remark("another process is running maintenance")
    record: dict[str, Any] = {name: value for name, value in asdict(done).items() if name in _COLUMNS}
    output.show([record], _COLUMNS, as_json)
    sys.stdout.flush()
