"""Finds the messages at which a step fails, so that one of them does not stop all that follow.

What the failing epoch reads is read once more and kept, and run as batches that write nothing, in halves, until single
messages are left that fail by themselves, twice. They are remembered, and when the epoch is run again its source makes
dead letters of them. An epoch that fails as a stream and not as a batch is left to backoff.

A search takes at most `MOST_SECONDS` and goes on, with what it has found left out, when the epoch fails again. More
than `MOST` messages of one epoch are no poison: the step is broken and must be fixed.
"""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from penstock.broker.flows import EpochRange
from penstock.broker.operations.flows import AddPoison, FindPoison, GetEpochRanges
from penstock.pipeline import frames
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection, Problem
from penstock.pipeline.running import FAILURES, explain, java_classes, own_error
from penstock.postgres.database import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MOST = 100
MOST_SECONDS = 120.0
# Of fewer than so many, all may be poison. And so many are tried for some that are none.
_FEW = 10
# What no message is to blame for, beside penstock's own errors: a machine that is too busy to start a process.
# Spark has no error condition for it, but the wait for the process ends with this.
_NO_MESSAGES_FAULT = {"java.net.SocketTimeoutException"}
_PLACE = "__penstock_place"


class Found(NamedTuple):
    """A message that fails: where it lies, the part of the flow that fails at it, and the error."""

    partition_id: int
    offset: int
    part: str
    error: str


class Span(NamedTuple):
    """Some messages of one source, by their places in what was kept of it."""

    alias: str
    start: int
    stop: int

    def halves(self) -> "tuple[Span, Span]":
        """Cut it in two."""
        middle = (self.start + self.stop) // 2
        return self._replace(stop=middle), self._replace(start=middle)


class _Interrupted(Exception):
    """The search is to end, or cannot tell a message's fault from another."""


class Search:
    """Looks for poison in the epoch at which a query failed. `run` takes its time; `stop` ends it from elsewhere."""

    def __init__(
        self,
        spark: "SparkSession",
        database: Database,
        flow: Flow,
        connection: Connection,
        query: "StreamingQuery",
    ) -> None:
        self._database, self._flow = database, flow
        self._probe = Probe(spark, flow, connection)
        self._query = query

    def run(self) -> str | None:
        """Search; return what was found, in words, or None."""
        ranges = self._database.run(GetEpochRanges(str(self._query.id), str(self._query.runId)))
        if not ranges:
            return None
        columns = zip(*((one.partition_id, one.start, one.stop) for one in ranges), strict=True)
        known = self._database.run(FindPoison(self._flow.name, *map(list, columns)))
        if len(known) >= MOST:
            return None
        found: list[Found] = []
        try:
            search(self._probe, self._probe.keep(ranges), MOST - len(known), found)
        except _Interrupted:
            pass
        finally:
            self._probe.close()
        by_part: defaultdict[str, list[Found]] = defaultdict(list)
        for one in found:
            by_part[one.part].append(one)
        for part, some in by_part.items():
            places = [(one.partition_id, one.offset) for one in some]
            errors = [one.error for one in some]
            self._database.run(AddPoison(self._flow.name, places, f"{self._flow.name}: {part}", errors))
        if not found:
            return None
        return f"{len(found)} messages at which it fails become dead letters ({found[0].part}: {found[0].error})"

    def stop(self) -> None:
        """Let it end soon; what it has found by then is kept."""
        self._probe.stop()


class Probe:
    """Keeps what an epoch reads, and runs parts of it as batches that write nothing."""

    def __init__(self, spark: "SparkSession", flow: Flow, connection: Connection) -> None:
        self._spark, self._flow, self._connection = spark, flow, connection
        self._tag = f"penstock-probe-{uuid4()}"
        self._stopped = False
        self._deadline = 0.0
        self._ids: dict[tuple[str, str], int] = {}
        self._kept: dict[str, DataFrame] = {}
        # Of each source: place, queue, partition and offset of its messages, sorted by place.
        self._places: dict[str, Any] = {}
        self.runs = 0

    def keep(self, ranges: Sequence[EpochRange]) -> list[Span]:
        """Read ranges, in the thread that will run the batches; return what there is of each source."""
        self._deadline = time.monotonic() + MOST_SECONDS
        self._spark.addTag(self._tag)
        self._ids = {(one.queue, one.partition): one.partition_id for one in ranges}
        spans = []
        try:
            sources = frames.batches(self._spark, self._flow, self._connection, _by_queue(ranges))
            for alias, frame in sources.items():
                kept = frame.withColumn(_PLACE, F.monotonically_increasing_id()).persist()
                self._kept[alias] = kept
                message = self._flow.message_column(alias)
                fields = (F.col(message)[name].alias(name) for name in ("queue", "partition", "offset"))
                self._places[alias] = kept.select(_PLACE, *fields).toArrow().sort_by(_PLACE)
                if self._places[alias].num_rows:
                    spans.append(Span(alias, 0, self._places[alias].num_rows))
        except (*FAILURES, Problem) as error:
            raise _Interrupted from error
        return spans

    def close(self) -> None:
        """Let go of what was kept, in the same thread."""
        for frame in self._kept.values():
            frame.unpersist()
        self._spark.removeTag(self._tag)

    def stop(self) -> None:
        """Interrupt a batch that is running, from another thread, and begin no other."""
        self._stopped = True
        self._spark.interruptTag(self._tag)

    def fails(self, spans: Sequence[Span], steps: int | None = None) -> str | None:
        """Run messages through the flow, or through its first steps; return the error, or None."""
        if self._stopped or time.monotonic() > self._deadline:
            raise _Interrupted
        self.runs += 1
        try:
            rows = frames.transform(self._flow, self._sources({span.alias: span for span in spans}), steps)
            rows = frames.sink_rows(self._flow, rows, {}) if steps is None else rows
            rows.write.format("noop").mode("overwrite").save()
        except (AnalysisException, Problem) as error:
            # It cannot run as a batch: nothing is learned about messages.
            raise _Interrupted from error
        except FAILURES as error:
            is_own = own_error(error, self._connection.sign) is not None
            if self._stopped or is_own or _NO_MESSAGES_FAULT & java_classes(error):
                raise _Interrupted from error
            return explain(error)
        return None

    def _sources(self, spans: Mapping[str, Span]) -> "dict[str, DataFrame]":
        found = {}
        for alias, kept in self._kept.items():
            if alias in spans:
                places = self._places[alias][_PLACE]
                first, last = (places[index].as_py() for index in (spans[alias].start, spans[alias].stop - 1))
                found[alias] = kept.filter(F.col(_PLACE).between(first, last)).drop(_PLACE)
            else:
                found[alias] = kept.limit(0).drop(_PLACE)
        return found

    def search(self, span: Span, others: Sequence[Span], found: list[Found], most: int) -> None:
        """Find one failing message after the other in a span that fails.

        Halving until one is left takes a batch a time. Where the first half is well, it must be the second.
        """
        rest = span
        while len(found) < most:
            part, known = rest, None
            while part.stop - part.start > 1:
                first, second = part.halves()
                known = self.fails([first, *others])
                part = second if known is None else first
            error = known or self.fails([part, *others])
            blamed = self._blamed([part, *others]) if error else None
            if error and blamed:
                found.append(self._found(part, blamed, error))
            rest = rest._replace(start=part.stop)
            if rest.start == rest.stop or self.fails([rest, *others]) is None:
                return

    def _found(self, span: Span, part: str, error: str) -> Found:
        row = self._places[span.alias].slice(span.start, 1).to_pylist()[0]
        return Found(self._ids[row["queue"], row["partition"]], row["offset"], part, error)

    def _blamed(self, spans: Sequence[Span]) -> str | None:
        """Return the first step at which a message fails; past all of them, it is an expectation or a route.

        None if it does not fail this time: a service may have been away for a moment.
        """
        low, high = 1, len(self._flow.steps)
        if not high or self.fails(spans, high) is None:
            return None if self.fails(spans) is None else "expectations and routes"
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.fails(spans, middle) is None else (low, middle)
        return self._flow.steps[low - 1].name


def search(probe: Probe, spans: Sequence[Span], most: int, found: list[Found]) -> None:
    """Find the messages that fail in what a probe has kept. What is found by the time that it is interrupted counts."""
    if not spans or probe.fails(spans) is None:
        return
    clean = _clean(probe, spans)
    if clean is None and sum(span.stop - span.start for span in spans) >= _FEW:
        # It fails wherever one looks: it is the step, and no message.
        return
    for index, span in enumerate(spans if clean else ()):
        # Beside others that are well, since what fails with bad ones is not to blame.
        others = [one for place, one in enumerate(clean or ()) if place != index]
        if len(spans) == 1 or probe.fails([span, *others]) is not None:
            probe.search(span, others, found, most)
    if not found:
        # Only together they fail: one side is enough.
        probe.search(spans[0], spans[1:], found, most)


def _clean(probe: Probe, spans: Sequence[Span]) -> tuple[Span, ...] | None:
    """Look for a message of each source that are well together: among the first ones, those of the middle, the last."""
    tried = [[span._replace(start=place, stop=place + 1) for place in dict.fromkeys(_three_of(span))] for span in spans]
    return next((some for some in islice(product(*tried), _FEW) if probe.fails(some) is None), None)


def _three_of(span: Span) -> tuple[int, int, int]:
    return span.start, (span.start + span.stop) // 2, span.stop - 1


def _by_queue(ranges: Sequence[EpochRange]) -> dict[str, tuple[str, str, str]]:
    """Return for each queue what to assign, where to start and where to end, as the connector's options."""
    wanted: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for one in ranges:
        wanted[one.queue][one.partition] = one.start, one.stop
    return {
        queue: (
            json.dumps({queue: list(parts)}),
            json.dumps({queue: {name: start for name, (start, _) in parts.items()}}),
            json.dumps({queue: {name: stop for name, (_, stop) in parts.items()}}),
        )
        for queue, parts in wanted.items()
    }
