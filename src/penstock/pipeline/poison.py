"""Finds the messages at which a step fails, so that one of them does not stop all that follow.

What the failing epoch reads is run again as a batch that writes nothing, in halves, until single messages are left that
fail by themselves. They are remembered, and when the epoch is run again its source makes dead letters of them. An
epoch that fails as a stream and not as a batch is nobody's fault here, and is left to backoff.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from penstock.engine import flow_calls
from penstock.engine.database import Database
from penstock.engine.flow_calls import Range
from penstock.pipeline import frames
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection
from penstock.pipeline.running import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# More than so many in one epoch is no poison: the step is broken.
MOST = 100
# Of fewer than so many, all may be poison.
_FEW = 10


def mend(
    spark: "SparkSession",
    database: Database,
    flow: Flow,
    connection: Connection,
    query: "StreamingQuery",
    error: str,
) -> str | None:
    """Look for poison in the epoch that failed; return what was found, in words, or None."""
    ranges = database.run(flow_calls.epoch_ranges(str(query.id), str(query.runId)))
    if not ranges:
        return None
    probe = Probe(spark, flow, connection)
    if probe.fails(ranges) is None or probe.is_broken(ranges):
        return None
    found: dict[tuple[int, int], str] = {}
    for queue in flow.sources.values():
        others = [one for one in ranges if one.queue != queue]
        probe.search([one for one in ranges if one.queue == queue], others, found)
        if len(found) > MOST:
            return None
    if not found:
        return None
    name = _blamed(flow)
    places = list(found)
    database.run(flow_calls.add_poison(flow.name, places, f"{flow.name}: {name}", list(found.values())))
    return f"{len(places)} messages at which it fails become dead letters ({error})"


class Probe:
    """Runs parts of an epoch as batches that write nothing."""

    def __init__(self, spark: "SparkSession", flow: Flow, connection: Connection) -> None:
        self._spark, self._flow, self._connection = spark, flow, connection

    def fails(self, ranges: Sequence[Range]) -> str | None:
        """Run ranges; return the error, or None."""
        try:
            sources = frames.batches(self._spark, self._flow, self._connection, _by_queue(ranges))
            rows = frames.sink_rows(self._flow, frames.transform(self._flow, sources), {})
            rows.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            return explain(error)
        return None

    def is_broken(self, ranges: Sequence[Range]) -> bool:
        """Say whether it fails wherever one looks: then it is the step, and no message."""
        count = sum(one.stop - one.start for one in ranges)
        return count >= _FEW and all(self.fails([_nth(ranges, place)]) for place in (0, count // 2, count - 1))

    def search(self, ranges: Sequence[Range], others: Sequence[Range], found: dict[tuple[int, int], str]) -> None:
        """Halve what fails, until it is single messages."""
        waiting = [list(ranges)]
        while waiting and len(found) <= MOST:
            part = waiting.pop()
            count = sum(one.stop - one.start for one in part)
            error = self.fails([*part, *others]) if count else None
            if error is None:
                continue
            if count == 1:
                found[part[0].partition_id, part[0].start] = error
            else:
                waiting += halves(part)


def _nth(ranges: Sequence[Range], place: int) -> Range:
    for one in ranges:
        if place < one.stop - one.start:
            return one._replace(start=one.start + place, stop=one.start + place + 1)
        place -= one.stop - one.start
    raise IndexError(place)


def halves(ranges: Sequence[Range]) -> list[list[Range]]:
    """Cut ranges into two of about the same number of messages."""
    half = sum(one.stop - one.start for one in ranges) // 2
    first: list[Range] = []
    second: list[Range] = []
    taken = 0
    for one in ranges:
        cut = min(max(half - taken, 0), one.stop - one.start)
        if cut:
            first.append(one._replace(stop=one.start + cut))
        if cut < one.stop - one.start:
            second.append(one._replace(start=one.start + cut))
        taken += one.stop - one.start
    return [first, second]


def _by_queue(ranges: Sequence[Range]) -> dict[str, tuple[str, str, str]]:
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


def _blamed(flow: Flow) -> str:
    return flow.steps[0].name if len(flow.steps) == 1 else "a step"
