"""Keeps one query running: starts, watches and pauses it, and starts it again with backoff when it fails.

A query that fails has committed all of an epoch or nothing of it, so starting it again is always safe. What no restart
can fix, a flow that Spark refuses or a checkpoint of another query, is failed at once and says what to do.
"""

import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from penstock.broker.arguments import storable
from penstock.broker.flows import FlowStatus
from penstock.errors import CheckpointError, DataLost, PenstockError
from penstock.spark.signing import SignedError, signed_error

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
# So often an epoch may fail before the message is looked for at which it does, unless Python code raised the error.
PATIENCE = 2
_PYTHON_ERROR = "org.apache.spark.api.python.PythonException"
# What Spark raises; where it has no error of its own in Python, as for a process that died, it is Java's.
FAILURES = (PySparkException, Py4JJavaError)
# A rate is that of the last epoch, for as long as it can be called the last.
_RATE_SECONDS = 10.0
# An exception may be its own cause, by a detour.
_MOST_CAUSES = 20
# Where PySpark and Py4J keep Java's exception.
_JAVA = ("_origin", "java_exception")
# What no restart can fix.
_PERMANENT = (CheckpointError, DataLost)
# What a task failed with, in the one line that Spark says of a job.
_LOST_TASK = re.compile(r"\): (?:[\w.]+\.)?(\w+(?:Error|Exception): .+?)(?:\. |$)", re.MULTILINE)
# The words of an exception at the end of a Python traceback, or of Spark's list of causes.
_CAUSE = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Input|TooLarge|Found|Retryable|Unavailable|Lost)): (.+)$", re.MULTILINE
)


class Search(Protocol):
    """Looks for what can be done about an epoch that fails, for as long as it takes."""

    def run(self) -> str | None:
        """Return a description of what was done, or None."""

    def stop(self) -> None:
        """Stop it, from another thread."""


class SearchThread:
    """A search in a thread of its own: the loop that watches all queries cannot wait for it."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.result: str | None = None
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the search has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it."""
        self._search.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.result = self._search.run()
        except (PenstockError, *FAILURES):
            # The epoch has failed anyway, and is tried again; so is the search.
            self.result = None


class Running:
    """A flow's query, or that of a copy. `start` starts it, `new_search` looks for messages that fail.

    The search is told whether the query has failed before.
    """

    def __init__(
        self,
        name: str,
        start: "Callable[[], StreamingQuery]",
        new_search: "Callable[[StreamingQuery, bool], Search] | None" = None,
        *,
        once: bool = False,
        give_up: int | None = None,
        backoff: float = BACKOFF_FIRST,
        late_rows: int = 0,
        sign: str | None = None,
    ) -> None:
        self.name = name
        self._start = start
        self._new_search = new_search
        self._once = once
        self._give_up = give_up
        self._backoff = backoff
        self._sign = sign
        self._query: StreamingQuery | None = None
        self._search_thread: SearchThread | None = None
        self._retry_at = 0.0
        self._seen_at = 0.0
        self.state = "starting"
        self.failures = 0
        self.error: str | None = None
        self.remark: str | None = None
        self.epoch: int | None = None
        self.rows = 0
        self.late_rows = late_rows
        self._looked_at = -1
        self._late_at = -1
        self._rate = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state in ("finished", "failed", "stopped")

    def tick(self, paused: bool) -> None:
        """Start the query when it is due, and notice when it has ended."""
        if paused and not self.is_over:
            self._halt()
            self.state = "paused"
            return
        if self.state == "paused":
            self.state, self._retry_at = "starting", 0.0
        if self._search_thread is not None:
            if self._search_thread.is_over:
                self._search_ended(self._search_thread.result)
            return
        if self._query is None:
            if not self.is_over and time.monotonic() >= self._retry_at:
                self._begin()
            return
        try:
            self._look(self._query)
            if not self._query.isActive:
                self._ended(self._query)
        except FAILURES as error:
            # A Connect server that went away, for instance; the query is started again, and fenced if it lives on.
            self._query = None
            self._back_off(explain(error))
            self._maybe_give_up()

    def status(self) -> FlowStatus:
        """Return its status."""
        left = self._retry_at - time.monotonic()
        retry = datetime.now(UTC) + timedelta(seconds=left) if self.state == "backing off" else None
        rate = self._rate if time.monotonic() - self._seen_at < _RATE_SECONDS and self.state == "running" else 0.0
        return FlowStatus(self.state, self.failures, self.error, retry, self.epoch, round(rate, 1), self.late_rows)

    def stop(self) -> None:
        """Stop it, in the middle of an epoch if need be."""
        try:
            self._halt()
        finally:
            if not self.is_over:
                self.state = "stopped"

    def _begin(self) -> None:
        try:
            self._query = self._start()
        except AnalysisException as error:
            self._fail(explain(error))
        except (PenstockError, *FAILURES) as error:
            self._back_off(explain(error))
            self._maybe_give_up()
        else:
            self.state = "running"

    def _look(self, query: "StreamingQuery") -> None:
        progress: Any = query.lastProgress
        if progress is None:
            return
        self._count_late(query, progress)
        # As attributes: of Spark Connect, the sums over the sources are not among its items.
        epoch, rows = int(progress.batchId), int(progress.numInputRows)
        if rows and (self.epoch is None or epoch > self.epoch or self._seen_at == 0.0):
            self.epoch, self._seen_at = epoch, time.monotonic()
            self.rows += rows
            self._rate = float(progress.processedRowsPerSecond or 0.0)
            # An epoch got through: what was wrong is over.
            self.failures, self.error = 0, None

    def _count_late(self, query: "StreamingQuery", newest: Any) -> None:
        """Count the rows that came behind the watermark, also in epochs that ended between two looks."""
        if not newest.stateOperators:
            return
        epoch = int(newest.batchId)
        seen: Any = query.recentProgress if epoch > self._looked_at + 1 else [newest]
        for progress in seen:
            late = sum(int(operator.numRowsDroppedByWatermark) for operator in progress.stateOperators)
            # An idle query reports the same epoch again, without any.
            if late and int(progress.batchId) > self._late_at:
                self._late_at = int(progress.batchId)
                self.late_rows += late
        self._looked_at = epoch

    def _ended(self, query: "StreamingQuery") -> None:
        self._query = None
        # The last epoch may have ended since the last look.
        self._look(query)
        problem = query.exception()
        if problem is None:
            self.state = "finished" if self._once else "starting"
            self.error = None
            return
        own = own_error(problem, self._sign)
        text = explain(problem) if own is None else str(own)
        if own is not None and issubclass(own.kind, _PERMANENT):
            self._fail(f"{text} `penstock run --reset {self.name}` begins with a new checkpoint where the flow stands.")
            return
        self._back_off(text)
        again = self.failures >= PATIENCE
        # What Python code raises will be raised again, so that to wait would be in vain. Penstock's own is no step's.
        is_steps = own is None and _PYTHON_ERROR in java_classes(problem)
        if self._new_search is not None and (again or is_steps):
            self._search_thread = SearchThread(self._new_search(query, again))
        else:
            self._maybe_give_up()

    def _search_ended(self, done: str | None) -> None:
        self._search_thread = None
        if done is not None:
            self.remark, self._retry_at, self.state = done, 0.0, "starting"
        else:
            self._maybe_give_up()

    def _maybe_give_up(self) -> None:
        if self._give_up is not None and self.failures >= self._give_up:
            self._fail(self.error or "")

    def _back_off(self, text: str) -> None:
        """Try again later, each time after twice as long."""
        self.failures += 1
        self._retry_at = time.monotonic() + min(self._backoff * 2 ** min(self.failures - 1, 30), BACKOFF_MOST)
        self.state, self.error = "backing off", text

    def _fail(self, text: str) -> None:
        self.state, self.error = "failed", text

    def _halt(self) -> None:
        if self._query is not None:
            query, self._query = self._query, None
            query.stop()
        if self._search_thread is not None:
            search_thread, self._search_thread = self._search_thread, None
            search_thread.stop()


def own_error(error: Exception, sign: str | None) -> SignedError | None:
    """Return what penstock's source or sink raised, or None if it was somebody else.

    What a step raises may say anything, and is no reason to give up its flow or to spare its messages.
    """
    found = signed_error(str(error), sign)
    return None if found is None else found._replace(text=storable(found.text)[:500])


def java_classes(error: Exception) -> set[str]:
    """Return the classes of the Java exceptions behind an error; none where Spark Connect keeps them to itself."""
    # The error of a query has only a cause.
    known = (getattr(one, name, None) for one in (error, getattr(error, "_cause", None)) for name in _JAVA)
    cause = next(filter(None, known), None)
    found: set[str] = set()
    while cause is not None and len(found) < _MOST_CAUSES:
        found.add(str(cause.getClass().getName()))
        cause = cause.getCause()
    return found


def explain(error: Exception) -> str:
    """Return in a few words what is wrong: the innermost exception, and not all that Spark says of it.

    It is for people to read; no decision depends on it. All that a step says about its failure comes through here, so
    this is where it is made fit to be stored.
    """
    text = str(error)
    found = _CAUSE.findall(text)
    lost = _LOST_TASK.search(text)
    if found:
        kind, words = found[-1]
        text = f"{kind}: {words.strip()}"
    elif lost:
        text = lost[1]
    return storable(text.strip().splitlines()[0])[:500] if text.strip() else type(error).__name__
