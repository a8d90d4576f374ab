"""Flows: run the flows of a file, list all flows and their status, pause and resume them."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.interrupts import StopSignals
from penstock.cli.options import Command, epilog, json_option, spark_conf, spark_options

if TYPE_CHECKING:
    from penstock.pipeline.flow import Flow
    from penstock.pipeline.running import Running

_COLUMNS = (
    *("name", "flow_type", "state", "lag", "warm", "cold", "rows_per_second"),
    *("epoch", "epoch_at", "dead_letters", "late_rows", "error"),
)
_ACTION_COLUMNS = ("flow", "flow_type", "action", "action_class", "plugin", "warm", "cold")
_FAILED = 1


@click.command(
    cls=Command,
    examples=(
        "penstock run flows.py",
        "penstock run flows.py --once",
        "penstock run flows.py --master spark://host:7077 --checkpoints s3a://bucket/checkpoints",
        "penstock run flows.py --reset clean-orders",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--once",
    is_flag=True,
    help="Process the messages that are there, then exit; flows run in the order of their queues.",
)
@click.option("--flow", "names", multiple=True, metavar="NAME", help="Run this flow only; may be repeated.")
@click.option("--checkpoints", metavar="PATH", help="Store new checkpoints here: a folder, or file:, s3a:, hdfs:.")
@click.option(
    "--reset",
    multiple=True,
    metavar="NAME",
    help="Start this flow with a new checkpoint at its current position; may be repeated.",
)
@spark_options
@click.pass_context
def run(
    context: click.Context,
    file: str,
    once: bool,
    names: tuple[str, ...],
    master: str | None,
    remote: str | None,
    checkpoints: str | None,
    reset: tuple[str, ...],
    conf: tuple[str, ...],
) -> None:
    """Run the flows of a Python file.

    Checks all flows before it starts any, and reports problems with their line. Each flow is a separate query: if one
    fails it is restarted with backoff, and the others go on. Ctrl-C stops all flows, also in the middle of an epoch:
    what was not published is read again next time. Exits with 1 if a flow has failed permanently.
    """
    from penstock.errors import MissingExtra

    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtra("spark", "Running flows")
    with StopSignals() as signals:
        settings = context.ensure_object(Given).settings()
        options = spark_conf(master, remote, conf)
        flows = _load(file, names)

        from penstock.pipeline import sessions
        from penstock.pipeline.supervisor import Supervisor

        supervisor = Supervisor(flows, settings, once=once, checkpoints=checkpoints, reset=reset, echo=output.remark)
        supervisor.require_free()

        def stop() -> None:
            output.remark("stopping…")
            supervisor.end()

        signals.stop_with(stop)
        with sessions.opened(settings, master, remote, options) as spark, _live() as show:
            signals.begin()
            ran_well = supervisor.run(spark, show)
        if not ran_well:
            context.exit(_FAILED)


def _load(file: str, names: tuple[str, ...]) -> "list[Flow]":
    """Load the flows of a file, or those that are named."""
    from penstock.errors import InvalidInput
    from penstock.pipeline.loading import load

    flows = load(file)
    unknown = set(names) - {flow.name for flow in flows}
    if unknown:
        raise InvalidInput(f"{file} has no flow {', '.join(sorted(unknown))}")
    return [flow for flow in flows if not names or flow.name in names]


@contextmanager
def _live() -> "Iterator[Callable[[Sequence[Running]], None] | None]":
    """Show the status of running flows on a terminal."""
    if not output.is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def show(running: "Sequence[Running]") -> None:
            table = Table("flow", "state", "epoch", "rows", "rows/s", "error")
            for one in running:
                status = one.status()
                cells = (one.name, status.state, status.epoch, one.rows, status.rows_per_second, status.error)
                table.add_row(*("-" if cell is None else str(cell) for cell in cells))
            live.update(table, refresh=True)

        yield show


@click.group(
    invoke_without_command=True,
    epilog=epilog(("penstock flows", "penstock flows --json", "penstock flows pause clean-orders")),
)
@json_option
@click.pass_context
def flows(context: click.Context, as_json: bool) -> None:
    """List flows and their status.

    Prints name, type, state (starting, running, backing off, failed, paused, stopped, finished, or lost when its
    supervisor sends no heartbeat), lag, the warm part of the lag (admitted to an epoch that is not published) and the
    cold part, rows per second, the last epoch and its time, dead letters, late rows that Spark dropped, and the last
    error.
    """
    if context.invoked_subcommand is not None:
        return
    import msgspec

    with context.ensure_object(Given).client() as client:
        output.show(map(msgspec.structs.asdict, client.flows()), _COLUMNS, as_json)


@flows.command(cls=Command, examples=("penstock flows pause clean-orders",))
@click.argument("flow")
@click.pass_obj
def pause(given: Given, flow: str) -> None:
    """Pause a flow until it is resumed."""
    with given.client() as client:
        client.pause_flow(flow)
    click.echo(f"paused flow {flow}")


@flows.command(cls=Command, examples=("penstock flows resume clean-orders",))
@click.argument("flow")
@click.pass_obj
def resume(given: Given, flow: str) -> None:
    """Resume a paused flow."""
    with given.client() as client:
        client.resume_flow(flow)
    click.echo(f"resumed flow {flow}")


@flows.command(cls=Command, examples=("penstock flows forget clean-orders",))
@click.argument("flow")
@click.pass_obj
def forget(given: Given, flow: str) -> None:
    """Remove a flow that no longer runs from the list.

    Its queues, groups and dead letters stay.
    """
    with given.client() as client:
        client.forget_flow(flow)
    click.echo(f"removed flow {flow} from the list")


@flows.command(cls=Command, examples=("penstock flows actions", "penstock flows actions clean-orders --json"))
@click.argument("flow", required=False)
@json_option
@click.pass_obj
def actions(given: Given, flow: str | None, as_json: bool) -> None:
    """List the actions of a flow, or of all flows.

    Prints flow, type, action, action class, the plugin (distribution:version) that provides the class, and how many
    messages are left: warm (admitted to an epoch that is not published) and cold.
    """
    import msgspec

    with given.client() as client:
        records = map(msgspec.structs.asdict, client.actions(flow))
        output.show(records, _ACTION_COLUMNS, as_json)
