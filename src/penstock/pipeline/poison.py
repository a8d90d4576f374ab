"""Finds the messages at which a step fails, so that one of them does not stop all that follow.

What the failing epoch reads is read once more and kept, and run as batches that write nothing, of fewer and fewer
messages, until single messages are left that fail by themselves, twice. They are remembered, and when the epoch is run
again its source makes dead letters of them. An epoch that fails as a stream and not as a batch is left to backoff.

A batch is cut into parts, each a partition of its own, and a Python worker that fails says in which partition it did
(`penstock.spark.daemon`). That is a hint: the part is run by itself before anything is concluded. Where there is no
hint, as for an expression that fails in Java, or where it is wrong, as after a shuffle, the messages are halved.

A service that a step calls may be away. So a message counts only if others are well after it has failed: the rest of
the epoch, or one that was well before.

A search takes at most `MOST_SECONDS` and goes on, with what it has found left out, when the epoch fails again. More
than `MOST` messages of one epoch are no poison: the step is broken and must be fixed.
"""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812

from penstock.broker.flows import EpochRange
from penstock.broker.operations.flows import AddPoison, FindPoison, GetEpochRanges
from penstock.pipeline import frames
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection, Problem
from penstock.pipeline.running import FAILURES, explain, java_classes, own_error
from penstock.postgres.database import Database
from penstock.spark.signing import SIGN_PROPERTY, failed_partition

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
# A batch that is expected to fail has so many parts: three such batches find one message among a thousand. Each part
# is a task, and a task with Python takes about a sixth of a batch.
_PARTS = 10


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

    @property
    def length(self) -> int:
        """Return how many messages it has."""
        return self.stop - self.start

    def cut(self, most: int) -> "list[Span]":
        """Cut it into so many parts of about the same length, or into single messages."""
        parts = min(most, self.length)
        bounds = [self.start + self.length * part // parts for part in range(parts + 1)]
        return [self._replace(start=start, stop=stop) for start, stop in pairwise(bounds)]


class Failure(NamedTuple):
    """Why a batch failed, and in which of its parts, as far as that was told."""

    error: str
    part: Span | None


class Interrupted(Exception):
    """The search was stopped, or cannot find out whether a message is the cause."""


class Search:
    """Looks for poison messages in the epoch at which a query failed. `stop` is called by another thread.

    After one failure, `again` is false, and messages are found only beside others that are well. Where few messages
    fail and no other is there, a service may be away, and the epoch must have failed before.
    """

    def __init__(
        self,
        spark: "SparkSession",
        database: Database,
        flow: Flow,
        connection: Connection,
        query: "StreamingQuery",
        *,
        again: bool,
    ) -> None:
        self._database, self._flow, self._again = database, flow, again
        self._probe = Probe(spark, flow, connection)
        self._query = query

    def run(self) -> str | None:
        """Search; return a description of what was found, or None."""
        ranges = self._database.run(GetEpochRanges(str(self._query.id), str(self._query.runId)))
        if not ranges or (not self._again and sum(one.stop - one.start for one in ranges) == 1):
            return None
        columns = zip(*((one.partition_id, one.start, one.stop) for one in ranges), strict=True)
        known = self._database.run(FindPoison(self._flow.name, *map(list, columns)))
        if len(known) >= MOST:
            return None
        found: list[Found] = []
        try:
            search(self._probe, self._probe.keep(ranges), MOST - len(known), found, again=self._again)
        except Interrupted:
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
        """Stop the search; messages found so far are kept."""
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
        # Messages that were found, by their places, are not run any more.
        self._left_out: defaultdict[str, set[int]] = defaultdict(set)
        self._trusts_hints = True
        self.runs = 0

    def keep(self, ranges: Sequence[EpochRange]) -> list[Span]:
        """Read ranges, in the thread that will run the batches; return what there is of each source."""
        self._deadline = time.monotonic() + MOST_SECONDS
        self._spark.addTag(self._tag)
        self._ask_for_partitions(self._tag)
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
            raise Interrupted from error
        return spans

    def close(self) -> None:
        """Release what was kept, in the same thread."""
        for frame in self._kept.values():
            frame.unpersist()
        self._ask_for_partitions(None)
        self._spark.removeTag(self._tag)

    def _ask_for_partitions(self, sign: str | None) -> None:
        """Have Python workers of this thread's batches say in which partition they fail; Connect has no way to."""
        try:
            context = self._spark.sparkContext
        except PySparkException:
            return
        # A property is removed with null, which the types of PySpark do not know.
        context.setLocalProperty(SIGN_PROPERTY, sign)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Interrupt a batch that is running, from another thread, and begin no other."""
        self._stopped = True
        self._spark.interruptTag(self._tag)

    def fails(self, spans: Sequence[Span], steps: int | None = None, *, parts: int = 1) -> Failure | None:
        """Run messages through the flow, or through its first steps; return why it fails, or None.

        With several parts, the first span is cut into them, to be told in which it fails.
        """
        if self._stopped or time.monotonic() > self._deadline:
            raise Interrupted
        self.runs += 1
        cut = spans[0].cut(parts)
        try:
            rows = frames.transform(self._flow, self._sources(spans, cut), steps)
            rows = frames.sink_rows(self._flow, rows, {}) if steps is None else rows
            rows.write.format("noop").mode("overwrite").save()
        except (AnalysisException, Problem) as error:
            # It cannot run as a batch: nothing is learned about messages.
            raise Interrupted from error
        except FAILURES as error:
            is_own = own_error(error, self._connection.sign) is not None
            if self._stopped or is_own or _NO_MESSAGES_FAULT & java_classes(error):
                raise Interrupted from error
            return Failure(explain(error), self._hinted(error, cut))
        return None

    def _hinted(self, error: Exception, cut: Sequence[Span]) -> Span | None:
        """Return the part in which a batch says that it failed."""
        if len(cut) == 1:
            return None
        partition = failed_partition(str(error), self._tag)
        if partition is None or partition >= len(cut):
            # It will not be told of others either.
            self._trusts_hints = False
            return None
        return cut[partition]

    def _sources(self, spans: Sequence[Span], parts: Sequence[Span]) -> "dict[str, DataFrame]":
        wanted = {span.alias: span for span in spans}
        found = {}
        for alias, kept in self._kept.items():
            if alias not in wanted:
                found[alias] = kept.limit(0).drop(_PLACE)
                continue
            span = wanted[alias]
            first, last = self._place(alias, span.start), self._place(alias, span.stop - 1)
            frame = kept.filter(F.col(_PLACE).between(first, last))
            left_out = [self._place(alias, index) for index in self._left_out[alias] if span.start <= index < span.stop]
            if left_out:
                frame = frame.filter(~F.col(_PLACE).isin(left_out))
            if alias == parts[0].alias and len(parts) > 1:
                firsts = F.array(*(F.lit(self._place(alias, part.start)) for part in parts[1:]))
                number = F.size(F.filter(firsts, lambda first: first <= F.col(_PLACE)))
                frame = frame.repartitionById(len(parts), number)
            found[alias] = frame.drop(_PLACE)
        return found

    def _place(self, alias: str, index: int) -> int:
        place: int = self._places[alias][_PLACE][index].as_py()
        return place

    def search(
        self,
        span: Span,
        others: Sequence[Span],
        clean: Sequence[Span] | None,
        failure: Failure,
        found: list[Found],
        most: int,
    ) -> None:
        """Find one failing message after the other in a span that fails, beside others that do not.

        `clean` are messages that were well, one of each source, if there are any.
        """
        rest, left = span, failure
        while len(found) < most:
            single, error = self._narrow(rest, others, left)
            blamed = self._blamed([single, *others]) if error else None
            if error and blamed:
                self._left_out[single.alias].add(single.start)
            else:
                # It fails with its neighbours only, or does not any more.
                rest = rest._replace(start=single.stop)
            is_empty = all(index in self._left_out[rest.alias] for index in range(rest.start, rest.stop))
            next_failure = None if is_empty else self.fails([rest, *others])
            if error and blamed:
                is_well = next_failure is None and not is_empty
                if not is_well and clean is not None and self.fails(clean) is not None:
                    # What was well is not: something else is wrong by now.
                    raise Interrupted
                found.append(self._found(single, blamed, error))
            if next_failure is None:
                return
            left = next_failure

    def _narrow(self, span: Span, others: Sequence[Span], failure: Failure) -> tuple[Span, str | None]:
        """Return a message of a span that fails, and why it does, or None if it does not by itself."""
        known: Failure | None = failure
        while span.length > 1:
            hinted = None if known is None else known.part
            if hinted is None and self._trusts_hints:
                again = self.fails([span, *others], parts=_PARTS)
                hinted = None if again is None else again.part
            if hinted is not None and self._trusts_hints:
                known = self.fails([hinted, *others], parts=_PARTS)
                if known is not None:
                    span = hinted
                    continue
                self._trusts_hints = False
            first, second = span.cut(2)
            known = self.fails([first, *others])
            # Where the first half is well, it must be the second.
            span = second if known is None else first
        known = known or self.fails([span, *others])
        return span, None if known is None else known.error

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


def search(probe: Probe, spans: Sequence[Span], most: int, found: list[Found], *, again: bool = True) -> None:
    """Find the messages that fail in what a probe has kept. What is found by the time that it is interrupted counts.

    `again` says that the epoch has failed before, so that all of a few messages may be found.
    """
    failure = probe.fails(spans, parts=_PARTS) if spans else None
    if failure is None:
        return
    clean = _clean(probe, spans)
    if clean is None and (not again or sum(span.length for span in spans) >= _FEW):
        # It fails wherever one looks: it is the step, and no message.
        return
    for index, span in enumerate(spans if clean else ()):
        # Beside others that are well, since what fails with bad ones is not to blame.
        others = [one for place, one in enumerate(clean or ()) if place != index]
        beside = failure if len(spans) == 1 else probe.fails([span, *others], parts=_PARTS)
        if beside is not None:
            probe.search(span, others, clean, beside, found, most)
    if not found:
        # Only together they fail: one side is enough.
        probe.search(spans[0], spans[1:], clean, failure, found, most)


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
