"""API keys of the gateway: create, list, revoke and rotate them."""

from datetime import datetime
from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, confirm, duration, epilog, json_option, yes_option

_KEYS = (
    *("name", "key_id", "scopes", "expires_at", "rate_limit", "burst"),
    *("created_by", "created_at", "last_used_at", "revoked_at"),
)


@click.group(
    epilog=epilog(
        (
            "penstock keys create billing --scope pop:orders-* --scope push:invoices",
            "penstock keys list",
            "penstock keys rotate billing --grace 1h",
            "penstock keys revoke billing",
        )
    )
)
def keys() -> None:
    """Create, list, revoke or rotate API keys of the gateway."""


def _expiry(context: click.Context, option: click.Parameter, value: str | None) -> datetime | float | None:
    """Parse when a key expires: a duration from now, or a time."""
    if value is None:
        return None
    try:
        return duration(context, option, value)
    except click.BadParameter:
        pass
    try:
        return datetime.fromisoformat(value.strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither a duration such as 90d nor a time such as 2027-01-31T12:00:00Z"
        ) from None


@keys.command(
    cls=Command,
    examples=(
        "penstock keys create shop --scope push:orders-* > shop.key",
        "penstock keys create billing --scope pop:orders-* --scope push:invoices --expires 90d --rate-limit 100",
        "penstock keys create dashboard --scope read --json",
        "penstock keys create operator --scope admin --expires 30d",
    ),
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE[:PATTERN]",
    help="Allow push, pop, read or admin, for queues whose names match the pattern; may be repeated.",
)
@click.option(
    "--expires",
    callback=_expiry,
    metavar="DURATION|TIME",
    help="Let it expire after a duration such as 90d, or at a time; otherwise it does not.",
)
@click.option(
    "--rate-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Limit it to so many requests a second, in each process of a gateway.",
)
@click.option("--burst", type=click.IntRange(min=1), metavar="N", help="Allow so many requests at once.")
@json_option
@click.pass_obj
def create(
    given: Given,
    name: str,
    scopes: tuple[str, ...],
    expires: Any,
    rate_limit: float | None,
    burst: int | None,
    as_json: bool,
) -> None:
    """Create an API key, and print it.

    It is printed this once: only a hash of it is stored. A scope without a pattern holds for all queues; a pattern has
    *, ? and [abc] as in a shell. admin includes the other three. What is not about a single queue needs a scope for
    all queues.
    """
    with given.client() as client:
        _print(client.create_api_key(name, scopes, expires=expires, rate_limit=rate_limit, burst=burst), as_json)


@keys.command("list", cls=Command, examples=("penstock keys list", "penstock keys list --revoked --json"))
@click.option("--revoked", is_flag=True, help="List revoked keys, too.")
@json_option
@click.pass_obj
def list_keys(given: Given, revoked: bool, as_json: bool) -> None:
    """List API keys.

    Prints name, id (the visible part of the key), scopes, when it expires, its limit in requests a second and at once,
    who created it and when, when it was last used (to about a minute), and when it was revoked.
    """
    import msgspec

    with given.client() as client:
        output.show(map(msgspec.structs.asdict, client.api_keys(revoked=revoked)), _KEYS, as_json)


@keys.command(cls=Command, examples=("penstock keys revoke billing", "penstock keys revoke 4f0c11d2a9be --yes"))
@click.argument("key")
@yes_option
@click.pass_obj
def revoke(given: Given, key: str, yes: bool) -> None:
    """Revoke an API key by its name or id.

    Gateways refuse it after five seconds at the latest, and so they do sessions that were begun with it. It cannot be
    undone.
    """
    confirm(f"revoke key {key}", yes)
    with given.client() as client:
        info = client.revoke_api_key(key)
    click.echo(f"revoked key {info.name} ({info.key_id})")


@keys.command(
    cls=Command,
    examples=("penstock keys rotate billing > billing.key", "penstock keys rotate billing --grace 1h --json"),
)
@click.argument("key")
@click.option(
    "--grace",
    default="0",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Keep the old secret valid for so long: seconds, or 10m, 2h, 3d.",
)
@json_option
@click.pass_obj
def rotate(given: Given, key: str, grace: float, as_json: bool) -> None:
    """Give an API key a new secret, and print it.

    Name, scopes and id stay. Without --grace the old secret is refused after five seconds at the latest.
    """
    with given.client() as client:
        _print(client.rotate_api_key(key, grace=grace), as_json)


def _print(made: Any, as_json: bool) -> None:
    import msgspec

    if as_json:
        output.show([{"key": made.key, **msgspec.structs.asdict(made.info)}], (), True)
        return
    click.echo(made.key)
    output.remark(f"this is the key {made.info.name}: keep it, it is not shown again")
