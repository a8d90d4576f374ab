"""The connection options, which every command takes: --url, --home, --valkey-url and --timeout."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.settings import Settings


@dataclass
class Given:
    """The connection options of the command line; what is missing comes from the environment."""

    url: str | None = None
    home: str | None = None
    valkey_url: str | None = None
    timeout: float | None = None

    def settings(self) -> "Settings":
        """Return the effective settings of this command."""
        from penstock import settings

        return settings.resolve(vars(self))

    def client(self) -> "Client":
        """Open a client."""
        from penstock.client.client import Client

        return Client(self.url, home=self.home, valkey_url=self.valkey_url, timeout=self.timeout)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        setattr(context.ensure_object(Given), option.name or "", value)


CONNECTION: tuple[click.Option, ...] = (
    click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_keep,
        help="Connect to this postgresql://… address (PENSTOCK_URL); otherwise use the embedded server.",
    ),
    click.Option(
        ["--home"],
        metavar="FOLDER",
        expose_value=False,
        callback=_keep,
        help="Keep the embedded server in this folder (PENSTOCK_HOME).",
    ),
    click.Option(
        ["--valkey-url"],
        metavar="URL",
        expose_value=False,
        callback=_keep,
        help="Use the Valkey at this valkey://… address (PENSTOCK_VALKEY_URL), or none.",
    ),
    click.Option(
        ["--timeout"],
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        expose_value=False,
        callback=_keep,
        help="Limit the duration of one call (PENSTOCK_TIMEOUT, default 30).",
    ),
)
