"""Scheduled messages: list and cancel them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, json_option, yes_option
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.broker.infos import ScheduledInfo
    from penstock.client.client import Client

_PAGE = 1000
_COLUMNS = ("scheduled_id", "queue", "partition", "due_at", "created_at", "count", "size", "preview")


@click.command(
    cls=Command,
    examples=(
        "penstock scheduled",
        "penstock scheduled orders --partition eu --limit 10 --json",
        "penstock scheduled --cancel 17 --cancel 18 --yes",
    ),
)
@click.argument("queue", required=False)
@click.option("--partition", help="Select this partition only.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of entries.",
)
@click.option(
    "--cancel",
    "ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="Cancel the scheduled messages with this id; may be repeated.",
)
@yes_option
@json_option
@click.pass_obj
def scheduled(
    given: Given,
    queue: str | None,
    partition: str | None,
    limit: int,
    ids: tuple[int, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """List scheduled messages, or cancel them.

    Prints, in order of due time: id, queue, partition, due time, push time, number of messages, bytes, and the
    beginning of the first message. With --cancel the messages are never delivered; asks for confirmation, prints the
    cancelled ids, and exits with 3 if one was not found.
    """
    if ids:
        if queue is not None or partition is not None:
            raise click.UsageError("--cancel takes ids only: it cannot be combined with a queue or --partition")
        confirm(f"cancel the scheduled messages {', '.join(map(str, ids))}", yes)
    elif partition is not None and queue is None:
        raise click.UsageError("--partition requires a queue")
    with given.client() as client:
        if ids:
            _cancel(client, ids, as_json)
        else:
            records = (_record(one) for one in _listed(client, queue, partition, limit))
            output.show(list(records), _COLUMNS, as_json)


def _cancel(client: "Client", ids: tuple[int, ...], as_json: bool) -> None:
    cancelled = client.cancel(*ids)
    output.show(
        [{"scheduled_id": each, "cancelled": each in cancelled} for each in ids], ("scheduled_id", "cancelled"), as_json
    )
    missed = [str(each) for each in ids if each not in cancelled]
    if missed:
        raise NotFound(f"not found: {', '.join(missed)}; already published, already cancelled, or never scheduled")


def _listed(client: "Client", queue: str | None, partition: str | None, limit: int) -> "Iterator[ScheduledInfo]":
    after = None
    while limit:
        page = client.scheduled(queue, partition=partition, after=after, limit=min(limit, _PAGE))
        if not page:
            return
        yield from page
        limit -= len(page)
        after = page[-1]


def _record(one: "ScheduledInfo") -> dict[str, Any]:
    import msgspec

    from penstock.operations import envelopes

    return {**msgspec.structs.asdict(one), "preview": envelopes.text_of(one.preview)}
