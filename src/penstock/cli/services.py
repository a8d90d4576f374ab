"""Services: start and stop the embedded server, check the set-up, show the settings, run the demo."""

import signal
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.interrupts import ends_on_signal
from penstock.cli.options import Command, json_option
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.operations.checks import Check
    from penstock.settings import Settings

# A server without users stops within seconds. After this time something else keeps it running.
_STOP_TIMEOUT = 15.0
_MAINTENANCE_EVERY = 60.0
_UNREACHABLE, _SETUP = 4, 5


@click.command(
    cls=Command,
    examples=("penstock up --detach", "penstock up --detach --json | jq -r .dsn", "penstock up --home ./mine"),
)
@click.option("--detach", is_flag=True, help="Leave the server running until `penstock down`, and return.")
@click.option("--show-password", is_flag=True, help="Print the address with its password.")
@json_option
@click.pass_obj
def up(given: Given, detach: bool, show_password: bool, as_json: bool) -> None:
    """Start the embedded server and print its address.

    Runs until Ctrl-C, SIGTERM or `penstock down`, then exits with 0. While it runs it does the work of `penstock
    maintain`: a pass over all queues every minute, and due timers every second. With --detach it returns as soon as
    the server is up and does no maintenance, so run `penstock maintain` as well. The JSON contains the address with
    its password.
    """
    from penstock import embedded

    settings = given.settings()
    if settings.url is not None:
        raise click.UsageError("`up` starts the embedded server, but --url or PENSTOCK_URL names another one")
    # A command that starts the server on purpose needs no notice that it was started.
    given.home = str(settings.home)
    if detach:
        embedded.start_detached(settings.home)
        with given.client() as client:
            _print_address(client, settings, show_password, as_json)
        return
    with ends_on_signal(), given.client() as client:
        _print_address(client, settings, show_password, as_json)
        output.remark("Ctrl-C to stop")
        _maintain(client, settings)
    _wait_until_stopped(settings)


@click.command(cls=Command, examples=("penstock down", "penstock down --home ./mine"))
@click.pass_obj
def down(given: Given) -> None:
    """Stop the embedded server, even if it is in use.

    Exits with 0 even if no server was running.
    """
    from penstock import embedded

    settings = given.settings()
    stopped = embedded.stop(settings.home, settings.timeout)
    click.echo("stopped" if stopped else f"no embedded server was running in {settings.home}")


@click.command(cls=Command, examples=("penstock doctor", "penstock doctor --start --json"))
@click.option("--start", is_flag=True, help="Start the embedded server if it is not running.")
@json_option
@click.pass_context
def doctor(context: click.Context, start: bool, as_json: bool) -> None:
    """Check installation, server, schema and groups.

    Prints each check's name, outcome (ok, info, warn or fail), finding, and advice. Exits with 0 if no check failed,
    with 4 if the database cannot be reached, otherwise with 5. Changes nothing, and starts nothing without --start.
    """
    from penstock.operations import checks

    found = []
    for check in checks.examine(context.ensure_object(Given).settings(), start):
        found.append(check)
        if as_json:
            output.show([_check(check)], (), True)
            sys.stdout.flush()
    if not as_json:
        output.show(map(_check, found), ("check", "outcome", "found", "advice"), False)
    failed = [check for check in found if check.outcome == "fail"]
    if failed:
        context.exit(_UNREACHABLE if any(check.retry for check in failed) else _SETUP)


@click.command(cls=Command, examples=("penstock config", "PENSTOCK_TIMEOUT=5 penstock config --json"))
@json_option
@click.pass_obj
def config(given: Given, as_json: bool) -> None:
    """Show every setting and its source.

    Prints name, value, source (argument, an environment variable, or default), environment variable, and meaning.
    """
    from penstock.postgres.address import redact

    records = [
        {
            "name": setting.option.name,
            "value": redact(str(setting.value)) if setting.option.name == "url" and setting.value else setting.value,
            "source": setting.source,
            "variable": setting.option.variable,
            "help": setting.option.help,
        }
        for setting in given.settings().origins
    ]
    output.show(records, ("name", "value", "source", "variable", "help"), as_json)


@click.command(cls=Command, examples=("penstock demo", "penstock demo --no-stay", "penstock demo --no-spark"))
@click.option("--stay/--no-stay", default=None, help="Keep running until Ctrl-C afterwards; the default on a terminal.")
@click.option("--spark/--no-spark", default=True, help="Include the Spark part, which takes longest.")
@click.pass_obj
def demo(given: Given, stay: bool | None, spark: bool) -> None:
    """Run a demo of the main features.

    Checks every count it prints, and exits with 1 if one is wrong. Uses its own queues, and deletes them at the end.
    """
    from penstock import demo

    # SIGTERM must clean up, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with given.client() as client:
        demo.run(client, click.echo, stay=output.is_terminal() if stay is None else stay, spark=spark)
    settings = given.settings()
    if settings.url is None:
        # Whoever looks afterwards must not find a server that is still stopping.
        _wait_until_stopped(settings)


def _check(check: "Check") -> dict[str, str]:
    record = asdict(check)
    return {"check": record["name"], **{name: record[name] for name in ("outcome", "found", "advice")}}


def _print_address(client: "Client", settings: "Settings", show_password: bool, as_json: bool) -> None:
    from penstock import embedded
    from penstock.postgres.address import redact

    if as_json:
        status = embedded.status(settings.home)
        record = {
            "dsn": client.dsn,
            "home": settings.home,
            "port": status.port,
            "pid": status.postgres,
            "version": status.version,
        }
        click.echo(output.json_line(record), nl=False)
    else:
        click.echo(client.dsn if show_password else redact(client.dsn))


def _maintain(client: "Client", settings: "Settings") -> None:
    from penstock.client.client import Client
    from penstock.operations import maintenance

    # Not with the client that holds the server up: it would start the server again after `penstock down`.
    try:
        with Client(client.dsn, timeout=settings.timeout) as maintainer:
            for event in maintenance.run(maintainer, _MAINTENANCE_EVERY, output.partition_progress):
                if not _is_running(settings):
                    break
                if isinstance(event, maintenance.Failure):
                    output.remark(f"penstock: {event.during} failed: {event.error}")
    except PenstockError:
        # `penstock down` may come before the first connection.
        if _is_running(settings):
            raise
    output.remark("the embedded server was stopped")


def _is_running(settings: "Settings") -> bool:
    """Wait while the server starts or stops, then return whether it runs."""
    from penstock import embedded

    while True:
        status = embedded.status(settings.home)
        if status.running or status.keeper is None:
            return status.running
        time.sleep(0.05)


def _wait_until_stopped(settings: "Settings") -> None:
    from penstock import embedded

    deadline = time.monotonic() + _STOP_TIMEOUT
    while time.monotonic() < deadline:
        status = embedded.status(settings.home)
        if status.keeper is None or status.in_use or status.pinned:
            return
        time.sleep(0.05)
