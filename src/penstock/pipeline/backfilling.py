"""Replays a range of a queue, archive included, into another queue: all of it or nothing.

    from penstock.pipeline import backfill

    backfill("orders", "orders.again", start=yesterday, name="orders-2026-01-31")

What is replayed is settled before it begins, as offsets of each partition. Every message keeps its partition, key and
headers and its place among its neighbours; its offset, time and id are those of a new message.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.positions import Numbers, Spans, Watch

Bound = int | datetime | None


class BackfillResult(NamedTuple):
    """What was replayed, or would be; `repeated` if a backfill of this name had done it before."""

    source: str
    target: str
    name: str | None
    partitions: int
    messages: int
    done: bool
    repeated: bool


def backfill(
    source: str,
    target: str,
    *,
    start: Bound = None,
    stop: Bound = None,
    partitions: Sequence[str] | None = None,
    name: str | None = None,
    dry_run: bool = False,
    url: str | None = None,
    spark: "SparkSession | None" = None,
) -> BackfillResult:
    """Replay the messages from `start` (included) to `stop` (not included), each an offset or a time.

    With `name`, it happens once, however often it is called. With `dry_run` nothing happens: the result says how many
    messages there are.
    """
    from penstock.broker.operations.archives import GetPublishedBatch
    from penstock.spark import connections
    from penstock.spark.options import read_options
    from penstock.spark.positions import Watch
    from penstock.spark.writing import batch_writer

    if source == target and stop is None:
        raise InvalidInput(f"{source} is source and target: say with an offset or a time where to stop")
    given = {} if url is None else {"url": url}
    chosen = {"subscribe": source} if partitions is None else {"assign": json.dumps({source: list(partitions)})}
    options = read_options({**given, **chosen}, streaming=False)
    try:
        if name is not None:
            published = connections.run(options.target, GetPublishedBatch(batch_writer(name)))
            if published is not None:
                return BackfillResult(source, target, name, 0, published, False, True)
        watch = Watch(options)
        ranges = _ranges(watch, start, stop)
    finally:
        connections.close()
    messages = sum(high - low for low, high in ranges.values())
    if messages and not dry_run:
        _replay(spark, source, target, ranges, {**given}, name)
    return BackfillResult(source, target, name, len(ranges), messages, not dry_run, False)


def _ranges(watch: "Watch", start: Bound, stop: Bound) -> dict[str, tuple[int, int]]:
    """Return what is to be replayed of each partition."""
    spans = watch.look(floors=True)
    places = watch.places(spans.ids)
    lows = _bounds(watch, spans, start, spans.floors)
    highs = _bounds(watch, spans, stop, spans.heads)
    found = zip(spans.ids.tolist(), lows.tolist(), highs.tolist(), strict=True)
    return {places[number].partition: (low, high) for number, low, high in found if low < high}


def _bounds(watch: "Watch", spans: "Spans", bound: Bound, default: "Numbers") -> "Numbers":
    import numpy as np

    if bound is None:
        return default
    wanted = watch.at(spans.ids, bound) if isinstance(bound, datetime) else np.full(len(default), bound)
    clipped: Numbers = np.clip(wanted, spans.floors, spans.heads)
    return clipped


def _replay(
    spark: "SparkSession | None",
    source: str,
    target: str,
    ranges: dict[str, tuple[int, int]],
    given: dict[str, str],
    name: str | None,
) -> None:
    from pyspark.errors import PySparkException

    from penstock.pipeline.job_errors import as_penstock
    from penstock.spark import session
    from penstock.spark.signing import new_sign

    sign = new_sign()
    given = {**given, "errorSign": sign}

    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for partition, (low, high) in ranges.items():
        ends["startingOffsets"][partition], ends["endingOffsets"][partition] = low, high
    read = {"assign": json.dumps({source: list(ranges)})}
    read |= {option: json.dumps({source: offsets}) for option, offsets in ends.items()}
    written = {"queue": target} if name is None else {"queue": target, "batchName": name}
    try:
        # The tasks of a batch are in the order of the log, and so the sink publishes them: nothing is shuffled.
        frame = (spark or session("penstock backfill")).read.format("penstock").options(**given, **read).load()
        rows = frame.select("partition", "key", "value", "headers")
        rows.write.format("penstock").options(**given, **written).mode("append").save()
    except PySparkException as error:
        raise as_penstock(error, sign) from None
