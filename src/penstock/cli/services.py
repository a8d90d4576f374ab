"""The services themselves: start and stop the embedded server, show the settings, run the demo."""

import signal
import time
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.maintenance import ends_on_signal, passes
from penstock.cli.options import Command, Given, json_option

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.settings import Settings

# A server without users stops within seconds; longer than this, something keeps it.
_FAREWELL = 15.0


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

    It runs until Ctrl-C, SIGTERM or `penstock down`, and then exits with 0. Meanwhile it does what `penstock maintain`
    does: it looks after the queues every minute, and after expired leases every second. With --detach it returns when
    the server is up; nobody does that then, so run `penstock maintain` as well. The JSON has the address with its
    password.
    """
    from penstock import embedded

    settings = given.settings()
    if settings.url is not None:
        raise click.UsageError("`up` starts the embedded server, but --url or PENSTOCK_URL names another one")
    # Whoever starts it means it, and need not be told.
    given.home = str(settings.home)
    if detach:
        embedded.start_detached(settings.home)
        with given.client() as client:
            _announce(client, settings, show_password, as_json)
        return
    with ends_on_signal(), given.client() as client:
        _announce(client, settings, show_password, as_json)
        output.remark("Ctrl-C to stop")
        _look_after(client, settings)
    _wait_for_the_end(settings)


@click.command(cls=Command, examples=("penstock down", "penstock down --home ./mine"))
@click.pass_obj
def down(given: Given) -> None:
    """Stop the embedded server, whoever uses it.

    Exits with 0 also when none was running.
    """
    from penstock import embedded

    settings = given.settings()
    stopped = embedded.stop(settings.home, settings.timeout)
    click.echo("stopped" if stopped else f"no embedded server was running in {settings.home}")


@click.command(cls=Command, examples=("penstock config", "PENSTOCK_TIMEOUT=5 penstock config --json"))
@json_option
@click.pass_obj
def config(given: Given, as_json: bool) -> None:
    """Show every setting and where it comes from.

    Prints name, value, source (argument, an environment variable, or default), environment variable and meaning.
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
@click.option("--stay/--no-stay", default=None, help="Keep serving until Ctrl-C afterwards; the default on a terminal.")
@click.option("--spark/--no-spark", default=True, help="Show the part on Spark, which takes the longest.")
@click.pass_obj
def demo(given: Given, stay: bool | None, spark: bool) -> None:
    """Show the main job end to end.

    Checks every count against what it made, and exits with 1 if one is wrong. Works on queues of its own, and removes
    them.
    """
    from penstock import demo

    # Whatever ends it, it cleans up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with given.client() as client:
        demo.run(client, click.echo, stay=output.is_terminal() if stay is None else stay, spark=spark)
    settings = given.settings()
    if settings.url is None:
        # Whoever looks now finds that nothing was left behind.
        _wait_for_the_end(settings)


def _announce(client: "Client", settings: "Settings", show_password: bool, as_json: bool) -> None:
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


def _look_after(client: "Client", settings: "Settings") -> None:
    from penstock.client.client import Client

    # Not with the client that holds the server up: it would start one again, against the will of whoever stopped it.
    with Client(client.dsn, timeout=settings.timeout) as hands:
        for _ in passes(hands, every=60.0):
            if not _is_there(settings):
                output.remark("the embedded server was stopped")
                return


def _is_there(settings: "Settings") -> bool:
    """Wait while the server starts or stops, then say whether it is there."""
    from penstock import embedded

    while True:
        status = embedded.status(settings.home)
        if status.running or status.keeper is None:
            return status.running
        time.sleep(0.05)


def _wait_for_the_end(settings: "Settings") -> None:
    from penstock import embedded

    deadline = time.monotonic() + _FAREWELL
    while time.monotonic() < deadline:
        status = embedded.status(settings.home)
        if status.keeper is None or status.in_use or status.pinned:
            return
        time.sleep(0.05)
