"""Claims: list and release them, and show the history of a partition."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, group_option, json_option, yes_option

if TYPE_CHECKING:
    from penstock.client.client import Client

_CLAIM = (
    *("queue", "group", "partition", "start", "stop", "attempt"),
    *("consumer", "acquired_at", "expires_at", "lease_id"),
)
_STEP = ("at", "state", "committed", "claimed_to", "attempt", "due_at", "consumer", "error")


@click.command(
    cls=Command,
    examples=(
        "penstock claims",
        "penstock claims orders --group billing --json",
        "penstock claims --release 0b8f7a52-4c3e-4c59-9a2f-4d1f6e1f7c11 --yes",
    ),
)
@click.argument("queue", required=False)
@group_option
@click.option("--release", "lease", type=click.UUID, metavar="LEASE_ID", help="Release the claim with this lease id.")
@yes_option
@json_option
@click.pass_obj
def claims(given: Given, queue: str | None, group: str | None, lease: UUID | None, yes: bool, as_json: bool) -> None:
    """List claims, or release one.

    Prints queue, group, partition, first offset, end offset (exclusive), attempt, consumer, when it was acquired, when
    it expires, and lease id, which only admins see. With --release, which needs the admin role, the messages are
    delivered again at once, and their holder can no longer acknowledge them. Asks for confirmation; exits with 3 if
    there is no such claim.
    """
    if lease is not None:
        confirm(f"release claim {lease}", yes)
    with given.client() as client:
        if lease is None:
            _list(client, queue, group, as_json)
        else:
            _release(client, queue, group, lease, as_json)


@click.command(
    cls=Command,
    examples=("penstock history orders eu --group billing", "penstock history orders eu --group billing --limit 5"),
)
@click.argument("queue")
@click.argument("partition")
@click.option("--group", required=True, help="Select the group.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of entries.",
)
@json_option
@click.pass_obj
def history(given: Given, queue: str, partition: str, group: str, limit: int, as_json: bool) -> None:
    """Show the history of a partition in a group, newest first.

    Prints the time, the new state, the committed offset (all before it is done), the end of the claimed range
    (exclusive), the attempt, when its timer fires, the consumer, and the error. The history covers about the length of
    one lease.
    """
    import msgspec

    with given.client() as client:
        steps = map(msgspec.structs.asdict, client.history(queue, group, partition, limit=limit))
        output.show(steps, _STEP, as_json)


def _list(client: "Client", queue: str | None, group: str | None, as_json: bool) -> None:
    import msgspec

    from penstock.operations.groups import require_group

    held = client.claims(queue, group)
    if not held and queue is not None:
        require_group(client, queue, group)
    output.show(map(msgspec.structs.asdict, held), _CLAIM, as_json)


def _release(client: "Client", queue: str | None, group: str | None, lease: UUID, as_json: bool) -> None:
    import msgspec

    from penstock.operations.groups import release_lease

    found = release_lease(client, lease, queue, group)
    if as_json:
        output.show(map(msgspec.structs.asdict, found), _CLAIM, True)
    else:
        messages = sum(claim.stop - claim.start for claim in found)
        click.echo(f"released {output.counted(messages, 'message')} of partition {found[0].partition}")
