"""Queues and partitions: list, describe, create, configure, purge and delete them."""

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, json_option, named, settings_from, yes_option

# Names that `--set` refuses, because they have their own option or argument.
_OPTIONS = ("queue", "partition", "priority", "description")

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Set a setting of the queue, such as retention_time=86400; may be repeated. `describe` lists all settings.",
)
priority_option = click.option("--priority", type=int, help="Set the priority of the partition.")
description_option = click.option("--description", help="Set the description of the queue.")
reset_option = click.option(
    "--reset", "resets", multiple=True, metavar="NAME", help="Reset a setting to its default; may be repeated."
)
partition_option = click.option("--partition", help="Select this partition only.")


@click.command(cls=Command, examples=("penstock queues", "penstock queues --json | jq -r .name"))
@json_option
@click.pass_obj
def queues(given: Given, as_json: bool) -> None:
    """List queues.

    Prints name, number of partitions, messages and dropped messages, and the time of the newest message.
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

    Prints name, number of messages, floor, head, priority, and the time of the newest message. The floor is the first
    offset that is not dropped, the head the next offset.
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
    """Show a queue and its settings."""
    import msgspec

    with given.client() as client:
        record = msgspec.structs.asdict(client.describe(queue))
    if as_json:
        output.show_one(record, True)
        return
    config, settings = record.pop("config"), record.pop("settings")
    output.show_one(record, False)
    output.show_settings(settings, config)


@click.command(
    cls=Command,
    examples=(
        "penstock create invoices --set retention_time=604800 --description 'a week of invoices'",
        "penstock create orders --partition eu --priority 5",
    ),
)
@click.argument("queue")
@click.option("--partition", help="Create this partition, and the queue if needed.")
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
    """Create a queue or a partition.

    Exits with 2 if it exists. A push also creates its queue and partition; if the database setting create_on_first_use
    is off, only its partition.
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
@click.option("--partition", help="Configure this partition.")
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
    """Change a queue's settings or a partition's priority.

    Prints all effective settings.
    """
    _priority_needs_partition(partition, priority)
    changes = settings_from(settings, resets, _OPTIONS)
    if not changes and priority is None and description is None:
        raise click.UsageError("nothing to change: give --set, --reset, --description or --priority")
    with given.client() as client:
        now = client.configure(queue, partition=partition, priority=priority, description=description, **changes)
    if as_json:
        output.show_one(now, True)
    else:
        output.show_settings(now)


@click.command(cls=Command, examples=("penstock pause orders",))
@click.argument("queue")
@click.pass_obj
def pause(given: Given, queue: str) -> None:
    """Refuse pushes to a queue.

    Messages are delivered as ever. `penstock group pause` pauses their delivery to a group.
    """
    with given.client() as client:
        changed = client.pause_queue(queue)
    click.echo(f"paused pushes to queue {queue}" if changed else f"pushes to queue {queue} were paused")


@click.command(cls=Command, examples=("penstock resume orders",))
@click.argument("queue")
@click.pass_obj
def resume(given: Given, queue: str) -> None:
    """Take pushes to a paused queue again."""
    with given.client() as client:
        changed = client.resume_queue(queue)
    click.echo(f"resumed pushes to queue {queue}" if changed else f"pushes to queue {queue} were not paused")


@click.command(cls=Command, examples=("penstock purge orders --yes", "penstock purge orders --partition eu --yes"))
@click.argument("queue")
@partition_option
@yes_option
@click.pass_obj
def purge(given: Given, queue: str, partition: str | None, yes: bool) -> None:
    """Drop all messages of a queue or partition.

    Offsets continue from the head. Asks for confirmation. Without a terminal it needs --yes.
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
    """Delete a queue or partition with its messages and groups.

    Asks for confirmation. Without a terminal it needs --yes.
    """
    confirm(f"delete {_named(queue, partition)} with all its messages", yes)
    with given.client() as client:
        dropped = client.delete(queue, partition=partition)
    click.echo(f"deleted {_named(queue, partition)} with {output.counted(dropped, 'message')}")


def _priority_needs_partition(partition: str | None, priority: int | None) -> None:
    if priority is not None and partition is None:
        raise click.UsageError("--priority requires --partition")


def _named(queue: str, partition: str | None) -> str:
    return f"queue {queue}" if partition is None else f"partition {partition} of queue {queue}"
