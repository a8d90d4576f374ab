"""The commands `penstock bench …`."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import click
import msgspec
from rich.console import Console

from penstock import embedded, valkey
from penstock.bench.plan import FULL, QUICK, Plan
from penstock.bench.report import save, show, show_missed
from penstock.bench.run import run
from penstock.client.client import Client
from penstock.errors import PenstockError
from penstock.settings import resolve

R = TypeVar("R")
Command = TypeVar("Command", bound=Callable[..., None])

_SERVER = click.option("--url", help="Measure on this server; default: PENSTOCK_URL, then the embedded server.")


def _quick(takes: str) -> Callable[[Command], Command]:
    return click.option("--quick", is_flag=True, help=f"Make a smoke run of {takes}; its figures mean nothing.")


def _output_options(name: str) -> Callable[[Command], Command]:
    """Add the options that say what to do with the report."""
    options = [
        click.option("--check", is_flag=True, help="Exit with 1 if a promised ratio is missed."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        click.option(
            "--save",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            is_flag=False,
            flag_value=Path("bench"),
            help=f"Write {name}.json and {name}.md to a folder; default: ./bench.",
        ),
    ]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group()
def bench() -> None:
    """Measure penstock beside other designs, on this machine."""


@bench.command()
@click.option("--url", help="Measure on this database; default: PENSTOCK_URL, then the embedded server.")
@_quick("some seconds")
@click.option("--rounds", type=click.IntRange(1), help="Set the number of rounds per contender.")
@click.option("--writers", type=click.IntRange(1), help="Set the number of concurrent writers.")
@_output_options("log")
def log(
    url: str | None,
    quick: bool,
    rounds: int | None,
    writers: int | None,
    check: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Compare the log with other ways to store messages.

    Takes some minutes. Needs a role that may create a schema; uses one called penstock_bench and queues whose names
    begin so, and removes both. Runs the maintenance of all queues once, as `penstock maintain` does.
    """
    plan = QUICK if quick else FULL
    plan = plan._replace(rounds=rounds or plan.rounds, writers=writers or plan.writers)
    try:
        with _progress(plan) as progress:
            report = run(url, plan, quick, progress)
    except PenstockError as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        show(report, console)
    if folder is not None:
        save(report, folder)
    if check and not show_missed(report, Console(stderr=as_json)):
        sys.exit(1)


@bench.command()
@_SERVER
@_quick("some seconds")
@_output_options("groups")
def groups(url: str | None, quick: bool, check: bool, as_json: bool, folder: Path | None) -> None:
    """Measure consuming: many partitions, open transactions, idle.

    Takes about a quarter of an hour. Works in a database of its own, which it creates and drops.
    """
    from penstock.bench.groups import report as groups_report

    plan = groups_report.QUICK if quick else groups_report.FULL
    report = _measured(url, lambda dsn: groups_report.run(dsn, plan, _say))
    _show(groups_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("some seconds")
@_output_options("batching")
def batching(url: str | None, quick: bool, check: bool, as_json: bool, folder: Path | None) -> None:
    """Measure batching, and the cost of waiting callers.

    Takes about two minutes. Works in a database of its own, which it creates and drops.
    """
    from penstock.bench.batching import report as batching_report

    plan = batching_report.QUICK if quick else batching_report.FULL
    report = _measured(url, lambda dsn: batching_report.run(dsn, plan, _say))
    _show(batching_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@click.option(
    "--before",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Compare with another checkout of penstock: a folder with a .venv of its own.",
)
@click.option("--quick", is_flag=True, help="Measure two consumers and eight partitions only.")
@click.option("--rounds", type=click.IntRange(1), help="Give each contender so many turns.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Let each turn last so long.")
@_output_options("consume")
def consume(
    url: str | None,
    before: Path | None,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    check: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Measure take and ack beside another checkout and beside SELECT … FOR UPDATE SKIP LOCKED.

    Takes about half an hour, with --quick some minutes. Works in databases of its own, which it creates and drops.
    """
    from penstock.bench.consume import plan as consume_plan
    from penstock.bench.consume import report as consume_report
    from penstock.bench.consume.run import run as run_consume

    plan = consume_plan.QUICK if quick else consume_plan.FULL
    plan = plan._replace(rounds=rounds or plan.rounds, seconds=seconds or plan.seconds)
    report = _measured(url, lambda dsn: run_consume(dsn, plan, quick, before, _say))
    _show(consume_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("a minute")
@_output_options("latency")
def latency(url: str | None, quick: bool, check: bool, as_json: bool, folder: Path | None) -> None:
    """Measure the time from a push to a handler in another process, beside a bare LISTEN and NOTIFY.

    With a Valkey (the embedded one, or that of PENSTOCK_VALKEY_URL) also with notifications through it.
    Takes about six minutes. Works in a database of its own, which it creates and drops.
    """
    from penstock.bench.latency import report as latency_report

    plan = latency_report.QUICK if quick else latency_report.FULL
    report = _measured(url, lambda dsn: latency_report.run(dsn, plan, _say, _valkey_beside(url)))
    _show(latency_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("some seconds")
@click.option("--rounds", type=click.IntRange(1), help="Give each contender so many turns.")
@click.option(
    "--soak",
    type=click.FloatRange(8),
    metavar="SECONDS",
    help="Load the gateway for so long instead, and see that its memory does not grow.",
)
@_output_options("gateway")
def gateway(
    url: str | None,
    quick: bool,
    rounds: int | None,
    soak: float | None,
    check: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Measure requests to the gateway beside a constant answer of the same server, and what idle polls cost.

    Takes about three minutes. Works in a database of its own, which it creates and drops. 5000 polls need as many open
    files: `ulimit -n 20000`.
    """
    from penstock.bench.gateway import report as gateway_report
    from penstock.bench.gateway import soak as gateway_soak

    if soak is not None:
        soaked = _measured(url, lambda dsn: gateway_soak.run(dsn, soak, _say))
        _show(gateway_soak, soaked, check, as_json, folder)
        return
    plan = gateway_report.QUICK if quick else gateway_report.FULL
    plan = plan._replace(rounds=rounds or plan.rounds)
    report = _measured(url, lambda dsn: gateway_report.run(dsn, plan, _say))
    _show(gateway_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("some seconds")
@click.option("--rounds", type=click.IntRange(1), help="Give each contender so many turns.")
@_output_options("workers")
def workers(url: str | None, quick: bool, rounds: int | None, check: bool, as_json: bool, folder: Path | None) -> None:
    """Measure workers beside Procrastinate and PgQueuer.

    Takes about five minutes, and both packages: `pip install procrastinate pgqueuer asyncpg`. Works in databases of its
    own, which it creates and drops.
    """
    for package in ("procrastinate", "pgqueuer", "asyncpg"):
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(f"there is no {package}; pip install procrastinate pgqueuer asyncpg")
    from penstock.bench.jobs import report as jobs_report

    plan = jobs_report.QUICK if quick else jobs_report.FULL
    plan = plan._replace(rounds=rounds or plan.rounds)
    report = _measured(url, lambda dsn: jobs_report.run(dsn, plan, _say))
    _show(jobs_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("a minute")
@click.option(
    "--jdbc", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="Use this JDBC driver of PostgreSQL."
)
@click.option("--no-jdbc", is_flag=True, help="Leave JDBC out if its driver cannot be fetched.")
@_output_options("spark")
def spark(
    url: str | None,
    quick: bool,
    jdbc: Path | None,
    no_jdbc: bool,
    check: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Compare reading and writing with Spark with JDBC.

    Takes some minutes, and the extra `spark`. Works in a database of its own, which it creates and drops. Without
    --jdbc, Spark fetches the driver from Maven Central.
    """
    if no_jdbc and (jdbc or check):
        raise click.UsageError("--no-jdbc goes with neither --jdbc nor --check, which judges JDBC too")
    from penstock.bench.spark import report as spark_report

    plan = spark_report.QUICK if quick else spark_report.FULL
    report = _measured(url, lambda dsn: spark_report.run(dsn, plan, jdbc or not no_jdbc, _say))
    _show(spark_report, report, check, as_json, folder)


@bench.command()
@_SERVER
@_quick("some seconds")
@_output_options("warm")
def warm(url: str | None, quick: bool, check: bool, as_json: bool, folder: Path | None) -> None:
    """Measure the windows in Valkey beside PostgreSQL alone and beside bare lists of Valkey.

    Takes about three minutes, and the extras `warm` and `embedded`. Works in a database and a Valkey of its own, which
    it makes and removes.
    """
    from penstock.bench.warm import report as warm_report

    plan = warm_report.QUICK if quick else warm_report.FULL
    report = _measured(url, lambda dsn: warm_report.run(dsn, plan, _say))
    _show(warm_report, report, check, as_json, folder)


def _measured(url: str | None, measure: Callable[[str], R]) -> R:
    """Measure on a server, given its DSN; an error of penstock ends the command."""
    try:
        with Client(url) as client:
            return measure(client.dsn)
    except PenstockError as error:
        raise click.ClickException(str(error)) from error


def _valkey_beside(url: str | None) -> str | None:
    """Return the address of the Valkey in use, starting an embedded one; None where there is none."""
    settings = resolve({"url": url})
    found = valkey.find(settings)
    if found is None or not found.is_embedded:
        return settings.valkey_url if found else None
    # The client that measures holds the home up.
    with embedded.attach(settings.home) as instance:
        return instance.ensure_valkey()


def _show(module: ModuleType, report: object, check: bool, as_json: bool, folder: Path | None) -> None:
    """Print a report, by the module that made it, and save it; exit with 1 if it is checked and misses a ratio."""
    click.echo(msgspec.json.encode(report) if as_json else "\n".join(module.lines(report)))
    if folder is not None:
        module.save(report, folder)
    if check and not all(verdict.kept for verdict in module.verdicts(report)):
        sys.exit(1)


def _say(step: str) -> None:
    click.echo(step, err=True)


@contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[int, str], None]]:
    """Say on stderr how far a run is: one line that changes on a terminal, a line per step in a log."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda step, title: status.update(f"{step}/{plan.steps} {title}")
        return
    said: set[int] = set()

    def say(step: int, title: str) -> None:
        if step not in said:
            said.add(step)
            click.echo(f"{step}/{plan.steps} {title}", err=True)

    yield say
