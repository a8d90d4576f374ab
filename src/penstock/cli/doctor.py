"""Finding out what is wrong: `doctor` runs the checks, shows them, and says in its exit code how it stands."""

import sys
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.options import Command, Given, json_option
from penstock.errors import PenstockError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.checks import Check
    from penstock.settings import Settings

_UNREACHABLE, _SETUP = 4, 5


@click.command(cls=Command, examples=("penstock doctor", "penstock doctor --start --json"))
@click.option("--start", is_flag=True, help="Start the embedded server if it is not running.")
@json_option
@click.pass_context
def doctor(context: click.Context, start: bool, as_json: bool) -> None:
    """Check installation, server and schema; say what to do.

    Prints for each check its name, its outcome (ok, info, warn or fail), what was found, and what to do. Exits with 0
    if nothing failed, with 4 if the database cannot be reached, else with 5. Changes nothing, and starts nothing
    without --start.
    """
    settings = context.ensure_object(Given).settings()
    found = []
    for check in _checks(settings, start):
        found.append(check)
        if as_json:
            output.show([check.record()], (), True)
            sys.stdout.flush()
    if not as_json:
        output.show([check.record() for check in found], ("check", "outcome", "found", "advice"), False)
    failed = [check for check in found if check.outcome == "fail"]
    if failed:
        context.exit(_UNREACHABLE if any(check.retry for check in failed) else _SETUP)


def _checks(settings: "Settings", start: bool) -> "Iterator[Check]":
    from penstock.cli import checks

    yield checks.python()
    yield checks.extras(needs_embedded=settings.url is None)
    if settings.url is None:
        yield checks.home(settings.home)
        running = checks.embedded_server(settings.home)
        yield running
        if running.outcome != "ok" and not start:
            yield checks.Check(
                "database", "info", "not looked at, because the embedded server is not running", "use --start"
            )
            return
    yield from _database(settings)


def _database(settings: "Settings") -> "Iterator[Check]":
    from penstock.cli import checks
    from penstock.postgres.address import open_address, redact

    try:
        address = open_address(settings, check_schema=False)
    except PenstockError as error:
        away = not isinstance(error, SetupError)
        yield checks.Check("database", "fail", str(error), "see PENSTOCK_URL and --url", retry=away)
        return
    try:
        with address.connect() as connection:
            yield checks.Check("database", "ok", redact(address.dsn))
            yield from checks.server(connection, embedded=address.embedded is not None)
    finally:
        address.close()
