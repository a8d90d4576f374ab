"""Queues and partitions: list, describe, create, change, empty and delete them."""

from typing import Any

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, confirm, json_option, named, settings_from, yes_option

# What `--set` must not name, because it is an option of its own.
_OPTIONS = ("queue", "partition", "priority", "description")

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Setting of the queue, such as retention_time=86400; may be repeated. `describe` shows them all.",
)
priority_option = click.option("--priority", type=int, help="Priority of the partition.")
description_option = click.option("--description", help="What the queue is for.")
reset_option = click.option(
    "--reset", "resets", multiple=True, metavar="NAME", help="Setting to set back to its default; may be repeated."
)
partition_option = click.option("--partition", help="Only this partition of the queue.")


@click.command(cls=Command, examples=("penstock queues", "penstock queues --json | jq -r .name"))
@json_option
@click.pass_obj
def queues(given: Given, as_json: bool) -> None:
    """List the queues.

    Prints name, partitions, messages, dropped messages, and the time of the newest.
    """
    import msgspec

    with given.client() as client:
        records = map(msgspec.structs.asdict, client.queues())
        output.show(records, ("name", "partitions", "messages", "dropped", "newest_at"), as_json)


@click.command(cls=Command, examples=("penstock partitions orders", "penstock partitions orders --json | jq .head"))
@click.argument("queue")
@json_option
@click.pass_obj
def partitions(given: Given, queue: str, as_json: bool) -> None:
    """List the partitions of a queue.

    Prints name, messages, floor, head, priority, and the time of the newest. All below the floor is dropped; the head
    is the next offset.
    """
    import msgspec

    with given.client() as client:
        records = ({**msgspec.structs.asdict(info), "messages": info.messages} for info in client.partitions(queue))
        output.show(records, ("name", "messages", "floor", "head", "priority", "newest_at"), as_json)


@click.command(cls=Command, examples=("penstock describe orders", "penstock describe orders --json | jq .settings"))
@click.argument("queue")
@json_option
@click.pass_obj
def describe(given: Given, queue: str, as_json: bool) -> None:
    """Show a queue and all its settings."""
    import msgspec

    with given.client() as client:
        record = msgspec.structs.asdict(client.describe(queue))
    if as_json:
        output.show_one(record, True)
        return
    config, settings = record.pop("config"), record.pop("settings")
    output.show_one(record, False)
    show_settings(settings, config)


@click.command(
    cls=Command,
    examples=(
        "penstock create invoices --set retention_time=604800 --description 'a week of invoices'",
        "penstock create orders --partition eu --priority 5",
    ),
)
@click.argument("queue")
@click.option("--partition", help="Create this partition; its queue, too, if there is none.")
@priority_option
@set_option
@description_option
@click.pass_obj
def create(
    given: Given,
    queue: str,
    partition: str | None,
    priority: int | None,
    settings: dict[str, str],
    description: str | None,
) -> None:
    """Create a queue with settings, or a partition with a priority.

    Exits with 2 if it exists. A push creates both by itself, unless `penstock database` says that
    queues are not made on first use.
    """
    _priority_needs_partition(partition, priority)
    chosen = settings_from(settings, (), _OPTIONS)
    with given.client() as client:
        client.create(queue, partition=partition, priority=priority or 0, description=description, **chosen)
    click.echo(f"created queue {queue}" if partition is None else f"created partition {partition} of queue {queue}")


@click.command(
    cls=Command,
    examples=(
        "penstock configure orders --set retention_time=86400 --set spread=8",
        "penstock configure orders --reset retention_time",
        "penstock configure orders --partition eu --priority 9",
    ),
)
@click.argument("queue")
@click.option("--partition", help="Change this partition.")
@priority_option
@set_option
@reset_option
@description_option
@json_option
@click.pass_obj
def configure(
    given: Given,
    queue: str,
    partition: str | None,
    priority: int | None,
    settings: dict[str, str],
    resets: tuple[str, ...],
    description: str | None,
    as_json: bool,
) -> None:
    """Change a queue's settings, or a partition's priority.

    Prints all settings as they now hold.
    """
    _priority_needs_partition(partition, priority)
    changes = settings_from(settings, resets, _OPTIONS)
    if not changes and priority is None and description is None:
        raise click.UsageError("say what to change: --set, --reset, --description or --priority")
    with given.client() as client:
        now = client.configure(queue, partition=partition, priority=priority, description=description, **changes)
    if as_json:
        output.show_one(now, True)
    else:
        show_settings(now)


@click.command(cls=Command, examples=("penstock purge orders --yes", "penstock purge orders --partition eu --yes"))
@click.argument("queue")
@partition_option
@yes_option
@click.pass_obj
def purge(given: Given, queue: str, partition: str | None, yes: bool) -> None:
    """Drop all messages of a queue or partition.

    Offsets go on where they were. Asks first. Where nobody can be asked it needs --yes.
    """
    confirm(f"drop all messages of {_named(queue, partition)}", yes)
    with given.client() as client:
        dropped = client.purge(queue, partition=partition)
    click.echo(f"dropped {output.counted(dropped, 'message')}")


@click.command(cls=Command, examples=("penstock delete orders --yes", "penstock delete orders --partition eu --yes"))
@click.argument("queue")
@partition_option
@yes_option
@click.pass_obj
def delete(given: Given, queue: str, partition: str | None, yes: bool) -> None:
    """Delete a queue or partition with all that belongs to it.

    Asks first. Where nobody can be asked it needs --yes.
    """
    confirm(f"delete {_named(queue, partition)} with all its messages", yes)
    with given.client() as client:
        dropped = client.delete(queue, partition=partition)
    click.echo(f"deleted {_named(queue, partition)} with {output.counted(dropped, 'message')}")


def show_settings(settings: dict[str, Any], config: dict[str, Any] | None = None) -> None:
    """Show settings, and which of them somebody has set."""
    records = [
        {"setting": name, "value": value, "source": "set" if name in (config or ()) else "default"}
        for name, value in sorted(settings.items())
    ]
    output.show(records, ("setting", "value") if config is None else ("setting", "value", "source"), False)


def _priority_needs_partition(partition: str | None, priority: int | None) -> None:
    if priority is not None and partition is None:
        raise click.UsageError("--priority belongs to a partition: name it with --partition")


def _named(queue: str, partition: str | None) -> str:
    return f"queue {queue}" if partition is None else f"partition {partition} of queue {queue}"
