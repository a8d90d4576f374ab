"""Status and metrics: what is stuck, why, since when and what to do; series of a queue; checks and their settings."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, epilog, json_option, moment, named, settings_from

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.broker.metrics import WorkInfo
    from penstock.operations.status import Problem, Status

_WRONG = 1
_PROBLEMS = ("check", "subject", "since", "found", "advice")
_METRICS = ("timestamp", "metric_name", "metric_value", "labels")
_CHECKS = ("name", "enabled", "threshold", "duration", "meaning", "advice")
# How many groups the screen shows; --json has all of them.
_MOST = 15


@click.command(
    cls=Command,
    examples=("penstock status", "penstock status --watch", "penstock status --json"),
)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long between two looks with --watch.",
)
@json_option
@click.pass_context
def status(context: click.Context, watch: bool, every: float, as_json: bool) -> None:
    """Show what is stuck, why, since when, and what to do.

    Prints a line per problem: the check, what it is about, since when, what was found, and what to do. On a terminal it
    also shows the groups with the largest lag, and the consumers. Exits with 1 if there is a problem. It costs a row
    per group, consumer and queue, however many messages there are. `penstock checks` lists the checks and their
    settings.
    """
    from penstock.operations import status as operations

    with context.ensure_object(Given).client() as client:
        if watch:
            _watch(client, every, as_json)
            return
        found = operations.status(client)
        _print(found, as_json)
    if not found.healthy:
        context.exit(_WRONG)


@click.command(
    cls=Command,
    examples=(
        "penstock metrics orders",
        "penstock metrics orders --metric lag --since 1h",
        "penstock metrics orders --resolution hour --json",
    ),
)
@click.argument("queue")
@click.option("--metric", help="Select this series only, such as lag.")
@click.option("--since", callback=moment, metavar="TIME", help="Begin at a time: ISO 8601, or 10m, 2h, 3d ago.")
@click.option(
    "--resolution",
    type=click.Choice(["minute", "hour", "day"]),
    help="Print rollups of this size instead, which `penstock rollup` makes.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Limit the number of values.",
)
@json_option
@click.pass_obj
def metrics(
    given: Given,
    queue: str,
    metric: str | None,
    since: datetime | None,
    resolution: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Print the newest values of a queue's series.

    Prints time, metric, value and labels (the group). Counts (pushed, delivered, acked, failed, dead_lettered, batches,
    checks) are those since the value before; lag, depth, claimed and oldest_age (seconds) are samples; wait_… (push to
    delivery) and handling_… are microseconds. With --resolution: bucket, metric, labels, number of values, their sum,
    the smallest, the largest and the newest one.
    """
    import msgspec

    with given.client() as client:
        if resolution is not None:
            rows = client.rollups(queue, metric, resolution=resolution, limit=limit)
            columns = ("bucket", "metric_name", "labels", "samples", "total", "smallest", "largest", "newest")
            output.show(map(msgspec.structs.asdict, rows), columns, as_json)
        else:
            values = client.metrics(queue, metric, since=since, limit=limit)
            output.show(map(msgspec.structs.asdict, values), _METRICS, as_json)


@click.group(
    invoke_without_command=True,
    epilog=epilog(
        ("penstock checks", "penstock checks --json", "penstock checks configure oldest_too_old --set threshold=600")
    ),
)
@json_option
@click.pass_context
def checks(context: click.Context, as_json: bool) -> None:
    """List the checks of `penstock status` and their settings.

    Prints name, whether it is on, threshold, duration in seconds, what the threshold means, and the advice.
    """
    import msgspec

    if context.invoked_subcommand is not None:
        return
    with context.ensure_object(Given).client() as client:
        output.show(map(msgspec.structs.asdict, client.checks()), _CHECKS, as_json)


@checks.command(
    cls=Command,
    examples=(
        "penstock checks configure oldest_too_old --set threshold=600",
        "penstock checks configure orphan_queue --set enabled=false",
        "penstock checks configure cold_high --reset threshold",
    ),
)
@click.argument("name")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named,
    help="Set enabled, threshold, duration or advice; may be repeated.",
)
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="Reset one to its default; may be repeated.")
@click.pass_obj
def configure(given: Given, name: str, settings: dict[str, str], resets: tuple[str, ...]) -> None:
    """Change the settings of a check."""
    changes = settings_from(settings, resets, ("name",))
    if not changes:
        raise click.UsageError("nothing to change: give --set or --reset")
    with given.client() as client:
        client.configure_check(name, **changes)
    click.echo(f"configured check {name}")


def _watch(client: Any, every: float, as_json: bool) -> None:
    from penstock.operations import status as operations

    if not output.is_terminal() or as_json:
        while True:
            _print(operations.status(client), as_json)
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live

    with Live(_screen(operations.status(client)), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_screen(operations.status(client)), refresh=True)


def _print(found: "Status", as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(output.json_line(_record(found)))
    elif output.is_terminal():
        from rich.console import Console

        Console().print(_screen(found))
    else:
        output.show(map(_row, found.problems), _PROBLEMS, False)


def _record(found: "Status") -> dict[str, Any]:
    import msgspec

    facts = msgspec.to_builtins(found.facts, builtin_types=(datetime,))
    return {
        "healthy": found.healthy,
        "time": facts.pop("now"),
        "problems": [{**_row(problem), "queue": problem.queue, "group": problem.group} for problem in found.problems],
        **facts,
    }


def _row(problem: "Problem") -> dict[str, Any]:
    return {name: getattr(problem, name) for name in _PROBLEMS}


def _screen(found: "Status") -> "RenderableType":
    """Lay out one screen: problems first, then groups by lag, then consumers."""
    from rich.console import Group
    from rich.text import Text

    facts = found.facts
    parts: list[RenderableType] = [_headline(found), Text()]
    for problem in found.problems:
        subject, since = output.printable(problem.subject), _since(problem)
        parts.append(Text.assemble(("● ", "bold red"), (subject, "bold"), (f"  {since}", "dim")))
        parts.append(_indented(Text(output.printable(problem.found))))
        parts.append(_indented(Text(f"→ {output.printable(problem.advice)}", style="cyan")))
        parts.append(Text())
    busy = sorted((work for work in facts.work if work.lag), key=lambda work: -work.lag)
    if busy:
        parts.append(_groups(busy))
    if facts.consumers:
        parts.append(_consumers(found))
    return Group(*parts)


def _indented(text: "RenderableType") -> "RenderableType":
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, 4))


def _headline(found: "Status") -> "RenderableType":
    from rich.text import Text

    facts = found.facts
    lag = sum(work.lag for work in facts.work)
    alive = sum(consumer.status != "gone" for consumer in facts.consumers)
    word = (
        ("all is well", "bold green") if found.healthy else (output.counted(len(found.problems), "problem"), "bold red")
    )
    rest = f"  ·  {lag:,} waiting  ·  {output.counted(alive, 'consumer')}  ·  {facts.now.astimezone():%H:%M:%S}"
    return Text.assemble(word, (rest, "dim"))


def _groups(busy: "list[WorkInfo]") -> "RenderableType":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    for column in ("queue", "group"):
        table.add_column(column, overflow="fold")
    for column in ("lag", "cold", "claimed", "retrying", "oldest"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("recent lag", no_wrap=True)
    for work in busy[:_MOST]:
        table.add_row(
            Text(output.printable(work.queue)),
            Text(output.printable(work.group)),
            *(f"{number:,}" for number in (work.lag, work.cold, work.claimed, work.waiting)),
            "-" if work.oldest_age is None else _short(work.oldest_age),
            _sparkline([*work.lags, work.lag]),
        )
    if len(busy) > _MOST:
        table.caption = f"and {len(busy) - _MOST} more; --json has all"
    return table


def _consumers(found: "Status") -> "RenderableType":
    from rich.text import Text

    counts: dict[str, int] = {}
    for consumer in found.facts.consumers:
        counts[consumer.status] = counts.get(consumer.status, 0) + 1
    colours = {"healthy": "green", "degraded": "yellow", "open": "red", "half_open": "yellow", "gone": "dim"}
    text = Text("consumers: ")
    for state, colour in colours.items():
        if state in counts:
            text.append(f"{counts[state]} {state}  ", style=colour)
    return text


def _sparkline(values: list[int]) -> str:
    """Draw the last values in one line."""
    bars = "▁▂▃▄▅▆▇█"
    recent = values[-20:]
    low, high = min(recent), max(recent)
    return "".join(bars[round((value - low) / (high - low) * 7)] if high > low else bars[0] for value in recent)


def _since(problem: "Problem") -> str:
    return "" if problem.since is None else f"since {problem.since.astimezone():%Y-%m-%d %H:%M:%S}"


def _short(seconds: float) -> str:
    size, unit = next(
        (size, unit) for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (0, "s")) if seconds >= size
    )
    return f"{seconds / size if size else seconds:.0f}{unit}"
