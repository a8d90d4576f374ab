"""Messages that come later: what is scheduled, and taking it back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, confirm, json_option, yes_option
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
@click.option("--partition", help="Only this partition of the queue.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most so many."
)
@click.option("--cancel", "ids", type=int, multiple=True, metavar="ID", help="Cancel this one; may be repeated.")
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
    """List what is scheduled, or cancel some of it.

    Prints, in the order they are due: id, queue, partition, when it is due, when it was pushed, how many messages, how
    many bytes, and the beginning of the first message. With --cancel the messages are never delivered; asks first,
    prints the ids that were cancelled, and exits with 3 if it was too late for one.
    """
    if ids:
        if queue is not None or partition is not None:
            raise click.UsageError("--cancel takes ids, which are of all queues: name neither a queue nor a partition")
        confirm(f"cancel what is scheduled as {', '.join(map(str, ids))}", yes)
    elif partition is not None and queue is None:
        raise click.UsageError("--partition is of a queue: name it")
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
        raise NotFound(f"too late for {', '.join(missed)}: it is in the log by now, was cancelled before, or never was")


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

    from penstock.cli import envelopes

    return {**msgspec.structs.asdict(one), "preview": envelopes.text_of(one.preview)}
