"""Batch jobs on Spark: archive a queue, backfill one queue from another, roll metrics up."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.options import Command, json_option, moment, spark_conf, spark_options

if TYPE_CHECKING:
    from penstock.settings import Settings

_ARCHIVES = ("queue", "recorded_at", "partitions", "messages", "files", "bytes", "first_time", "last_time", "location")


@click.command(
    cls=Command,
    examples=(
        "penstock archive orders --to /var/archive",
        "penstock archive orders --to s3a://bucket/penstock --before 7d --drop",
        "penstock archive orders --to hdfs://head/penstock --before 2026-01-31T00:00:00Z --json",
    ),
)
@click.argument("queue")
@click.option(
    "--to", "location", required=True, metavar="DIR", help="Write to this place: a folder, or file:, s3a:, hdfs:."
)
@click.option(
    "--before",
    callback=moment,
    metavar="TIME",
    help="Archive only messages before this time: ISO 8601, or 10m, 2h, 3d ago.",
)
@click.option(
    "--partition", "partitions", multiple=True, metavar="NAME", help="Select this partition only; may be repeated."
)
@click.option("--drop", is_flag=True, help="Drop archived messages from the log at once.")
@spark_options
@json_option
@click.pass_obj
def archive(
    given: Given,
    queue: str,
    location: str,
    before: datetime | None,
    partitions: tuple[str, ...],
    drop: bool,
    as_json: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Archive a queue to Parquet.

    Writes files to DIR/queue=NAME/date=YYYY-MM-DD/, reads them back, compares them with the log row by row, and records
    them in the database. Before that nothing has changed; afterwards Spark reads archive and log as one. Continues
    where the last archive of the queue ended. From then on retention drops only archived messages. Ctrl-C or a crash
    leaves files that are never read; the next run removes them.
    """
    from penstock.pipeline.archiving import archive as run

    settings = _settings(given)
    with _session(settings, master, remote, conf) as session, _progress("messages") as show:
        result = run(
            queue,
            location,
            before=before,
            partitions=partitions or None,
            drop=drop,
            url=settings.url,
            spark=session,
            progress=show,
        )
    if as_json:
        output.show([result._asdict()], (), True)
        return
    click.echo(
        f"archived {output.counted(result.messages, 'message')} of {output.counted(result.partitions, 'partition')} "
        f"of {queue} in {output.counted(result.files, 'file')} in {result.location}"
    )
    if drop:
        click.echo(f"dropped {output.counted(result.dropped, 'message')} from the log")


@click.command(cls=Command, examples=("penstock archives", "penstock archives orders --json"))
@click.argument("queue", required=False)
@json_option
@click.pass_obj
def archives(given: Given, queue: str | None, as_json: bool) -> None:
    """List the archives of a queue, or of all queues.

    Prints for each run the queue, when it was recorded, the number of partitions, messages, files and bytes, the times
    of the first and last message, and the location.
    """
    import msgspec

    with given.client() as client:
        output.show(map(msgspec.structs.asdict, client.archives(queue)), _ARCHIVES, as_json)


@click.command(
    cls=Command,
    examples=(
        "penstock backfill orders orders.again --dry-run",
        "penstock backfill orders orders.again --from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z --id january",
        "penstock backfill orders orders.again --partition ada --from 100 --to 200",
    ),
)
@click.argument("source")
@click.argument("target")
@click.option(
    "--from", "start", metavar="OFFSET|TIME", help="Start here; default: the earliest message, archived or not."
)
@click.option("--to", "stop", metavar="OFFSET|TIME", help="Stop before this; default: the current end.")
@click.option(
    "--partition", "partitions", multiple=True, metavar="NAME", help="Select this partition only; may be repeated."
)
@click.option("--id", "name", metavar="NAME", help="Name this backfill: repeating it with the same id does nothing.")
@click.option("--dry-run", is_flag=True, help="Count the messages, and push nothing.")
@spark_options
@json_option
@click.pass_context
def backfill(
    context: click.Context,
    source: str,
    target: str,
    start: str | None,
    stop: str | None,
    partitions: tuple[str, ...],
    name: str | None,
    dry_run: bool,
    as_json: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Replay a range of a queue and its archive into another queue.

    Everything is published in one transaction. Messages keep their partition, key, headers and order, and get new
    offsets, times and ids. An offset applies to every partition. TARGET may be SOURCE only with --to.
    """
    from penstock.pipeline.backfilling import backfill as run

    settings = _settings(context.ensure_object(Given))
    replay = partial(
        run,
        source,
        target,
        start=_bound(context, start),
        stop=_bound(context, stop),
        partitions=partitions or None,
        name=name,
        url=settings.url,
    )
    # Errors and earlier runs must show before Spark starts.
    result = replay(dry_run=True)
    if not dry_run and not result.repeated and result.messages:
        with _session(settings, master, remote, conf) as session, _progress("messages") as show:
            show(0, result.messages)
            result = replay(spark=session)
    if as_json:
        output.show([result._asdict()], (), True)
    elif result.repeated:
        click.echo(
            f"backfill {name} was already done ({output.counted(result.messages, 'message')}); nothing was changed"
        )
    else:
        what = f"{output.counted(result.messages, 'message')} of {output.counted(result.partitions, 'partition')}"
        click.echo(f"{'would replay' if dry_run else 'replayed'} {what} of {source} into {target}")


@click.command(
    cls=Command,
    examples=("penstock rollup", "penstock rollup --since 7d", "penstock rollup --master spark://host:7077 --json"),
)
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    help="Begin with the day of a time: ISO 8601, or 10m, 2h, 3d ago; default: yesterday.",
)
@spark_options
@json_option
@click.pass_obj
def rollup(
    given: Given,
    since: datetime | None,
    as_json: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Roll the metrics of all queues up to minutes, hours and days.

    Runs as a Spark job and may be repeated: run it once a day. `penstock metrics QUEUE --resolution hour` prints what
    it made, also after metrics_retention has dropped the values themselves.
    """
    from penstock.pipeline.rolling_up import rollup as run

    settings = _settings(given)
    with _session(settings, master, remote, conf) as session:
        result = run(since=since, url=settings.url, spark=session)
    if as_json:
        output.show([result._asdict()], (), True)
    else:
        click.echo(
            f"stored {output.counted(result.stored, 'rollup')} of {output.counted(result.queues, 'queue')}"
            f" from {result.since:%Y-%m-%d} on"
        )


def _bound(context: click.Context, text: str | None) -> int | datetime | None:
    if text is not None and text.isdecimal():
        return int(text)
    option = next(one for one in context.command.params if one.name == "start")
    return moment(context, option, text)


def _settings(given: Given) -> "Settings":
    settings = given.settings()
    if settings.url is None:
        # Spark's processes must find the same embedded server.
        os.environ["PENSTOCK_HOME"] = str(settings.home)
    return settings


@contextmanager
def _session(settings: "Settings", master: str | None, remote: str | None, conf: tuple[str, ...]) -> Iterator[Any]:
    from penstock.pipeline import sessions

    options = spark_conf(master, remote, conf)
    # Py4J logs Ctrl-C with a traceback; one line from us is enough.
    logging.getLogger().addFilter(lambda record: not (record.exc_info and record.exc_info[0] is KeyboardInterrupt))
    with sessions.opened(settings, master, remote, options) as session:
        # Spark's own handler would call the JVM from within the signal handler. The session is stopped anyway.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        yield session


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None] | Any]:
    """Show a progress bar on a terminal; the body calls it with the count and the total."""
    if not output.is_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
