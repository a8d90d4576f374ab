"""Services: start and stop the embedded server, check the set-up, show the settings, run the demo."""

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output, supervising
from penstock.cli.access import access_options
from penstock.cli.connection import Given
from penstock.cli.interrupts import ends_on_signal
from penstock.cli.options import Command, json_option
from penstock.cli.supervising import BoundGateway, GatewayService
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.supervising import Service
    from penstock.client.client import Client
    from penstock.operations.checks import Check
    from penstock.settings import Settings

# A server without users stops within seconds. After this time something else keeps it running.
_STOP_TIMEOUT = 15.0
_MAINTENANCE_EVERY = 60.0
# How often `up` looks whether its server was stopped.
_WATCH_EVERY = 0.2
_UNREACHABLE, _SETUP = 4, 5


@click.command(
    cls=Command,
    examples=(
        "penstock up",
        "penstock up --detach --json | jq -r .dsn",
        "penstock up --home ./mine --port 8000 --keys",
        "penstock up --host 0.0.0.0 --keys --tls-cert cert.pem --tls-key key.pem",
    ),
)
@click.option("--detach", is_flag=True, help="Leave the server running until `penstock down`, and return.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Let the gateway listen at this address.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Let the gateway listen at this port; default: 8080, or any free one."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes of the gateway.")
@click.option("--gateway/--no-gateway", default=True, help="Serve the HTTP API and the page as well.")
@access_options
@click.option("--show-password", is_flag=True, help="Print the address with its password.")
@json_option
@click.pass_obj
def up(
    given: Given,
    /,
    detach: bool,
    host: str,
    port: int | None,
    workers: int,
    gateway: bool,
    show_password: bool,
    as_json: bool,
    **access: Any,
) -> None:
    """Start the embedded server and the gateway, and print their addresses.

    The server is PostgreSQL, with a Valkey beside it unless --valkey-url or PENSTOCK_VALKEY_URL names another or none.
    Runs until Ctrl-C, SIGTERM or `penstock down`, then exits with 0. While it runs it does the work of `penstock
    maintain`, a pass over all queues every minute and due timers every second, and that of `penstock dispatch`. With
    --detach it returns as soon as the server is up, and does no maintenance and serves nothing, so run `penstock
    maintain`, `penstock dispatch` and `penstock serve` as well. The JSON contains the addresses with their password.
    Who may call the gateway is said as with `penstock serve`. A home has one `penstock up` at a time.
    """
    from penstock import embedded
    from penstock.warm.serving import dispatching

    settings = given.settings()
    if settings.url is not None:
        raise click.UsageError("`up` starts the embedded server, but --url or PENSTOCK_URL names another one")
    # A command that starts the server on purpose needs no notice that it was started.
    given.home = str(settings.home)
    if detach:
        embedded.start_detached(settings.home)
        with given.client() as client:
            _print_address(client, settings, _start_valkey(settings), show_password, as_json)
        return
    # Before the server starts: a port that is taken, or an address that would be open to all, is known at once.
    bound = BoundGateway(host, port, workers, access) if gateway and _has_gateway() else None
    address = None if bound is None else bound.address
    with ends_on_signal(), supervising.alone(settings.home, address), given.client() as client:
        valkey_url = _start_valkey(settings)
        _print_address(client, settings, valkey_url, show_password, as_json)
        services = [] if bound is None else [GatewayService(bound, client, settings.valkey_url or valkey_url)]
        with supervising.running(services), dispatching(settings):
            output.remark("maintenance: every minute")
            output.remark("Ctrl-C to stop")
            _maintain(client, settings, services)
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
    from penstock import valkey
    from penstock.postgres.address import redact

    redactions = {"url": redact, "valkey_url": valkey.redact}
    records = [
        {
            "name": setting.option.name,
            "value": redactions[setting.option.name](str(setting.value))
            if setting.option.name in redactions and setting.value
            else setting.value,
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


def _print_address(
    client: "Client", settings: "Settings", valkey_url: str | None, show_password: bool, as_json: bool
) -> None:
    from penstock import embedded, valkey
    from penstock.postgres.address import redact

    if as_json:
        status = embedded.status(settings.home)
        record = {
            "dsn": client.dsn,
            "home": settings.home,
            "port": status.port,
            "pid": status.postgres,
            "version": status.version,
            "valkey_url": valkey_url,
            "valkey_pid": status.valkey,
            "valkey_version": status.valkey_version,
        }
        click.echo(output.json_line(record), nl=False)
    else:
        click.echo(client.dsn if show_password else redact(client.dsn))
        if valkey_url:
            output.remark(f"with Valkey at {valkey_url if show_password else valkey.redact(valkey_url)}")


def _start_valkey(settings: "Settings") -> str | None:
    """Start the embedded Valkey, if it is the one in use; without it everything works, slower."""
    from penstock import embedded, valkey

    found = valkey.find(settings)
    if found is None or not found.is_embedded:
        return None
    try:
        with embedded.attach(settings.home) as instance:
            return instance.ensure_valkey()
    except PenstockError as error:
        output.remark(f"penstock: the embedded Valkey did not start, and PostgreSQL does its work: {error}")
        return None


def _has_gateway() -> bool:
    from importlib.util import find_spec

    if find_spec("starlette") is not None and find_spec("uvicorn") is not None:
        return True
    output.remark("gateway: not installed; pip install 'penstock[gateway]'")
    return False


def _maintain(client: "Client", settings: "Settings", services: "Sequence[Service]") -> None:
    from penstock.client.client import Client
    from penstock.operations import maintenance

    ending, saying, stopped = threading.Lock(), threading.Lock(), threading.Event()

    def say() -> None:
        if saying.acquire(blocking=False):
            output.remark("the embedded server was stopped")

    def watch() -> None:
        while _is_running(settings):
            time.sleep(_WATCH_EVERY)
        if ending.acquire(blocking=False):
            stopped.set()
            # Before the signal, which may come where nothing is said any more.
            say()
            # A call that waits for the server to come back would do so until its timeout.
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        threading.Thread(target=watch, daemon=True, name="penstock-up").start()
        try:
            # Not with the client that holds the server up: it would start the server again after `penstock down`.
            with Client(client.dsn, timeout=settings.timeout) as maintainer:
                for event in maintenance.run(maintainer, _MAINTENANCE_EVERY, output.partition_progress):
                    for service in services:
                        service.look()
                    if isinstance(event, maintenance.Failure) and not stopped.is_set():
                        output.remark(f"penstock: {event.during} failed: {event.error}")
        except PenstockError:
            # `penstock down` may come before the first connection.
            if _is_running(settings):
                raise
        if not ending.acquire(blocking=False):
            # The signal is on its way, and must not arrive in the middle of what comes after.
            time.sleep(_STOP_TIMEOUT)
    except KeyboardInterrupt:
        if ending.acquire(blocking=False):
            # It was not the server: somebody wants this to end.
            raise
    say()


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
