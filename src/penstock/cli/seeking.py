"""Move a group to another position: `seek`, with a preview."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, json_option, position

if TYPE_CHECKING:
    from penstock.broker.infos import SeekResult
    from penstock.client.client import Client

_COUNTS = ("visited", "moved", "redelivered", "skipped", "revoked")


@click.command(
    cls=Command,
    examples=(
        "penstock seek orders --group billing --to earliest --preview",
        "penstock seek orders --group billing --to latest --yes",
        "penstock seek orders --group billing --partition eu --to 1200 --yes",
        "penstock seek orders --group billing --to 2h --yes",
    ),
)
@click.argument("queue")
@click.option("--group", required=True, help="Move this group.")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    callback=position,
    help="Move to an end, an offset, or a time: ISO 8601, or 10m, 2h, 3d ago.",
)
@click.option("--partition", help="Select this partition only.")
@click.option("--preview", is_flag=True, help="Show what would happen, and change nothing.")
@click.option("--yes", is_flag=True, help="Skip the preview, and do not ask for confirmation.")
@json_option
@click.pass_obj
def seek(
    given: Given,
    queue: str,
    group: str,
    target: int | str | datetime,
    partition: str | None,
    preview: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move a group to another position.

    Prints the number of partitions visited and moved, messages redelivered and skipped, and claims revoked. Shows a
    preview and asks for confirmation; without a terminal it needs --yes or --preview. Works in chunks, beside live
    pushes and pops.
    """
    if not (preview or yes) and not (sys.stdin and sys.stdin.isatty()):
        raise click.UsageError("to move a group without a terminal, give --yes, or --preview to see the effect")
    where = f"group {group} of queue {queue}" if partition is None else f"group {group} in partition {partition}"
    with given.client() as client:
        total = None
        if not yes or preview:
            would = _seek(client, queue, group, target, partition, preview=True)
            _show(would, as_json and preview)
            if preview:
                return
            confirm(f"move {where} to {target}", yes)
            total = would.visited
        _show(_seek(client, queue, group, target, partition, total=total), as_json)


def _seek(
    client: "Client",
    queue: str,
    group: str,
    target: int | str | datetime,
    partition: str | None,
    *,
    preview: bool = False,
    total: int | None = None,
) -> "SeekResult":
    seen = 0
    with output.progress("partitions", total) as advance:

        def show(so_far: "SeekResult") -> None:
            nonlocal seen
            advance(so_far.visited - seen)
            seen = so_far.visited

        return client.seek(queue, group, target, partition=partition, preview=preview, progress=show)


def _show(done: "SeekResult", as_json: bool) -> None:
    record: dict[str, Any] = {name: getattr(done, name) for name in _COUNTS}
    output.show([record], _COUNTS, as_json)
