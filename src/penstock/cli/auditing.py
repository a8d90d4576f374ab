"""The audit log."""

from datetime import datetime

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, json_option, moment

_ACTS = ("act_id", "at", "actor", "action", "target", "origin", "result")


@click.command(
    cls=Command,
    examples=(
        "penstock audit",
        "penstock audit --since 2h --actor key:operator",
        "penstock audit --action revoke_key --json",
    ),
)
@click.option("--actor", help="List acts of this actor only, such as key:operator or user:postgres.")
@click.option("--action", help="List acts of this kind only, such as create_key.")
@click.option("--since", callback=moment, metavar="TIME", help="List acts since a time: ISO 8601, or 10m, 2h, 3d ago.")
@click.option("--before", type=click.IntRange(min=1), metavar="ID", help="List acts before this one: the next page.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of acts.",
)
@json_option
@click.pass_obj
def audit(
    given: Given,
    actor: str | None,
    action: str | None,
    since: datetime | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List administrative acts, newest first.

    Acts are changes of API keys, and whatever is changed or deleted through the gateway with scope admin. Prints id,
    time, who did it (key:, jwt: or user: and a name), what, to what, from which address, and the result. Acts are kept
    for 400 days, and a million of them at most.
    """
    import msgspec

    with given.client() as client:
        found = client.acts(actor=actor, action=action, since=since, before=before, limit=limit)
        output.show(map(msgspec.structs.asdict, found), _ACTS, as_json)
