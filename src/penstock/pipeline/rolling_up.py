"""Rolls the series of queues up to minutes, hours and days, as a Spark job.

    from penstock.pipeline.rolling_up import rollup

    rollup()

Each task reads the series of some queues and Spark sums them up. A rollup is made of all values of its minute, hour or
day, and replaces the one that was made before, so it may be repeated. One that was made of more values stays: those
may have been dropped by retention since.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.spark.options import Target

SIZES = {"minute": 60, "hour": 3600, "day": 86400}
_DEFAULT = timedelta(days=1)
# How many rollups are stored in one call, and in how many tasks the queues are read at most.
_CHUNK = 1000
_TASKS = 32
# As many values of one queue as a task can hold; at one a second for each of ten series, that is more than a week.
_MOST = 10_000_000


class RollupResult(NamedTuple):
    """From when on values were read, of how many queues, and how many rollups are new or changed."""

    since: datetime
    queues: int
    stored: int


def rollup(
    *, since: datetime | None = None, url: str | None = None, spark: "SparkSession | None" = None
) -> RollupResult:
    """Roll up the values from the beginning of a day (UTC) on; by default, of yesterday."""
    from penstock.broker.operations.metrics import ListMeasuredQueues
    from penstock.spark import connections, session
    from penstock.spark.options import read_options

    begin = (since or datetime.now(UTC) - _DEFAULT).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    target = read_options({**({} if url is None else {"url": url}), "subscribe": "any"}, streaming=False).target
    try:
        queues = connections.run(target, ListMeasuredQueues(begin))
    finally:
        connections.close()
    if not queues:
        return RollupResult(begin, 0, 0)
    return RollupResult(begin, len(queues), _roll_up(spark or session("penstock rollup"), target, queues, begin))


def _roll_up(spark: "SparkSession", target: "Target", queues: list[str], since: datetime) -> int:
    from pyspark.sql import functions as f

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _values(target, batches, since)

    def store(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _stored(target, batches)

    names = spark.createDataFrame([(queue,) for queue in queues], "queue string")
    values = names.repartition(min(len(queues), _TASKS)).mapInArrow(
        read, "queue string, metric string, labels string, value long, at long"
    )
    # In microseconds, as times are.
    sizes = [
        f.struct(f.lit(name).alias("name"), f.lit(size * 1_000_000).cast("long").alias("size"))
        for name, size in SIZES.items()
    ]
    cut = values.withColumn("by", f.explode(f.array(*sizes))).select(
        "queue",
        "metric",
        "labels",
        "value",
        "at",
        f.col("by.name").alias("resolution"),
        (f.col("at") - f.pmod(f.col("at"), f.col("by.size"))).alias("bucket"),
    )
    rolled = cut.groupBy("queue", "resolution", "bucket", "metric", "labels").agg(
        f.count("*").alias("samples"),
        f.sum("value").alias("total"),
        f.min("value").alias("smallest"),
        f.max("value").alias("largest"),
        f.max_by("value", "at").alias("newest"),
    )
    stored = rolled.mapInArrow(store, "stored long").agg(f.sum("stored")).collect()
    return int(stored[0][0] or 0)


def _values(target: "Target", batches: "Iterator[pa.RecordBatch]", since: datetime) -> "Iterator[pa.RecordBatch]":
    """Read the series of the queues that a task is given; runs in Spark's Python processes."""
    import msgspec
    import pyarrow as pa

    from penstock.broker.operations.metrics import ListMetrics
    from penstock.spark import connections

    for batch in batches:
        for queue in batch.column("queue").to_pylist():
            rows = connections.run(target, ListMetrics(queue, None, since, _MOST))
            yield pa.RecordBatch.from_pydict(
                {
                    "queue": pa.array([queue] * len(rows), pa.string()),
                    "metric": pa.array([row.metric_name for row in rows], pa.string()),
                    "labels": pa.array([msgspec.json.encode(row.labels or {}).decode() for row in rows], pa.string()),
                    "value": pa.array([row.metric_value for row in rows], pa.int64()),
                    "at": pa.array([round(row.timestamp.timestamp() * 1e6) for row in rows], pa.int64()),
                }
            )


def _stored(target: "Target", batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Store the rollups that a task has made; runs in Spark's Python processes."""
    import msgspec
    import pyarrow as pa

    from penstock.broker.metrics import Rollup
    from penstock.broker.operations.metrics import StoreRollups
    from penstock.spark import connections

    def made(row: dict[str, Any]) -> Rollup:
        bucket = datetime.fromtimestamp(row["bucket"] // 1_000_000, UTC)
        labels = msgspec.json.decode(row["labels"])
        numbers = (row[name] for name in ("samples", "total", "smallest", "largest", "newest"))
        return Rollup(row["queue"], row["resolution"], bucket, row["metric"], labels, *numbers)

    for batch in batches:
        rollups = [made(row) for row in batch.to_pylist()]
        for first in range(0, len(rollups), _CHUNK):
            count = connections.run(target, StoreRollups(rollups[first : first + _CHUNK]))
            yield pa.RecordBatch.from_pydict({"stored": pa.array([count], pa.int64())})
