"""Schedules: add, list, pause, resume, run and delete them."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, epilog, json_option, later, named, yes_option

if TYPE_CHECKING:
    from penstock.broker.schedules import ScheduleInfo

_COLUMNS = ("name", "when", "queue", "state", "last_at", "last_slot", "next_at", "missed", "declared_by", "error")
# Columns that fit into 80 characters.
_SHORT = ("name", "when", "queue", "state", "last_at", "next_at")


@click.group(
    epilog=epilog(
        (
            "penstock schedule add cleanup housekeeping '{\"what\": \"carts\"}' --every '5 minutes'",
            "penstock schedule add report reports '{}' --cron '0 9 * * MON-FRI' --tz Europe/Berlin",
            "penstock schedule list",
            "penstock schedule pause report",
        )
    )
)
def schedule() -> None:
    """Push messages at regular times: add, list, pause or delete schedules."""


@schedule.command(
    cls=Command,
    examples=(
        "penstock schedule add cleanup housekeeping '{\"what\": \"carts\"}' --every '5 minutes'",
        "penstock schedule add report reports '{}' --cron '0 9 * * MON-FRI' --tz Europe/Berlin --missed skip",
    ),
)
@click.argument("name")
@click.argument("queue")
@click.argument("value", required=False)
@click.option("--every", metavar="INTERVAL", help="Push at each multiple of an interval, such as '5 minutes' or 90s.")
@click.option("--cron", metavar="EXPRESSION", help="Push at the times of a cron expression of five fields.")
@click.option(
    "--tz", default="UTC", show_default=True, metavar="ZONE", help="Set the time zone of the cron expression."
)
@click.option("--start", metavar="TIME", callback=later, help="Begin the intervals at this time (ISO 8601).")
@click.option("--partition", help="Push to this partition; default: chosen by the key.")
@click.option("--key", help="Set the key of the messages.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", callback=named, help="Add a header; may be repeated."
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "last", "all"]),
    default="last",
    show_default=True,
    help="Push none, the last, or all (up to 1000) of the times at which nothing was running.",
)
@json_option
@click.pass_obj
def add(
    given: Given,
    name: str,
    queue: str,
    value: str | None,
    every: str | None,
    cron: str | None,
    tz: str,
    start: datetime | None,
    partition: str | None,
    key: str | None,
    headers: dict[str, str],
    missed: str,
    as_json: bool,
) -> None:
    """Add a schedule, or change the one of this name.

    VALUE is pushed as it is; without it the messages have a null value. Any process that runs workers, `penstock
    maintain` or `penstock up` pushes the messages: one for each time, however many processes run. Prints the schedule.
    """
    if (every is None) == (cron is None):
        raise click.UsageError("give --every or --cron, and not both")
    with given.client() as client:
        info = client.schedule(
            name,
            queue,
            None if value is None else value.encode("utf-8", "surrogateescape"),
            every=every,
            cron=cron,
            tz=tz,
            start=start,
            partition=partition,
            key=key,
            headers=headers or None,
            missed=missed,
        )
    _show([info], as_json)


@schedule.command("list", cls=Command, examples=("penstock schedule list", "penstock schedule list --json"))
@json_option
@click.pass_obj
def list_(given: Given, as_json: bool) -> None:
    """List schedules.

    Prints name, times in words, queue, state (active, paused, failing, ended when no time is left, or unreadable when
    this version does not understand its times), when it last pushed and for which time, the next time, what becomes of
    missed times, what declares it, and the last error. A schedule of code that its file does not declare any more goes
    on, and is shown as not declared.
    """
    with given.client() as client:
        _show(client.schedules(), as_json)


@schedule.command(cls=Command, examples=("penstock schedule pause report",))
@click.argument("name")
@click.pass_obj
def pause(given: Given, name: str) -> None:
    """Pause a schedule until it is resumed."""
    with given.client() as client:
        client.pause_schedule(name)
    click.echo(f"paused schedule {output.printable(name)}")


@schedule.command(cls=Command, examples=("penstock schedule resume report",))
@click.argument("name")
@click.pass_obj
def resume(given: Given, name: str) -> None:
    """Resume a paused schedule with its next time.

    The times of the pause are not made up for.
    """
    with given.client() as client:
        info = client.resume_schedule(name)
    upcoming = "never" if info.next_at is None else info.next_at.isoformat()
    click.echo(f"resumed schedule {output.printable(name)}; next: {upcoming}")


@schedule.command("run-now", cls=Command, examples=("penstock schedule run-now report",))
@click.argument("name")
@json_option
@click.pass_obj
def run_now(given: Given, name: str, as_json: bool) -> None:
    """Push the message of a schedule now.

    Its regular times stay as they are. Prints the queue, the partition, the offset and the id of the message.
    """
    with given.client() as client:
        pushed = client.run_schedule_now(name)
    record = {
        "queue": pushed.queue,
        "partition": pushed.partition,
        "offset": pushed.first_offset,
        "id": str(pushed.ids[0]),
    }
    output.show([record], tuple(record), as_json)


@schedule.command(cls=Command, examples=("penstock schedule delete report --yes",))
@click.argument("name")
@yes_option
@click.pass_obj
def delete(given: Given, name: str, yes: bool) -> None:
    """Delete a schedule.

    Messages that it has pushed stay. A schedule that is declared in code comes back when its worker starts. Asks for
    confirmation. Without a terminal it needs --yes.
    """
    confirm(f"delete schedule {output.printable(name)}", yes)
    with given.client() as client:
        client.delete_schedule(name)
    click.echo(f"deleted schedule {output.printable(name)}")


def _show(found: "list[ScheduleInfo]", as_json: bool) -> None:
    columns = _SHORT if output.is_narrow() and not as_json else _COLUMNS
    output.show(map(_record, found), columns, as_json)


def _state(info: "ScheduleInfo") -> str:
    if info.problem is not None:
        return "unreadable"
    if info.paused:
        return "paused"
    if info.error:
        return "failing"
    return "ended" if info.next_at is None else "active"


def _record(info: "ScheduleInfo") -> dict[str, Any]:
    from penstock.operations import envelopes

    schedule = info.schedule
    return {
        "name": info.name,
        "when": info.words,
        "queue": schedule.queue,
        "state": _state(info),
        "last_at": info.last_at,
        "last_slot": info.last_slot,
        "next_at": info.next_at,
        "missed": schedule.missed,
        "declared_by": info.source if info.declared else f"not declared any more since {info.undeclared_at}",
        "error": info.problem or info.error,
        "kind": schedule.kind,
        "spec": schedule.spec,
        "tz": schedule.tz,
        "start": schedule.start,
        "partition": schedule.partition,
        "key": schedule.key,
        "headers": schedule.headers,
        "value": envelopes.text_of(schedule.value),
        "last_id": None if info.last_id is None else str(info.last_id),
        "source": info.source,
        "origin": info.origin,
        "declared": info.declared,
        "failed_at": info.failed_at,
        "created_at": info.created_at,
        "changed_at": info.changed_at,
    }
