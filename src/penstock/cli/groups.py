"""Groups: what waits and since when; make, change and delete them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.options import (
    Command,
    Given,
    confirm,
    epilog,
    json_option,
    named,
    settings_from,
    subscription,
    yes_option,
)
from penstock.cli.queues import show_settings

if TYPE_CHECKING:
    from penstock.broker.infos import GroupInfo

# What `--set` must not name, because it is an option of its own.
_OPTIONS = ("queue", "group", "mode", "subscription")
_COLUMNS = (
    *("queue", "name", "mode", "lag", "depth", "ready", "claimed", "waiting"),
    *("oldest_since", "oldest_age", "dead_letters", "enrolling"),
)
# Those that fit into 80 columns.
_SHORT = ("queue", "name", "mode", "lag", "ready", "claimed", "waiting", "age", "dead")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ABOVE = 1

group_option = click.option("--group", help="Only this group.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Setting that overrides the queue's, such as max_attempts=10; may be repeated.",
)


@click.command(cls=Command, examples=("penstock groups", "penstock groups orders", "penstock groups orders --json"))
@click.argument("queue", required=False)
@json_option
@click.pass_obj
def groups(given: Given, queue: str | None, as_json: bool) -> None:
    """List the groups of a queue, or of all queues.

    Prints queue, name, mode, lag (messages that are not acknowledged), depth (those that nobody holds), how many pieces
    of work are ready, claimed and waiting (for a retry or a delay), since when the oldest has been as it is and how
    many seconds that is, dead letters, and whether the group is still taking up partitions. On a terminal of less than
    120 columns it leaves out depth and enrolling, and prints the age short.
    """
    with given.client() as client:
        columns = _SHORT if output.is_narrow() and not as_json else _COLUMNS
        output.show(map(_record, client.groups(queue)), columns, as_json)


@click.command(cls=Command, examples=("penstock lag orders", "penstock lag orders --group billing --max 1000"))
@click.argument("queue")
@click.option("--group", default="default", show_default=True, help="Group to look at.")
@click.option("--max", "most", type=click.IntRange(min=0), metavar="N", help="Exit with 1 when the lag is above this.")
@json_option
@click.pass_context
def lag(context: click.Context, queue: str, group: str, most: int | None, as_json: bool) -> None:
    """Print how many messages a group has still to acknowledge.

    With --max this is an alert: it exits with 1 when there are more.
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
            "penstock group delete orders mailer --yes",
        )
    )
)
def group() -> None:
    """Create, configure or delete a group."""


@group.command(
    cls=Command,
    examples=(
        "penstock group create orders billing",
        "penstock group create orders mailer --mode shared --subscription new --set max_attempts=10",
    ),
)
@click.argument("queue")
@click.argument("group")
@click.option(
    "--mode",
    type=click.Choice(["ordered", "shared"]),
    default="ordered",
    show_default=True,
    help="Ordered: one consumer per partition at a time. Shared: any number, and no order.",
)
@click.option(
    "--subscription",
    "begins",
    default="all",
    show_default=True,
    metavar="all|new|TIME",
    callback=subscription,
    help="Where it begins: with all messages, with new ones, or at a time.",
)
@set_option
@click.pass_obj
def create(given: Given, queue: str, group: str, mode: str, begins: str | datetime, settings: dict[str, str]) -> None:
    """Create a group of QUEUE, and the queue if there is none.

    Exits with 2 if it exists. A pop creates one by itself. Where `penstock database` says that nothing is made on first
    use, the queue must be there, and no pop creates a group.
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
    "--reset", "resets", multiple=True, metavar="NAME", help="Setting to set back to the queue's; may be repeated."
)
@json_option
@click.pass_obj
def configure(
    given: Given, queue: str, group: str, settings: dict[str, str], resets: tuple[str, ...], as_json: bool
) -> None:
    """Override settings of the queue for one group.

    Prints all settings as they now hold for it.
    """
    changes = settings_from(settings, resets, _OPTIONS)
    if not changes:
        raise click.UsageError("say what to change: --set or --reset")
    with given.client() as client:
        now = client.configure_group(queue, group, **changes)
    if as_json:
        output.show_one(now, True)
    else:
        show_settings(now)


@group.command(cls=Command, examples=("penstock group delete orders billing --yes",))
@click.argument("queue")
@click.argument("group")
@yes_option
@click.pass_obj
def delete(given: Given, queue: str, group: str, yes: bool) -> None:
    """Delete a group with its positions and dead letters.

    The messages stay, for other groups. Asks first. Where nobody can be asked it needs --yes.
    """
    confirm(f"delete group {group} of queue {queue} with its positions and dead letters", yes)
    with given.client() as client:
        client.delete_group(queue, group)
    click.echo(f"deleted group {group} of queue {queue}")


def _record(info: "GroupInfo") -> dict[str, Any]:
    import msgspec

    since = info.oldest_since
    age = None if since is None else max(0, round((datetime.now(UTC) - since).total_seconds()))
    record = {**msgspec.structs.asdict(info), "oldest_age": age}
    return {**record, "age": _short(age), "dead": info.dead_letters} if output.is_narrow() else record


def _short(age: int | None) -> str | None:
    """Return a number of seconds in its largest unit."""
    if age is None:
        return None
    size, unit = next((size, unit) for size, unit in _UNITS if age >= size or size == 1)
    return f"{age // size}{unit}"
