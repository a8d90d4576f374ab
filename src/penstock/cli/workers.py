"""Workers: run the actions of an app, list actions and running tasks, cancel messages."""

import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

import click

from penstock.cli import output
from penstock.cli.connection import Given
from penstock.cli.interrupts import StopSignals
from penstock.cli.options import Command, duration, json_option, spark_conf
from penstock.errors import NotFound

_ACTION_COLUMNS = ("flow", "flow_type", "action", "queue", "output", "warm", "cold", "action_class", "plugin")
_TASK_COLUMNS = (
    *("flow", "flow_type", "action", "did", "started_at", "running_for", "progress", "text", "attempt"),
    *("worker", "heartbeat_at"),
)
_TASKS = 2


@click.command(
    cls=Command,
    examples=(
        "penstock worker app.py",
        "penstock worker shop.actions --queues orders,payments --concurrency 20",
        "penstock worker app.py --actions resize --processes 4",
        "penstock worker app.py --drain",
        "penstock worker app.py --reload",
        "penstock worker app.py --engine spark --master spark://host:7077 --tasks 8",
    ),
)
@click.argument("app", metavar="APP")
@click.option("--queues", metavar="NAMES", help="Run only actions of these queues, separated by commas.")
@click.option("--actions", metavar="NAMES", help="Run only these actions, as NAME or FLOW.NAME, separated by commas.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Handle so many items of each action at a time, unless the action says otherwise.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help='Use so many child processes for each action with run_in="process", unless the action says otherwise.',
)
@click.option(
    "--grace",
    default="30",
    show_default=True,
    metavar="SECONDS",
    callback=duration,
    help="When stopped, give handlers so long to finish before their items are given back.",
)
@click.option("--drain", is_flag=True, help="Exit when nothing is left to do, delayed items and retries included.")
@click.option("--reload", "reloads", is_flag=True, help="Start again when a Python file of the app changes.")
@click.option(
    "--engine",
    type=click.Choice(["process", "spark"]),
    default="process",
    show_default=True,
    help="Work in this process, or in the executors of a Spark application of its own.",
)
@click.option("--tasks", type=click.IntRange(min=1), metavar="N", help="Run so many workers on Spark (default 2).")
@click.option(
    "--master", metavar="MASTER", help="Set Spark's master, such as spark://host:7077; default: local[TASKS]."
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Set a Spark option; may be repeated.")
@click.option(
    "--py-files", metavar="FILES", help="Send these .py, .zip or .egg files, separated by commas, to the executors."
)
@click.option(
    "--shift",
    metavar="SECONDS",
    callback=duration,
    help="Let Spark place each worker anew after so long (default 15m).",
)
@click.pass_obj
def worker(
    given: Given,
    /,
    app: str,
    queues: str | None,
    actions: str | None,
    concurrency: int,
    processes: int,
    grace: float,
    drain: bool,
    reloads: bool,
    engine: str,
    **spark: Any,
) -> None:
    """Run the actions of APP, a Python file or a module, until stopped.

    Takes items in batches, calls the handlers, pushes what they return together with the acknowledgement, and renews
    leases while handlers run. Ctrl-C or SIGTERM stops it: items that are not begun are given back at once, handlers
    under way get --grace to finish, and then theirs are given back, too. That counts no attempt. A second signal gives
    all back at once. What it has to say goes to stderr.

    With --engine spark, the same workers run inside Spark executors, each as a task that lasts, on a local Spark or on
    --master. What handlers print is in the logs of the executors. A worker that is lost with its executor is started
    anew, and its items come again. penstock must be installed on every node; the file of the app is sent there.
    """
    from penstock.workers import reloading

    if engine == "process" and any(spark.values()):
        raise click.UsageError("--tasks, --master, --conf, --py-files and --shift need --engine spark")

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    if reloads:
        folder = Path(app).resolve().parent if app.endswith(".py") else Path.cwd()
        command = [argument for argument in sys.argv if argument != "--reload"]
        sys.exit(reloading.run_and_reload([sys.executable, "-m", "penstock.cli", *command[1:]], folder, output.remark))
    if engine == "spark":
        _run_on_spark(given, app, _names(queues), _names(actions), concurrency, processes, grace, drain, **spark)
        return
    from penstock.workers.ending import run_to_end

    reloading.end_with_reloader()
    handled = run_to_end(_run(given, app, _names(queues), _names(actions), concurrency, processes, grace, drain))
    output.remark(f"handled {output.counted(handled, 'item')}")


async def _run(
    given: Given,
    app: str,
    queues: list[str],
    actions: list[str],
    concurrency: int,
    processes: int,
    grace: float,
    drain: bool,
) -> int:
    from penstock.client.async_client import AsyncClient
    from penstock.warm.serving import dispatching
    from penstock.workers.loading import load
    from penstock.workers.running import Worker

    chosen = load(app).only(queues, actions)
    client = AsyncClient(given.url, home=given.home, valkey_url=given.valkey_url, timeout=given.timeout)
    with dispatching(given.settings()):
        async with client:
            running = Worker(
                chosen,
                client,
                concurrency=concurrency,
                processes=processes,
                grace=grace,
                drain=drain,
                echo=output.remark,
            )
            return await running.run()


def _run_on_spark(
    given: Given,
    app: str,
    queues: list[str],
    actions: list[str],
    concurrency: int,
    processes: int,
    grace: float,
    drain: bool,
    *,
    tasks: int | None,
    master: str | None,
    conf: tuple[str, ...],
    py_files: str | None,
    shift: float | None,
) -> None:
    from penstock.errors import MissingExtra
    from penstock.workers.loading import load

    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtra("spark", "Workers on Spark")
    with StopSignals(times=2) as signals:
        settings = given.settings()
        said = spark_conf(master, None, conf)
        chosen = load(app).only(queues, actions)

        from penstock.pipeline import sessions
        from penstock.spark_workers.running import SHIFT, SparkWorkers, spark_settings

        count = tasks or _TASKS
        signals.stop_with(lambda: output.remark("stopping as soon as Spark has started"))
        with sessions.opened(
            settings, master or f"local[{count}]", None, spark_settings(chosen, count) | said
        ) as session:
            workers = SparkWorkers(
                chosen,
                session,
                settings,
                tasks=count,
                py_files=_names(py_files),
                concurrency=concurrency,
                processes=processes,
                grace=grace,
                drain=drain,
                shift=SHIFT if shift is None else shift,
                echo=output.remark,
            )
            signals.stop_with(workers.stop)
            signals.begin()
            if signals.count:
                workers.stop()
            handled = workers.run()
        output.remark(f"handled {output.counted(handled, 'item')}")


def _names(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]


@click.command(cls=Command, examples=("penstock actions", "penstock actions shop --json"))
@click.argument("flow", required=False)
@json_option
@click.pass_obj
def actions(given: Given, flow: str | None, as_json: bool) -> None:
    """List the actions of a flow, or of all flows.

    Both those that workers run and those of Spark flows. Prints flow, type, action, the queues that it takes items from
    and pushes to, how many messages are left (warm: held by a worker or admitted to an epoch; cold: the others), action
    class, and the plugin (distribution:version) that provides the class. The actions of a Spark flow have no queue of
    their own.
    """
    import msgspec

    with given.client() as client:
        output.show(map(msgspec.structs.asdict, client.actions(flow)), _ACTION_COLUMNS, as_json)


@click.command(
    cls=Command,
    examples=(
        "penstock cancel 01a1e9bc-1d59-8000-8000-040000000000",
        "penstock cancel 01a1e9bc-1d59-8000-8000-040000000000 --group shop.payment --json",
    ),
)
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.option("--group", help="Cancel for this group only; default: for all groups of the queue.")
@json_option
@click.pass_obj
def cancel(given: Given, ids: tuple[str, ...], group: str | None, as_json: bool) -> None:
    """Cancel messages that wait or run, by their ids.

    A message that waits is never delivered. A handler that runs is told: an asynchronous one is cancelled, others see
    it in item.cancelled. Prints which were cancelled, and exits with 3 if one was done or cancelled already. Scheduled
    messages are cancelled with `penstock scheduled --cancel`.
    """
    from penstock.broker.ids import parse_id

    wanted = [parse_id(each) for each in ids]
    with given.client() as client:
        cancelled = client.cancel(*wanted, group=group)
    output.show([{"id": str(each), "cancelled": each in cancelled} for each in wanted], ("id", "cancelled"), as_json)
    missed = [str(each) for each in wanted if each not in cancelled]
    if missed:
        raise NotFound(f"too late for {', '.join(missed)}: done, or cancelled before")


@click.command(cls=Command, examples=("penstock tasks", "penstock tasks shop --json"))
@click.argument("flow", required=False)
@json_option
@click.pass_obj
def tasks(given: Given, flow: str | None, as_json: bool) -> None:
    """List running tasks: the items whose handlers run, of a flow or of all.

    Prints flow, type (UNKNOWN if the action is not registered), action, the id of the message that entered the flow,
    when it started, for how many seconds it has been running, its progress, attempt, worker, and when the worker
    reported it. Workers report every 5 seconds; one that has not for 30 seconds is not listed.
    """
    import msgspec

    with given.client() as client:
        output.show(map(msgspec.structs.asdict, client.tasks(flow)), _TASK_COLUMNS, as_json)
