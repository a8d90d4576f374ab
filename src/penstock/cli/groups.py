"""Groups: list them and their lag; create, configure and delete them."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, epilog, group_options, json_option, named, settings_from, yes_option

if TYPE_CHECKING:
    from penstock.broker.infos import GroupInfo

# Names that `--set` refuses, because they have their own option or argument.
_OPTIONS = ("queue", "group", "mode", "subscription")
_COLUMNS = (
    *("queue", "name", "mode", "lag", "depth", "ready", "claimed", "waiting"),
    *("oldest_since", "oldest_age", "dead_letters", "enrolling", "effective_lag", "paused", "held_until"),
    "sampled_at",
)
# Columns that fit into 80 characters.
_SHORT = ("queue", "name", "mode", "lag", "ready", "claimed", "waiting", "age", "dead")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ABOVE = 1

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Override a setting of the queue, such as max_attempts=10; may be repeated.",
)


@click.command(cls=Command, examples=("penstock groups", "penstock groups orders", "penstock groups orders --json"))
@click.argument("queue", required=False)
@json_option
@click.pass_obj
def groups(given: Given, queue: str | None, as_json: bool) -> None:
    """List the groups of a queue, or of all queues.

    Prints queue, name, mode, lag (messages not acknowledged), depth (messages neither acknowledged nor claimed), the
    number of partitions or ranges that are ready, claimed and waiting (for a retry or a delay), the time and the age in
    seconds of the oldest of them, dead letters, whether the group is still enrolling partitions, the effective lag
    (what will be delivered of the lag of a group that conflates), whether it is paused, or until when it is held, and
    where more than 10,000 partitions wait, when these numbers were sampled; before the first sample, the lag begins
    with a plus sign: there is more than that.
    On a terminal narrower than 120 columns only the first ones are printed, and the age is shortened.
    """
    with given.client() as client:
        columns = _SHORT if output.is_narrow() and not as_json else _COLUMNS
        output.show((_record(info, as_json) for info in client.groups(queue)), columns, as_json)


@click.command(cls=Command, examples=("penstock lag orders", "penstock lag orders --group billing --max 1000"))
@click.argument("queue")
@click.option("--group", default="default", show_default=True, help="Select the group.")
@click.option("--max", "most", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if the lag is above this.")
@json_option
@click.pass_context
def lag(context: click.Context, queue: str, group: str, most: int | None, as_json: bool) -> None:
    """Print the lag of a group: messages not acknowledged.

    With --max it can serve as an alert: it exits with 1 if the lag is higher.
    """
    with context.ensure_object(Given).client() as client:
        behind = client.lag(queue, group)
    if as_json:
        output.show_one({"queue": queue, "group": group, "lag": behind}, True)
    else:
        click.echo(behind)
    if most is not None and behind > most:
        output.remark(f"penstock: the lag of group {group} is above {most}")
        context.exit(_ABOVE)


@click.group(
    epilog=epilog(
        (
            "penstock group create orders mailer --mode shared --set max_attempts=10",
            "penstock group configure orders mailer --set lease_time=60 --reset max_attempts",
            "penstock group pause orders mailer",
            "penstock group delete orders mailer --yes",
        )
    )
)
def group() -> None:
    """Create, configure, pause or delete a group."""


@group.command(
    cls=Command,
    examples=(
        "penstock group create orders billing",
        "penstock group create orders mailer --mode shared --subscription new --set max_attempts=10",
    ),
)
@click.argument("queue")
@click.argument("group")
@group_options(
    mode="Set the mode. ordered: one claim per partition at a time. shared: any number, in no order.",
    begins="Start with all messages, with new ones, or at a time.",
)
@set_option
@click.pass_obj
def create(given: Given, queue: str, group: str, mode: str, begins: str | datetime, settings: dict[str, str]) -> None:
    """Create a group, and its queue if needed.

    Exits with 2 if the group exists. A pop also creates its group. If the database setting create_on_first_use is off,
    the queue must exist, and no pop creates a group.
    """
    chosen = settings_from(settings, (), _OPTIONS)
    with given.client() as client:
        client.create_group(queue, group, mode=mode, subscription=begins, **chosen)
    click.echo(f"created group {group} of queue {queue}")


@group.command(
    cls=Command,
    examples=(
        "penstock group configure orders billing --set lease_time=60 --set max_attempts=10",
        "penstock group configure orders billing --reset lease_time",
    ),
)
@click.argument("queue")
@click.argument("group")
@set_option
@click.option(
    "--reset", "resets", multiple=True, metavar="NAME", help="Reset a setting to the queue's; may be repeated."
)
@json_option
@click.pass_obj
def configure(
    given: Given, queue: str, group: str, settings: dict[str, str], resets: tuple[str, ...], as_json: bool
) -> None:
    """Override settings of the queue for one group.

    Prints all effective settings of the group.
    """
    changes = settings_from(settings, resets, _OPTIONS)
    if not changes:
        raise click.UsageError("nothing to change: give --set or --reset")
    with given.client() as client:
        now = client.configure_group(queue, group, **changes)
    if as_json:
        output.show_one(now, True)
    else:
        output.show_settings(now)


@group.command(cls=Command, examples=("penstock group pause orders billing",))
@click.argument("queue")
@click.argument("group")
@click.pass_obj
def pause(given: Given, queue: str, group: str) -> None:
    """Pause delivery to a group.

    Messages that are claimed can still be acknowledged, and pushes go on.
    """
    with given.client() as client:
        changed = client.pause_group(queue, group)
    click.echo(f"paused group {group} of queue {queue}" if changed else f"group {group} of queue {queue} was paused")


@group.command(cls=Command, examples=("penstock group resume orders billing",))
@click.argument("queue")
@click.argument("group")
@click.pass_obj
def resume(given: Given, queue: str, group: str) -> None:
    """Resume delivery to a paused group."""
    with given.client() as client:
        changed = client.resume_group(queue, group)
    click.echo(
        f"resumed group {group} of queue {queue}" if changed else f"group {group} of queue {queue} was not paused"
    )


@group.command(cls=Command, examples=("penstock group delete orders billing --yes",))
@click.argument("queue")
@click.argument("group")
@yes_option
@click.pass_obj
def delete(given: Given, queue: str, group: str, yes: bool) -> None:
    """Delete a group with its positions and dead letters.

    The messages stay for other groups. Asks for confirmation. Without a terminal it needs --yes.
    """
    confirm(f"delete group {group} of queue {queue} with its positions and dead letters", yes)
    with given.client() as client:
        client.delete_group(queue, group)
    click.echo(f"deleted group {group} of queue {queue}")


def _record(info: "GroupInfo", as_json: bool) -> dict[str, Any]:
    import msgspec

    from penstock.operations.groups import oldest_age

    age = oldest_age(info)
    record = {**msgspec.structs.asdict(info), "oldest_age": age}
    if info.at_least and not as_json:
        record["lag"] = f"+{info.lag}"
    return {**record, "age": _short(age), "dead": info.dead_letters} if output.is_narrow() else record


def _short(age: int | None) -> str | None:
    """Return a duration in its largest unit."""
    if age is None:
        return None
    size, unit = next((size, unit) for size, unit in _UNITS if age >= size or size == 1)
    return f"{age // size}{unit}"
