"""Claims: who holds what and until when, taking one away, and what happened to a partition."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from penstock.cli import output
from penstock.cli.groups import group_option
from penstock.cli.options import Command, Given, confirm, json_option, yes_option
from penstock.errors import NotFound, SetupError

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
@click.option("--release", "lease", type=click.UUID, metavar="LEASE_ID", help="Take this claim from its holder.")
@yes_option
@json_option
@click.pass_obj
def claims(given: Given, queue: str | None, group: str | None, lease: UUID | None, yes: bool, as_json: bool) -> None:
    """List the claims that are held, or release one.

    Prints queue, group, partition, the first offset and the one after the last, attempt, consumer, since when, until
    when, and lease id, which only admins are told. With --release, for admins, the messages are delivered again at
    once, and whoever held them cannot acknowledge them any more; asks first, and exits with 3 if there is no such
    claim.
    """
    if lease is not None:
        confirm(f"take claim {lease} from its holder", yes)
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
@click.option("--group", required=True, help="Group to look at.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most so many steps."
)
@json_option
@click.pass_obj
def history(given: Given, queue: str, partition: str, group: str, limit: int, as_json: bool) -> None:
    """Tell what happened to a partition in a group, newest first.

    Prints when, the state it came to, the first offset that is not done, the one after the last that is claimed, the
    attempt, when it ends by itself, the consumer, and the error. It reaches back about as far as a lease lasts.
    """
    import msgspec

    with given.client() as client:
        steps = map(msgspec.structs.asdict, client.history(queue, group, partition, limit=limit))
        output.show(steps, _STEP, as_json)


def require_group(client: "Client", queue: str, group: str | None) -> None:
    """Say so when what is not there was asked for: nothing found is no proof."""
    if group is None:
        client.groups(queue)
    else:
        client.lag(queue, group)


def _list(client: "Client", queue: str | None, group: str | None, as_json: bool) -> None:
    import msgspec

    held = client.claims(queue, group)
    if not held and queue is not None:
        require_group(client, queue, group)
    output.show(map(msgspec.structs.asdict, held), _CLAIM, as_json)


def _release(client: "Client", queue: str | None, group: str | None, lease: UUID, as_json: bool) -> None:
    import msgspec

    held = client.claims(queue, group)
    if held and held[0].lease_id is None:
        raise SetupError(
            "only an admin takes a claim from its holder, and is told lease ids: `penstock grant admin USER`"
        )
    found = [claim for claim in held if claim.lease_id == lease]
    # What is left of a shared claim may be in several pieces, which go together.
    if not found or not client.release_claim(found[0]):
        raise NotFound(f"there is no claim {lease}; `penstock claims` lists those that are held")
    if as_json:
        output.show(map(msgspec.structs.asdict, found), _CLAIM, True)
    else:
        messages = sum(claim.stop - claim.start for claim in found)
        click.echo(f"released {output.counted(messages, 'message')} of partition {found[0].partition}")
