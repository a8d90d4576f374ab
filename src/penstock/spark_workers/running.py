"""The driver of workers on Spark: a job of one task per worker, each in a thread and a job group of its own.

A task ends when its shift is over and is submitted again, so that Spark can place it anew: new executors are used, and
others can go. A task that is lost is submitted again, too, and its items come again. They are not the tasks of one job,
which would end with the first that is lost.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.util import InheritableThread

from penstock import errors
from penstock.broker.operations.workers import StopRun
from penstock.client.client import Client
from penstock.errors import InvalidInput, PenstockError, SetupError
from penstock.pipeline.running import explain
from penstock.settings import Settings
from penstock.spark_workers.task import Plan, Shift, work
from penstock.workers.loading import App
from penstock.workers.running import CONCURRENCY, GRACE, PROCESSES

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.worker")

SHIFT = 900.0
_TICK = 0.1
_LOOKED_EVERY = 1.0
# How long it may take until all workers have a slot, before that is worth a word.
_SLOTS_EXPECTED = 20.0
# A worker that is lost so often in a row, so soon after its start, will not start the next time either.
_MOST_FAILURES = 5
_SOON = 10.0
_LONGEST_PAUSE = 30.0
# What workers have to end beyond the time of their handlers, before their jobs are cancelled.
_LAST_MOMENT = 20.0
# How long a job may wait for a slot once it was stopped. Spark may say of one that runs that it waits, until the next
# heartbeat of its executor, after 10 s.
_TO_BEGIN = 12.0
_PATIENCE = 3.0
_SCHEMA = "end string, handled long, kind string, error string"


def spark_settings(app: App, tasks: int) -> dict[str, str]:
    """Return what a Spark application needs that runs workers and nothing else."""
    return {
        "spark.app.name": f"penstock worker {app.name}",
        # No more than it needs: others of a standalone cluster want to run, too.
        "spark.cores.max": str(tasks),
        # Handlers that outlast their shift end with their process.
        "spark.python.worker.reuse": "false",
        # What is lost is started anew by us, who say so.
        "spark.task.maxFailures": "1",
        # Whether all workers run is known at once.
        "spark.ui.liveUpdate.period": "0ms",
    }


class SparkWorkers:
    """Runs the actions of an app in tasks of a Spark session, until `stop` is called.

    `tasks` is how many workers there are. A worker holds a slot of Spark for as long as it runs, so by default there
    is one less than the session has slots, but at least one: the last slot is for other jobs and queries.
    """

    def __init__(
        self,
        app: App,
        spark: "SparkSession",
        settings: Settings,
        *,
        tasks: int | None = None,
        py_files: Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        processes: int = PROCESSES,
        grace: float = GRACE,
        drain: bool = False,
        shift: float = SHIFT,
        echo: Callable[[str], object] = log.info,
    ) -> None:
        if shift <= 0:
            raise InvalidInput(f"a shift is {shift:g} s but must be longer than 0")
        if app.home is None:
            raise InvalidInput("executors load the app by its name: make it with penstock.workers.loading.load")
        self._spark = spark
        self._context = spark.sparkContext
        self._numbers = range(1, 1 + (tasks or max(1, self._context.defaultParallelism - 1)))
        self._py_files = py_files
        self._grace = grace
        self._echo = echo
        is_here = str(self._context.master).startswith("local")
        self._plan = Plan(
            run=uuid4().hex,
            application=str(self._context.applicationId),
            app=app.name,
            file=str(Path(app.home).resolve()) if app.home.endswith(".py") else None,
            is_shipped=not is_here,
            actions=tuple(action.group for action in app.actions),
            client=_given(settings),
            concurrency=concurrency,
            processes=processes,
            grace=grace,
            drain=drain,
            shift=shift,
        )
        self._handled = 0
        self._lock = threading.Lock()
        self._failure: PenstockError | None = None
        self._ending = threading.Event()
        # How often it was told to stop, and how much of that its workers can know.
        self._stops = 0
        self._sent = 0

    def stop(self) -> None:
        """End: the first time, when the handlers that run have ended or their time is up; the second time, at once."""
        self._stops += 1
        self._ending.set()

    def run(self) -> int:
        """Work until it is stopped; returns how many items were handled. Raises what makes going on impossible."""
        with Client(**self._plan.client) as client:
            # If there is no database, no task needs to find out.
            client.queues()
            self._ship()
            threads = [
                InheritableThread(self._keep_working, args=(number,), name=f"penstock-worker-{number}", daemon=True)
                for number in self._numbers
            ]
            for thread in threads:
                thread.start()
            self._echo(f"working as {self._plan.application} in {len(threads)} tasks; Ctrl-C or SIGTERM stops it")
            try:
                self._await_stop(threads)
                self._await_end(client, threads)
            except BaseException:
                self._cancel(self._numbers)
                raise
        if self._failure is not None:
            raise self._failure
        return self._handled

    def _ship(self) -> None:
        """Let executors have the file of the app, and what it imports."""
        if self._plan.file is not None and self._plan.is_shipped:
            self._context.addFile(self._plan.file)
        for file in self._py_files:
            self._context.addPyFile(file)

    def _await_stop(self, threads: Sequence[threading.Thread]) -> None:
        """Wait until it is told to stop, or nothing runs any more. Meanwhile say whether all workers have a slot."""
        looked_at = began_at = time.monotonic()
        says_running = says_waiting = True
        while not self._ending.wait(_TICK) and any(thread.is_alive() for thread in threads):
            now = time.monotonic()
            if not says_running or now - looked_at < _LOOKED_EVERY:
                continue
            looked_at, running = now, sum(map(self._is_running, self._numbers))
            if running == len(threads):
                says_running = False
                self._echo(f"all {running} workers run" if running > 1 else "the worker runs")
            elif says_waiting and now - began_at > _SLOTS_EXPECTED:
                says_waiting = False
                self._echo(f"{running} of {len(threads)} workers run, and the others wait for a slot of Spark")

    def _await_end(self, client: Client, threads: Sequence[threading.Thread]) -> None:
        """Tell workers to stop and wait for them; cancel what does not begin, and what does not end in time."""
        began_at = time.monotonic()
        ends_at = began_at + self._grace + _LAST_MOMENT
        waits_for_slots = True
        while any(thread.is_alive() for thread in threads) and (now := time.monotonic()) < ends_at:
            if self._sent < min(self._stops, 2):
                self._send_stop(client)
                if self._stops > 1:
                    ends_at = min(ends_at, now + _LAST_MOMENT)
            if waits_for_slots and self._sent and now - began_at > _TO_BEGIN:
                # A worker that begins from now on ends before it takes anything.
                waits_for_slots = False
                self._cancel([number for number in self._numbers if not self._is_running(number)])
            next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(_TICK)
        if any(thread.is_alive() for thread in threads):
            self._echo("some workers have not ended in time and are cancelled: their items come when their leases end")
            self._cancel(self._numbers)
            for thread in threads:
                thread.join(_LAST_MOMENT)

    def _send_stop(self, client: Client) -> None:
        """Let workers know that they are to stop."""
        stops = min(self._stops, 2)
        if self._sent == 0:
            self._echo(f"stopping: handlers have {self._grace:g} s to finish; a second signal gives their items back")
        try:
            client._transport.run(StopRun(self._plan.run, at_once=stops > 1), _PATIENCE, retry=False)
        except PenstockError as error:
            self._echo(f"workers cannot be told to stop, which is tried again: {error}")
            time.sleep(_LOOKED_EVERY)
        else:
            self._sent = stops

    def _is_running(self, number: int) -> bool:
        tracker = self._context.statusTracker()
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group(number))]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        except (Py4JError, OSError):
            # Java has ended, which the thread of the worker finds out, too.
            return False
        return any(stage.numActiveTasks for stage in stages if stage is not None)

    def _cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            # Java may have ended, with its tasks.
            with suppress(Py4JError, OSError):
                self._context.cancelJobGroup(self._group(number))

    def _group(self, number: int) -> str:
        return f"penstock-worker-{self._plan.run}-{number}"

    def _keep_working(self, number: int) -> None:
        """Submit one worker again and again, until it is stopped or nothing is left to do."""
        self._context.setJobGroup(self._group(number), f"penstock worker {number}: {self._plan.app}", True)
        failures = 0
        while not self._ending.is_set():
            began_at = time.monotonic()
            try:
                shift = self._submit()
            except (Py4JNetworkError, OSError) as error:
                # A signal to all processes ends Spark, too, perhaps before us.
                if not self._ending.is_set():
                    self._fail(SetupError(f"Spark is gone; items that were in hand come again ({error})"))
                return
            except (PySparkException, Py4JError) as error:
                shift = Shift("failed", error=_reason(error))
            with self._lock:
                self._handled += shift.handled
            if shift.end == "drained" or self._ending.is_set():
                return
            if shift.end in ("over", "stopped"):
                # Stopped, but not by us: its executor is to go.
                failures = 0
                continue
            if shift.end == "refused":
                self._fail(getattr(errors, shift.kind or "", PenstockError)(shift.error))
                return
            failures = 1 if time.monotonic() - began_at > _SOON else failures + 1
            if failures >= _MOST_FAILURES and shift.end == "failed":
                self._fail(SetupError(f"worker {number} ended {failures} times soon after its start: {shift.error}"))
                return
            pause = min(2.0 ** min(failures - 1, 10), _LONGEST_PAUSE)
            self._echo(f"worker {number} has ended and is started anew in {pause:g} s: {shift.error}")
            self._ending.wait(pause)

    def _submit(self) -> Shift:
        """Run a job of one task, which is a worker for one shift."""
        frame = self._spark.range(0, 1, 1, 1).mapInArrow(_task(self._plan), _SCHEMA)
        (row,) = frame.collect()
        return Shift(*row)

    def _fail(self, error: PenstockError) -> None:
        """Take note of an error that makes going on impossible, and end."""
        with self._lock:
            self._failure = self._failure or error
            self._stops = max(self._stops, 1)
        self._ending.set()


def _task(plan: Plan) -> "Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]":
    def penstock_worker(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for _ in batches:
            shift = work(plan)
            columns = [pyarrow.array([shift.end]), pyarrow.array([shift.handled], pyarrow.int64())]
            columns += [pyarrow.array([text], pyarrow.string()) for text in (shift.kind, shift.error)]
            yield pyarrow.RecordBatch.from_arrays(columns, names=Shift._fields)

    return penstock_worker


def _reason(error: Exception) -> str:
    """Return why a job failed, for people to read: of an executor that is lost, Spark's own line."""
    if not isinstance(error, Py4JJavaError):
        return explain(error)
    lines = str(error.java_exception.getMessage()).splitlines() or [type(error).__name__]
    return lines[0].rpartition("most recent failure: ")[2]


def _given(settings: Settings) -> dict[str, Any]:
    """Return the arguments for a client with these settings, on any machine."""
    taken = [setting for setting in settings.origins if setting.option.name != "embedded"]
    return {
        setting.option.name: setting.value
        for setting in taken
        # Where the embedded server is must not depend on who asks.
        if setting.source != "default" or setting.option.name == "home"
    }
