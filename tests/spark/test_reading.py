"""A batch read has all columns of all messages, and reads no more than it must."""

import json
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock import Client, InvalidInput, Message
from penstock.spark.options import read_options
from penstock.spark.planning import Task
from penstock.spark.reading import BatchReader, FilteringReader

from .conftest import Lab


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(
        (row.queue, row.partition, row.offset, row.key, row.value, row.headers, row.timestamp, row.id)
        for row in frame.collect()
    )


def fill(client: Client) -> None:
    """Three segments with keys, headers, neither, and both; one-message segments that are merged; two queues."""
    client.push("in", [Message(b"a", key="k1"), Message(b"", headers={"h": "1"}), Message("ü".encode())], partition="p")
    client.push("in", [b"plain"] * 5, partition="p")
    for number in range(80):
        client.push("in", b"%d" % number, partition="small", key="k")
    list(client.maintain())
    client.push("other", [b"x"], partition="p")


def test_every_column_is_what_the_client_says(lab: Lab) -> None:
    fill(lab.client)
    found = rows(lab.read("in,other"))
    zone = datetime.now().astimezone().tzinfo
    expected = sorted(
        (
            message.queue,
            message.partition,
            message.offset,
            message.key,
            message.value,
            None if message.headers is None else '{"h":"1"}',
            message.timestamp.astimezone(zone).replace(tzinfo=None),
            str(message.id),
        )
        for queue in ("in", "other")
        for partition in lab.client.partitions(queue)
        for message in lab.client.scan(queue, partition.name)
    )
    assert found == expected
    assert len(found) == 89


def test_a_range_is_read_as_the_options_say(lab: Lab) -> None:
    fill(lab.client)
    ranges: list[tuple[dict[str, str], int]] = [
        ({"startingOffsets": '{"in": {"p": 6, "small": -1}}', "endingOffsets": '{"in": {"p": 7}}'}, 1),
        ({"endingOffsets": '{"in": {"p": 2, "small": 0}}'}, 2),
        ({"startingTimestamp": "4102444800000"}, 0),
        ({"startingTimestamp": "2026-01-01T00:00:00+00:00"}, 88),
    ]
    for options, count in ranges:
        assert lab.read(**options).count() == count


def test_queues_by_pattern_and_partitions_by_name(lab: Lab) -> None:
    fill(lab.client)
    assert lab.read(subscribePattern="oth.*").count() == 1
    assert lab.read(assign='{"in": ["p"], "other": ["p"]}').count() == 9


def test_a_queue_or_partition_that_does_not_exist_is_named(lab: Lab) -> None:
    lab.client.push("in", b"x", partition="p")
    with pytest.raises(PySparkException, match='there is no queue "nope"'):
        lab.read("nope").collect()
    with pytest.raises(PySparkException, match='has no partition "nope"'):
        lab.read(assign='{"in": ["nope"]}').collect()
    with pytest.raises(PySparkException, match='names partition "nope"'):
        lab.read(startingOffsets='{"in": {"nope": 1}}').collect()
    with pytest.raises(PySparkException, match="unknown option"):
        lab.read(topic="in").collect()


def test_offsets_that_retention_dropped_are_an_error_unless_told_otherwise(lab: Lab) -> None:
    lab.client.create("in", retention_bytes=1)
    lab.client.push("in", [b"a"] * 5, partition="p")
    lab.client.push("in", [b"b"] * 5, partition="p")
    list(lab.client.maintain())
    wanted = '{"in": {"p": 2}}'
    with pytest.raises(PySparkException, match=r"offset 2 of partition .* is not there"):
        lab.read(startingOffsets=wanted).collect()
    floor = lab.client.partitions("in")[0].floor
    assert lab.read(startingOffsets=wanted, failOnDataLoss="false").count() == 10 - floor


def test_a_hot_partition_is_read_by_several_tasks(lab: Lab) -> None:
    lab.client.push("in", [b"%d" % number for number in range(1000)], partition="p")
    frame = lab.read(minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(int(bytes(row.value)) for row in frame.collect()) == list(range(1000))


def test_many_partitions_are_read_by_few_tasks(lab: Lab) -> None:
    lab.client.push_many("in", [(f"p{number}", b"x") for number in range(2000)])
    frame = lab.read()
    assert frame.rdd.getNumPartitions() == 1
    assert frame.select("partition").distinct().count() == 2000


FILTERS: dict[str, tuple[list[Filter], dict[str, tuple[int, int]], int]] = {
    "a queue": ([EqualTo(("queue",), "other")], {"other/p": (0, 1)}, 0),
    "a partition": ([EqualTo(("partition",), "small")], {"in/small": (0, 80)}, 0),
    "some partitions": ([In(("partition",), ("small", "nope"))], {"in/small": (0, 80)}, 0),
    "offsets": (
        [GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 6)],
        {"in/p": (5, 7), "in/small": (5, 7)},
        0,
    ),
    "one offset": ([EqualTo(("offset",), 7)], {"in/p": (7, 8), "in/small": (7, 8)}, 0),
    "a value": ([EqualTo(("value",), b"x")], {"in/p": (0, 8), "in/small": (0, 80), "other/p": (0, 1)}, 1),
    "nothing": ([EqualTo(("queue",), "in"), EqualTo(("queue",), "other")], {}, 0),
}


def ranges(client: Client, dsn: str, filters: list[Filter]) -> tuple[dict[str, tuple[int, int]], int]:
    """Plan a read with filters; return the ranges it would read, and how many filters are left to Spark."""
    reader = FilteringReader(read_options({"url": dsn, "subscribe": "in,other"}, streaming=False))
    left = list(reader.pushFilters(filters))
    read: dict[str, tuple[int, int]] = {}
    for task in reader.partitions():
        assert isinstance(task, Task)
        for page in task.pages:
            name = f"{page.queue}/{page.partition}"
            start, stop = read.get(name, (page.start, page.stop))
            read[name] = (min(start, page.start), max(stop, page.stop))
    return read, len(left)


@pytest.mark.parametrize(("filters", "expected", "left"), FILTERS.values(), ids=FILTERS)
def test_filters_become_the_ranges_that_are_read(
    client: Client, dsn: str, filters: list[Filter], expected: dict[str, tuple[int, int]], left: int
) -> None:
    fill(client)
    assert ranges(client, dsn, filters) == (expected, left)


def test_times_become_the_ranges_that_are_read(client: Client, dsn: str) -> None:
    fill(client)
    moment = client.read("in", "p", start=3)[0].timestamp
    third = client.read("in", "small", start=3)[0].timestamp
    read, left = ranges(client, dsn, [LessThan(("timestamp",), moment)])
    assert (read, left) == ({"in/p": (0, 3)}, 1)
    read, _ = ranges(client, dsn, [GreaterThanOrEqual(("timestamp",), moment), LessThan(("timestamp",), third)])
    assert read == {"in/p": (3, 8), "in/small": (0, 3)}
    tick = timedelta(microseconds=1)
    assert ranges(client, dsn, [LessThanOrEqual(("timestamp",), moment - tick)])[0] == {"in/p": (0, 3)}
    assert ranges(client, dsn, [GreaterThan(("timestamp",), datetime.now(UTC) + timedelta(days=1))])[0] == {}


def test_spark_hands_its_filters_over_where_asked(lab: Lab, pushing: SparkSession) -> None:
    fill(lab.client)
    found = lab.read().where("partition = 'small' AND offset BETWEEN 10 AND 19 AND timestamp > '2026-01-01'")
    assert found.count() == 10
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    assert "offset" not in plan.split("\n")[0]


def test_spark_filters_by_itself_where_it_keeps_them(lab: Lab) -> None:
    fill(lab.client)
    frame = lab.read()
    assert frame.where("partition = 'small' AND offset BETWEEN 10 AND 19").count() == 10
    assert frame.count() == 88


def test_a_session_plans_as_many_tasks_as_its_cores_are_worth(lab: Lab) -> None:
    lab.client.push_many("in", [(f"p{number}", b"x") for number in range(40)])
    with psycopg.connect(lab.dsn) as connection:
        # Planning believes what the rows say.
        connection.execute("UPDATE penstock.segments SET bytes = 1000000000")
    # Spark plans in a process of its own, which learns of the cores through the source's class alone.
    assert lab.read("in").rdd.getNumPartitions() == 3 * lab.spark.sparkContext.defaultParallelism == 6
    assert lab.read("in", minPartitions="20").rdd.getNumPartitions() == 20


def planned(client: Client, dsn: str, **options: str) -> dict[str, tuple[int, int]]:
    """Return the ranges that a batch would read, by partition."""
    source = BatchReader(read_options({"url": dsn, "subscribe": "in", **options}, streaming=False))
    pages = [page for task in source.partitions() if isinstance(task, Task) for page in task.pages]
    return {page.partition: (page.start, page.stop) for page in pages}


def test_a_range_that_starts_after_its_end_is_refused(client: Client, dsn: str) -> None:
    client.push("in", [b"a"] * 5, partition="p")
    ends = {"endingOffsets": '{"in": {"p": 2}}'}
    with pytest.raises(InvalidInput, match='partition "p" of "in" starts at offset 4, after its end at 2'):
        planned(client, dsn, startingOffsets='{"in": {"p": 4}}', **ends)
    assert planned(client, dsn, startingOffsets='{"in": {"p": 2}}', **ends) == {}


def test_moments_bound_a_batch_for_all_partitions_or_for_each(client: Client, dsn: str) -> None:
    for partition in ("p", "q"):
        for value in (b"a", b"b", b"c"):
            client.push("in", value, partition=partition)
    second, third = (client.read("in", "p")[offset].timestamp.isoformat() for offset in (1, 2))
    assert planned(client, dsn, endingTimestamp=third) == {"p": (0, 2)}
    assert planned(client, dsn, startingTimestamp=second, endingTimestamp=third) == {"p": (1, 2)}
    named = {
        "startingOffsetsByTimestamp": json.dumps({"in": {"p": second}}),
        "endingOffsetsByTimestamp": json.dumps({"in": {"p": third}}),
    }
    assert planned(client, dsn, **named) == {"p": (1, 2), "q": (0, 3)}
    with pytest.raises(InvalidInput, match='endingOffsetsByTimestamp names partition "typo"'):
        planned(client, dsn, endingOffsetsByTimestamp=json.dumps({"in": {"typo": third}}))
