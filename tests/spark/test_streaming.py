"""A stream reads every message once, in any number of batches, whoever joins, restarts or goes away."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import StreamingQueryException

from penstock import Client, embedded

from .conftest import Lab


def until(what: Callable[[], object], seconds: float = 120) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def push(client: Client, low: int, high: int, partitions: int = 3, queue: str = "in") -> list[bytes]:
    """Push numbers, and return them as a reader would sort them."""
    client.push_many(queue, [(f"p{number % partitions}", b"%d" % number) for number in range(low, high)])
    return sorted(b"%d" % number for number in range(low, high))


def batches(lab: Lab) -> list[int]:
    """Return how many messages each published epoch has."""
    with psycopg.connect(lab.dsn) as connection:
        return [
            n for (n,) in connection.execute("SELECT messages FROM penstock.sink_commits ORDER BY epoch").fetchall()
        ]


def test_available_now_reads_what_is_there_in_batches_and_advances_the_group_to_the_end(lab: Lab) -> None:
    expected = push(lab.client, 0, 100)
    lab.finish(lab.stream(maxOffsetsPerTrigger="40", groupId="g"))
    assert lab.values() == expected
    assert batches(lab) == [40, 40, 20]
    assert [(group.name, group.mode, group.lag) for group in lab.client.groups("in")] == [("g", "external", 0)]
    expected = sorted(expected + push(lab.client, 100, 130))
    assert lab.client.lag("in", "g") == 30
    lab.finish(lab.stream(maxOffsetsPerTrigger="40", groupId="g"))
    assert lab.values() == expected
    assert lab.client.lag("in", "g") == 0
    assert all(check.violations == 0 for check in lab.client.verify())


def test_a_batch_is_shared_by_all_partitions(lab: Lab) -> None:
    lab.client.push("in", [b"big"] * 1000, partition="big")
    lab.client.push_many("in", [(f"p{number}", b"small") for number in range(9)])
    lab.finish(lab.stream(maxOffsetsPerTrigger="500"))
    with psycopg.connect(lab.dsn) as connection:
        first = connection.execute(
            "SELECT cardinality(partition_ids) FROM penstock.snapshots ORDER BY 1 DESC"
        ).fetchone()
    assert first == (10,)
    assert batches(lab) == [500, 500, 9]


def test_a_batch_is_limited_by_bytes(lab: Lab) -> None:
    for _ in range(4):
        lab.client.push("in", [b"x" * 100] * 50, partition="p")
    lab.finish(lab.stream(maxBytesPerTrigger="8000"))
    assert batches(lab) == [80, 80, 40]


def test_partitions_and_queues_that_appear_are_read_from_their_beginning(lab: Lab) -> None:
    lab.client.push("in1", b"first", partition="a")
    frame = lab.spark.readStream.format("penstock").option("url", lab.dsn).option("subscribePattern", "in.*").load()
    query = lab.start(frame, now=False)
    try:
        until(lambda: batches(lab) == [0])
        lab.client.push("in1", b"second", partition="b")
        lab.client.push("in2", b"third", partition="a")
        until(lambda: lab.values() == [b"second", b"third"])
    finally:
        query.stop()


def test_what_retention_dropped_behind_a_checkpoint_is_an_error_unless_told_otherwise(lab: Lab) -> None:
    lab.client.create("in", retention_bytes=1, retention_rule="drop_and_count")
    lab.client.push("in", [b"a"] * 10, partition="p")
    lab.finish(lab.stream())
    for _ in range(2):
        lab.client.push("in", [b"b"] * 10, partition="p")
    list(lab.client.maintain())
    floor = lab.client.partitions("in")[0].floor
    assert floor > 10
    with pytest.raises(StreamingQueryException, match="Retention dropped what this query"):
        lab.finish(lab.stream())
    lab.finish(lab.stream(failOnDataLoss="false"))
    assert lab.values() == [b"a"] * 10 + [b"b"] * (30 - floor)


def test_a_checkpoint_of_another_database_is_refused(lab: Lab, penstock_dsn: str) -> None:
    push(lab.client, 0, 3)
    lab.finish(lab.stream())
    with Client(penstock_dsn) as other:
        push(other, 0, 3)
    with pytest.raises(StreamingQueryException, match="there is no snapshot"):
        lab.finish(lab.stream(url=penstock_dsn))


def test_a_group_of_consumers_cannot_be_used_too(lab: Lab) -> None:
    push(lab.client, 0, 3)
    lab.client.create_group("in", "g")
    with pytest.raises(StreamingQueryException, match="Choose another groupId"):
        lab.finish(lab.stream(groupId="g"))


def test_one_epoch_writes_to_several_queues(lab: Lab) -> None:
    push(lab.client, 0, 30)
    frame = lab.stream().selectExpr("if(offset % 2 = 0, 'even', 'odd') AS queue", "partition", "value")
    writer = frame.writeStream.format("penstock").option("url", lab.dsn).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(lab.folder / "c")).start().awaitTermination(120)
    assert (len(lab.values("even")), len(lab.values("odd"))) == (15, 15)
    assert batches(lab) == [30]


def test_the_password_is_in_no_plan_log_page_or_checkpoint(
    lab: Lab, spark_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    push(lab.client, 0, 3)
    with psycopg.connect(lab.dsn) as connection:
        connection.execute("DROP ROLE IF EXISTS penstock_spark_tester")
        connection.execute("CREATE ROLE penstock_spark_tester SUPERUSER LOGIN PASSWORD 'geheimnis'")
    url = make_conninfo(lab.dsn, user="penstock_spark_tester", password="geheimnis")
    frame = lab.read(url=url)
    frame.explain(True)
    lab.spark.sparkContext.setLogLevel("INFO")
    try:
        query = lab.start(lab.stream(url=url, groupId="g"), {"url": url})
        query.explain(True)
        assert query.awaitTermination(120)
        said = f"{query.recentProgress} {query.lastProgress}"
        frame.write.format("penstock").option("url", url).option("queue", "copy").mode("append").save()
    finally:
        lab.spark.sparkContext.setLogLevel("WARN")
    shown = "".join(capfd.readouterr()) + said
    for place in (lab.folder, spark_folder):
        shown += "".join(path.read_text(errors="replace") for path in place.rglob("*") if path.is_file())
    assert "INFO" in shown
    assert "SparkListenerSQLExecutionStart" in shown
    assert '"snapshot":' in shown
    assert "geheimnis" not in shown
    with pytest.raises(StreamingQueryException) as refusal:
        lab.finish(lab.stream(url=make_conninfo(url, dbname="nope")))
    assert "geheimnis" not in str(refusal.value)


def test_a_restart_of_the_database_does_not_end_the_query(lab: Lab) -> None:
    home = Path(tempfile.mkdtemp(prefix="penstock-restart-"))
    home.chmod(0o755)
    embedded.start_detached(home)
    with embedded.attach(home) as instance:
        url = instance.dsn
    try:
        with Client(url) as client:
            expected = push(client, 0, 30)
            own = Lab(lab.spark, client, url, lab.folder)
            query = own.start(own.stream(maxOffsetsPerTrigger="10"), now=False)
            until(lambda: own.values() == expected)
            embedded.stop(home, timeout=30)
            assert not embedded.status(home).running
            embedded.start_detached(home)
            expected = sorted(expected + push(client, 30, 60))
            until(lambda: own.values() == expected)
            assert query.exception() is None
            query.stop()
    finally:
        embedded.stop(home, timeout=30)
        shutil.rmtree(home, ignore_errors=True)
