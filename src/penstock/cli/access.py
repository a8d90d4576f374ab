"""The options for who may call a gateway, of `penstock serve` and `penstock up`."""

import click

from penstock.cli.options import duration


def access_options(function: click.decorators.FC) -> click.decorators.FC:
    """Add the options for who may call, each with an environment variable. None of them takes a secret itself."""
    for option in (
        click.option(
            "--read-only", is_flag=True, envvar="PENSTOCK_READ_ONLY", help="Refuse every change: for a standby."
        ),
        click.option(
            "--insecure-http",
            is_flag=True,
            envvar="PENSTOCK_INSECURE_HTTP",
            help="Listen beyond loopback without TLS, because a proxy does the encryption.",
        ),
        click.option(
            "--tls-key", metavar="FILE", envvar="PENSTOCK_TLS_KEY", help="Use this private key (PEM) for TLS."
        ),
        click.option(
            "--tls-cert", metavar="FILE", envvar="PENSTOCK_TLS_CERT", help="Use this certificate chain (PEM) for TLS."
        ),
        click.option(
            "--jwt-leeway",
            default="30",
            show_default=True,
            callback=duration,
            metavar="SECONDS",
            envvar="PENSTOCK_JWT_LEEWAY",
            help="Allow clocks to differ by so much.",
        ),
        click.option(
            "--jwt-audience",
            default="penstock",
            show_default=True,
            metavar="NAME",
            envvar="PENSTOCK_JWT_AUDIENCE",
            help="Take tokens for this audience only.",
        ),
        click.option(
            "--jwt-issuer", metavar="NAME", envvar="PENSTOCK_JWT_ISSUER", help="Take tokens of this issuer only."
        ),
        click.option(
            "--jwt-secret-file",
            metavar="FILE",
            envvar="PENSTOCK_JWT_SECRET_FILE",
            help="Take tokens that are signed with the secret in this file (HS256).",
        ),
        click.option(
            "--jwt-keys",
            metavar="FILE|URL",
            envvar="PENSTOCK_JWT_KEYS",
            help="Take tokens that are signed with a key of this JWK set (RS256, EdDSA, HS256).",
        ),
        click.option("--keys", is_flag=True, envvar="PENSTOCK_KEYS", help="Take API keys: see `penstock keys`."),
    ):
        function = option(function)
    return function
