"""The server panel: what the owner of a database asks, and the checks of `penstock doctor`."""

import asyncio

import msgspec

from penstock.broker.server import ServerInfo
from penstock.operations import checks
from penstock.postgres.address import open_address
from penstock.settings import Settings


class ServerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to run the checks of `penstock doctor`, too, which takes a second or two."""

    checks: bool = False


class ServerCheck(msgspec.Struct, frozen=True):
    """What a check found: `outcome` is ok, info, warn or fail."""

    name: str
    outcome: str
    found: str
    advice: str


class ServerPanel(msgspec.Struct, frozen=True):
    """A server; `version` is that of the gateway. Without checks there are none."""

    version: str
    server: ServerInfo
    checks: list[ServerCheck] | None = None


async def run_checks(settings: Settings) -> list[ServerCheck]:
    """Run the checks of server, schema and groups, on a connection of their own."""
    return await asyncio.to_thread(_run_checks, settings)


def _run_checks(settings: Settings) -> list[ServerCheck]:
    address = open_address(settings, check_schema=False)
    try:
        with address.connect() as connection:
            return [
                ServerCheck(check.name, check.outcome, check.found, check.advice)
                for check in checks.server(connection, embedded=address.embedded is not None)
            ]
    finally:
        address.close()
