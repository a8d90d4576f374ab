"""Dispatch: keep the windows of groups in Valkey."""

import asyncio
import logging
import signal
import sys

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, json_option

_WINDOW_COLUMNS = (
    *("queue", "group", "state", "items", "capacity", "size", "transitions", "since", "dispatcher", "obstacle"),
)


@click.command(
    cls=Command,
    examples=("penstock dispatch", "penstock dispatch --groups orders/billing,orders/mail", "penstock windows --json"),
)
@click.option(
    "--groups",
    metavar="QUEUE/GROUP,…",
    help="Keep the windows of these groups only; default: of all whose `warm` is on.",
)
@click.pass_obj
def dispatch(given: Given, groups: str | None) -> None:
    """Keep the windows of groups in Valkey, until stopped.

    Loads the next messages of each group whose setting `warm` is on into Valkey, and tells PostgreSQL what workers have
    done. One dispatcher keeps the window of a group; another takes over within seconds when it ends. Workers and
    `penstock up` do the same beside their own work. Ctrl-C or SIGTERM stops it: what nobody works on goes back at once.
    What it has to say goes to stderr.
    """
    from penstock.warm import serving

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("penstock.warm").setLevel(logging.INFO)
    wanted = None if groups is None else [_named(each) for each in groups.split(",")]

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serving.dispatch(given.settings(), stop, groups=wanted)

    asyncio.run(run())
    output.remark("stopped")


@click.command(cls=Command, examples=("penstock windows", "penstock windows --json"))
@json_option
@click.pass_obj
def windows(given: Given, as_json: bool) -> None:
    """List the groups whose setting `warm` is on, and their windows in Valkey.

    Prints the state (warm: all that waits is in Valkey; cold: more waits than fits; leaving; away: Valkey cannot be
    used), items, capacity and bytes, how often the state has changed and since when it is so, who keeps it, and what is
    in the way where PostgreSQL alone serves the group.
    """
    import msgspec

    with given.client() as client:
        found = client.windows()
    records = [{**msgspec.structs.asdict(group), "group": group.name} for group in found]
    output.show(records, _WINDOW_COLUMNS, as_json)


def _named(text: str) -> tuple[str, str]:
    queue, slash, group = text.strip().partition("/")
    if not slash or not queue or not group:
        raise click.BadParameter(f"{text!r} is not a queue and a group, such as orders/billing", param_hint="--groups")
    return queue, group
