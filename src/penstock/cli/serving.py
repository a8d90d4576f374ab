"""The gateway: `penstock serve`."""

from contextlib import nullcontext
from typing import Any

import click

from penstock.cli import output
from penstock.cli.access import access_options
from penstock.cli.connection import Given
from penstock.cli.options import Command


def address_options(function: click.decorators.FC) -> click.decorators.FC:
    """Add the options for where the gateway listens."""
    for option in (
        click.option(
            "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Serve with so many processes."
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=8080,
            show_default=True,
            help="Listen at this port; 0: any.",
        ),
        click.option("--host", default="127.0.0.1", show_default=True, help="Listen at this address."),
    ):
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=(
        "penstock serve",
        "PENSTOCK_URL=postgresql://db/app penstock serve --port 8000 --workers 4",
        "penstock serve --host 0.0.0.0 --keys --tls-cert cert.pem --tls-key key.pem",
        "penstock serve --jwt-keys https://id.example.org/jwks.json --jwt-issuer https://id.example.org",
        "penstock serve --log-format json --log-requests all",
    ),
)
@address_options
@access_options
@click.option(
    "--max-body",
    type=click.IntRange(1024),
    default=16 << 20,
    show_default=True,
    help="Refuse larger requests, in bytes.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Write the log, which goes to the standard error, as lines of text or of JSON.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Log from this level on.",
)
@click.option(
    "--log-requests",
    type=click.Choice(["all", "errors", "none"]),
    default="errors",
    show_default=True,
    help="Log all requests, those answered with 400 or above, or none.",
)
@click.option(
    "--verify-every",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Check state against the log so often, for /metrics; 0: never.",
)
@click.pass_obj
def serve(
    given: Given,
    /,
    host: str,
    port: int,
    workers: int,
    max_body: int,
    log_format: str,
    log_level: str,
    log_requests: str,
    verify_every: float,
    **access: Any,
) -> None:
    """Serve the HTTP API and the page.

    Prints its address and runs until Ctrl-C or SIGTERM; requests under way are answered first. /docs describes the
    API. Listens on loopback unless told otherwise, and refuses other addresses without authentication (--keys,
    --jwt-keys) and encryption (--tls-cert, or --insecure-http behind a proxy). Each option can be set by an environment
    variable: --jwt-issuer by PENSTOCK_JWT_ISSUER, and so on.
    """
    from penstock.errors import MissingExtra

    try:
        from penstock.gateway import serving
        from penstock.gateway.access.settings import Access
    except ModuleNotFoundError as error:
        raise MissingExtra("gateway", "`penstock serve`") from error

    wanted = serving.Serving(
        given.url,
        given.home,
        host,
        port,
        workers,
        max_body,
        given.timeout,
        Access(**access),
        valkey_url=given.valkey_url,
        log_format=log_format,
        log_level=log_level,
        log_requests=log_requests,
        verify_every=verify_every,
    )
    bound = serving.bind(wanted)
    # Held open while it serves: the workers' own connections come and go, and an embedded server must stay. A server
    # of one's own may be away when the gateway starts.
    with given.client() if given.settings().url is None or wanted.access.keys else nullcontext() as client:
        if wanted.access.keys and client is not None and not client.has_api_keys():
            output.remark("there is no API key yet: create one with `penstock keys create NAME --scope admin`")
        click.echo(serving.address_of(bound, wanted.access.scheme))
        output.remark("Ctrl-C to stop")
        serving.serve(wanted, bound)
