"""A task of Spark that is a worker, for one shift.

No signal of the driver's reaches an executor, and to cancel a job kills its Python at once. So the worker asks the
database whether its run was stopped. A Python process that is told to end, since its executor is lost, gives back what
it has.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.broker.arguments import storable
from penstock.broker.operations.workers import GetRunStop
from penstock.client.async_client import AsyncClient
from penstock.errors import PenstockError, Retryable, Unavailable
from penstock.spark.signing import public_name
from penstock.workers.ending import run_to_end
from penstock.workers.loading import load
from penstock.workers.running import Worker
from penstock.workers.source import Source

log = logging.getLogger("penstock.worker")

# How a shift ends: its time is over; nothing is left to do; it was stopped; or there was an error, because of what the
# app is or what it may do, because the database was away, or any other.
End = Literal["over", "drained", "stopped", "refused", "unavailable", "failed"]

_ASKED_EVERY = 1.0


@dataclass(frozen=True)
class Plan:
    """What the driver tells every task.

    `run` is the name under which the run can be stopped, `application` Spark's id of it. The `file` of the app is that
    of the driver; if it `is_shipped`, it comes with Spark's files. `client` are the arguments of a client.
    """

    run: str
    application: str
    app: str
    file: str | None
    is_shipped: bool
    actions: tuple[str, ...]
    # An address has a password in it.
    client: dict[str, Any] = field(repr=False)
    concurrency: int
    processes: int
    grace: float
    drain: bool
    shift: float


class Shift(NamedTuple):
    """How a shift ended, how many items it has handled, and the class and the text of the error if there was one."""

    end: End
    handled: int = 0
    kind: str | None = None
    error: str | None = None


def work(plan: Plan) -> Shift:
    """Work for one shift."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    shift = _Shift(plan)
    try:
        end = run_to_end(shift.run())
    except (Unavailable, Retryable) as error:
        return Shift("unavailable", shift.handled, public_name(error), storable(str(error)))
    except PenstockError as error:
        return Shift("refused", shift.handled, public_name(error), storable(str(error)))
    except Exception as error:
        log.exception("the worker failed")
        return Shift("failed", shift.handled, None, storable(f"{type(error).__name__}: {error}"))
    return Shift(end, shift.handled)


class _Shift:
    """One worker, from its start to the end of the shift."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._worker: Worker
        self._end: End = "drained"
        # How often the worker was told to stop.
        self._stops = 0
        self.handled = 0

    async def run(self) -> End:
        plan = self._plan
        async with AsyncClient(**plan.client) as client:
            source = Source(client)
            if await source.run(GetRunStop(plan.run)) is not None:
                return "stopped"
            app = load(plan.app, _file(plan)).only(actions=plan.actions)
            client.consumer_id = f"{plan.application}/{_executor(plan.application)}/{client.consumer_id}"
            self._worker = Worker(
                app,
                client,
                concurrency=plan.concurrency,
                processes=plan.processes,
                grace=plan.grace,
                drain=plan.drain,
            )
            watching = asyncio.create_task(self._watch(source))
            try:
                await self._worker.run(handle_signals=False)
            finally:
                watching.cancel()
                self.handled = self._worker.handled
        return self._end

    async def _watch(self, source: Source) -> None:
        """End the worker when its time is over, and stop it when it is told to."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, 1)
        # From PySpark, when the executor is gone: soon nobody is there to wait for.
        loop.add_signal_handler(signal.SIGHUP, self._stop, 2)
        ends_at = time.monotonic() + self._plan.shift
        while True:
            await asyncio.sleep(max(0.0, min(_ASKED_EVERY, ends_at - time.monotonic())) or _ASKED_EVERY)
            if time.monotonic() >= ends_at and self._stops == 0:
                self._end = "over"
                self._worker.finish()
            try:
                at_once = await source.run(GetRunStop(self._plan.run))
            except PenstockError as error:
                log.debug("nobody knows whether this run was stopped: %s", error)
                continue
            if at_once is not None:
                self._stop(2 if at_once else 1)

    def _stop(self, times: int) -> None:
        self._end = "stopped"
        while self._stops < times:
            self._stops += 1
            self._worker.stop()


def _file(plan: Plan) -> str | None:
    """Return where the file of the app is on this machine, if it is a file."""
    from pyspark import SparkFiles

    return plan.file if plan.file is None or not plan.is_shipped else SparkFiles.get(Path(plan.file).name)


def _executor(application: str) -> str:
    """Return the id of this executor, as Spark's page has it, where that can be known."""
    here = Path.cwd()
    if here.parent.name == application:
        # What a standalone cluster and local-cluster start works in a folder of its own.
        return here.name
    named = os.environ.get("SPARK_EXECUTOR_ID") or os.environ.get("CONTAINER_ID")
    return named or ("driver" if application.startswith("local-") else "executor")
