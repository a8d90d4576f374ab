"""Where exactly once could break unseen: two databases, another target. And what is refused before anything runs."""

import json
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StringType, StructType

import penstock.spark
from penstock import Client, InvalidInput, SetupError
from penstock.errors import Unavailable
from penstock.spark.source import PlainSource

from .conftest import Lab, kept
from .test_recovery import forget
from .test_streaming import push


def test_a_sink_in_another_database_gets_a_lost_epoch_once(lab: Lab, penstock_dsn: str) -> None:
    push(lab.client, 0, 10, partitions=1)
    lab.finish(lab.stream(maxOffsetsPerTrigger="5"), url=penstock_dsn)
    forget(lab, "offsets", "commits")
    # Shared out between two partitions, a new batch of five would be another one.
    lab.client.push("in", [b"%d" % number for number in range(10, 20)], partition="new")
    lab.finish(lab.stream(maxOffsetsPerTrigger="5"), url=penstock_dsn)
    with Client(penstock_dsn) as other:
        assert kept(other, "out") == sorted(b"%d" % number for number in range(20))


def test_a_sink_in_another_database_refuses_another_first_epoch(lab: Lab, penstock_dsn: str) -> None:
    expected = push(lab.client, 0, 5, partitions=1)
    lab.finish(lab.stream(maxOffsetsPerTrigger="5"), url=penstock_dsn)
    forget(lab, "offsets", "commits")
    lab.client.push("in", [b"other"] * 5, partition="new")
    with pytest.raises(StreamingQueryException, match="published already, and with other content"):
        lab.finish(lab.stream(maxOffsetsPerTrigger="5"), url=penstock_dsn)
    with Client(penstock_dsn) as other:
        assert kept(other, "out") == expected


def test_an_epoch_that_went_to_another_queue_is_refused(lab: Lab) -> None:
    expected = push(lab.client, 0, 5)
    lab.finish(lab.stream())
    forget(lab, "commits")
    with pytest.raises(StreamingQueryException, match="was published to out, and this run would write it to elsewhere"):
        lab.finish(lab.stream(), queue="elsewhere")
    assert lab.values() == expected
    assert lab.values("elsewhere") == []


def test_progress_says_how_far_a_query_is_behind(lab: Lab) -> None:
    push(lab.client, 0, 10, partitions=1)
    query = lab.start(lab.stream(maxOffsetsPerTrigger="6"))
    assert query.awaitTermination(120)
    behind = [
        json.loads(str(progress.sources[0].latestOffset))["offsetsBehindLatest"] for progress in query.recentProgress
    ]
    assert behind[:2] == [4, 0]


@pytest.mark.parametrize(
    ("column", "mode", "said"),
    [
        ("count(*) AS value", "complete", "penstock supports appending only: use outputMode\\('append'\\)"),
        ("offset AS value", "append", "column value is bigint, and must be string or binary"),
    ],
)
def test_a_query_that_could_never_write_is_refused_at_its_start(lab: Lab, column: str, mode: str, said: str) -> None:
    push(lab.client, 0, 1)
    rows = lab.stream().selectExpr(column)
    writer = rows.writeStream.format("penstock").option("url", lab.dsn).option("queue", "out").outputMode(mode)
    with pytest.raises(PySparkException, match=said):
        writer.option("checkpointLocation", str(lab.folder / "c")).trigger(availableNow=True).start().awaitTermination()
    assert "out" not in [queue.name for queue in lab.client.queues()]


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ("key", ArrayType(StringType()), "column key is array<string>, and must be a string"),
        (
            "headers",
            MapType(StringType(), IntegerType()),
            "column headers is map<string,int>, and must be map<string,string>",
        ),
        ("value", StructType().add("a", "integer"), "column value is struct<a:int>, and must be string or binary"),
    ],
)
def test_a_column_of_another_type_is_refused_when_a_write_is_planned(column: str, kind: DataType, said: str) -> None:
    columns = StructType() if column == "value" else StructType().add("value", "string")
    with pytest.raises(InvalidInput, match=said):
        PlainSource({"queue": "out"}).writer(columns.add(column, kind), overwrite=False)


def test_options_are_checked_when_a_reader_is_loaded(lab: Lab) -> None:
    with pytest.raises(PySparkException, match="unknown option topic"):
        lab.spark.read.format("penstock").option("url", lab.dsn).option("topic", "in").load()
    with pytest.raises(PySparkException, match="option failOnDataLoss is 'maybe'"):
        lab.stream(failOnDataLoss="maybe")


def test_a_batch_write_to_a_database_that_is_down_says_so_before_any_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.connections.START_PATIENCE", 0.1)
    source = PlainSource({"queue": "out", "url": "postgresql://nobody@127.0.0.1:1/nothing"})
    with pytest.raises(Unavailable, match="cannot be reached"):
        source.writer(StructType().add("value", "string"), overwrite=False)


def test_a_python_without_penstock_is_replaced_or_named(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = folder / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    context = lab.spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", str(bare))
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with pytest.raises(SetupError, match=f"Spark runs Python as {bare}, which has no penstock.* PYSPARK_PYTHON"):
        penstock.spark.register(lab.spark)
    monkeypatch.delenv("PYSPARK_PYTHON")
    penstock.spark.register(lab.spark)
    assert context.pythonExec == sys.executable
    push(lab.client, 0, 3)
    assert lab.read().count() == 3
