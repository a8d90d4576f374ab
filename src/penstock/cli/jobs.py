"""Jobs that run once on Spark: archive a queue, and replay a range of one into another."""

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
from penstock.cli.options import Command, Given, json_option, moment

if TYPE_CHECKING:
    from penstock.settings import Settings

_ARCHIVES = ("queue", "recorded_at", "partitions", "messages", "files", "bytes", "first_time", "last_time", "location")


def _on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which Spark it runs on."""
    for option in (
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Setting of Spark; may be repeated."),
        click.option("--remote", metavar="URL", help="A Spark Connect server, sc://host:15002."),
        click.option("--master", metavar="MASTER", help="Spark's master, such as spark://host:7077; default: local."),
    ):
        command = option(command)
    return command


@click.command(
    cls=Command,
    examples=(
        "penstock archive orders --to /var/archive",
        "penstock archive orders --to s3a://bucket/penstock --before 7d --drop",
        "penstock archive orders --to hdfs://head/penstock --before 2026-01-31T00:00:00Z --json",
    ),
)
@click.argument("queue")
@click.option("--to", "location", required=True, metavar="DIR", help="Where: a folder, or file:, s3a:, hdfs:.")
@click.option("--before", callback=moment, metavar="TIME", help="Only what is older: a time, or 10m, 2h, 3d ago.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--drop", is_flag=True, help="Drop what is archived from the log at once, whatever its age.")
@_on_spark
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
    """Copy a queue's messages to Parquet, verified row for row.

    Files lie in DIR/queue=NAME/date=YYYY-MM-DD/. They count when they were read back, compared with the log, and
    recorded: until then nothing has changed, and after that Spark reads archive and log as one. It goes on where
    the last archive of the queue ended. From then on retention drops nothing that is not archived. Ctrl-C or a crash
    leave files that nobody reads; the next run removes them.
    """
    from penstock.pipeline.archiving import archive as run

    settings = _settings(given)
    with _session(settings, master, remote, conf) as session, _progress("messages") as tell:
        result = run(
            queue,
            location,
            before=before,
            partitions=partitions or None,
            drop=drop,
            url=settings.url,
            spark=session,
            progress=tell,
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
    """List what was archived of a queue, or of all.

    Prints for each run the queue, when it was recorded, how many partitions, messages and files it has, how many bytes
    these are, the times of its first and last message, and where it lies.
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
@click.option("--from", "start", metavar="OFFSET|TIME", help="Where to begin; default: the earliest, archived or not.")
@click.option("--to", "stop", metavar="OFFSET|TIME", help="Where to stop, not included; default: what is there now.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--id", "name", metavar="NAME", help="Do it once: a repetition with the same id does nothing.")
@click.option("--dry-run", is_flag=True, help="Only say how many messages there are.")
@_on_spark
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
    """Replay a range of a queue, its archive included, into another queue.

    All of it is published in one transaction, or nothing. Messages keep partition, key, headers and order; offsets,
    times and ids are new. An offset bounds every partition. Into the queue itself only with --to.
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
    # What is wrong is told, and what was done before is known, before Spark starts.
    result = replay(dry_run=True)
    if not dry_run and not result.repeated and result.messages:
        with _session(settings, master, remote, conf) as session, _progress("messages") as tell:
            tell(0, result.messages)
            result = replay(spark=session)
    if as_json:
        output.show([result._asdict()], (), True)
    elif result.repeated:
        click.echo(f"{name} was done before: {output.counted(result.messages, 'message')}; nothing was changed")
    else:
        what = f"{output.counted(result.messages, 'message')} of {output.counted(result.partitions, 'partition')}"
        click.echo(f"{'would replay' if dry_run else 'replayed'} {what} of {source} into {target}")


def _bound(context: click.Context, text: str | None) -> int | datetime | None:
    if text is not None and text.isdecimal():
        return int(text)
    option = next(one for one in context.command.params if one.name == "start")
    return moment(context, option, text)


def _settings(given: Given) -> "Settings":
    settings = given.settings()
    if settings.url is None:
        # Spark's processes find the embedded server where we do.
        os.environ["PENSTOCK_HOME"] = str(settings.home)
    return settings


@contextmanager
def _session(settings: "Settings", master: str | None, remote: str | None, conf: tuple[str, ...]) -> Iterator[Any]:
    from penstock.pipeline import sessions

    if master and remote:
        raise click.UsageError("give --master or --remote, not both")
    # Spark's bridge logs Ctrl-C with a traceback, and we say it in a word.
    logging.getLogger().addFilter(lambda record: not (record.exc_info and record.exc_info[0] is KeyboardInterrupt))
    with sessions.opened(settings, master, remote, dict(one.partition("=")[::2] for one in conf)) as session:
        # Spark has taken Ctrl-C for itself, and talks to its other half from within the signal. It is stopped anyway.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        yield session


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None] | Any]:
    """Show on a terminal how far it is, as it is told: so many, of so many."""
    if not output.is_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
