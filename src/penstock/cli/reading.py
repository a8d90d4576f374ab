"""Read messages: a range of a partition, one by its id, or the newest."""

import sys
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, message_options, moment

if TYPE_CHECKING:
    from penstock.broker.messages import StoredMessage


@click.command(
    cls=Command,
    examples=(
        "penstock read orders 0",
        "penstock read orders 0 --start 100 --limit 10 --json",
        "penstock read orders 0 --since 2h --until 10m",
        "penstock read orders 0 --since 2026-01-31T12:00:00Z",
    ),
)
@click.argument("queue")
@click.argument("partition")
@click.option("--start", type=click.IntRange(min=0), default=0, help="Start at this offset.")
@click.option("--stop", type=click.IntRange(min=0), help="Stop before this offset.")
@click.option("--since", metavar="TIME", callback=moment, help="Start at this time: ISO 8601, or 10m, 2h, 3d ago.")
@click.option("--until", metavar="TIME", callback=moment, help="Stop before this time.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Limit the number of messages.")
@message_options
@click.pass_obj
def read(
    given: Given,
    queue: str,
    partition: str,
    start: int,
    stop: int | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    form: str | None,
) -> None:
    """Print a range of messages, one per line.

    Reads page by page, so a range may be larger than memory. A time without a zone is local time.
    """
    with given.client() as client:
        messages = client.scan(queue, partition, start, stop, start_time=since, stop_time=until)
        _print(islice(messages, None if limit is None else min(limit, sys.maxsize)), form)


@click.command(
    cls=Command,
    examples=("penstock get $(penstock push orders hello --json | jq -r .id)", "penstock get $ID --raw > message.bin"),
)
@click.argument("message_id", metavar="ID")
@message_options
@click.pass_obj
def get(given: Given, message_id: str, form: str | None) -> None:
    """Print the message with an id.

    Exits with 3 if there is none.
    """
    with given.client() as client:
        _print([client.get(message_id)], form)


@click.command(
    cls=Command,
    examples=(
        "penstock tail orders",
        "penstock tail orders --last 100 --no-follow --json",
        "penstock tail orders --partition eu --idle-timeout 30",
    ),
)
@click.argument("queue")
@click.option("--partition", help="Select this partition only.")
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Start with the last N messages.",
)
@click.option("--follow/--no-follow", default=True, help="Print new messages until Ctrl-C.")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Exit after this long without messages.",
)
@message_options
@click.pass_obj
def tail(
    given: Given,
    queue: str,
    partition: str | None,
    last: int,
    follow: bool,
    idle_timeout: float | None,
    form: str | None,
) -> None:
    """Print the last messages of a queue, then new ones."""
    with given.client() as client:
        messages = client.tail(queue, partition=partition, last=last, follow=follow, idle_timeout=idle_timeout)
        _print(messages, form, at_once=True)


def _print(messages: "Iterable[StoredMessage]", form: str | None, at_once: bool = False) -> None:
    write = sys.stdout.buffer.write
    line = output.message_format(form)
    at_once = at_once or output.is_terminal()
    for message in messages:
        write(line(message))
        if at_once:
            sys.stdout.buffer.flush()
