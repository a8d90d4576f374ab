"""What the driver's part of a stream keeps: small offsets, small snapshots, few tasks. No Spark is needed to see it."""

import json

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock import Client, InvalidInput
from penstock.spark.options import read_options
from penstock.spark.planning import Task
from penstock.spark.streaming import Offset, StreamReader

ALL = ReadAllAvailable()
MANY = 3000


def reader(dsn: str, **options: str) -> StreamReader:
    chosen = {"url": dsn, "subscribe": "in", "startingOffsets": "earliest", **options}
    return StreamReader(read_options(chosen, streaming=True))


def planned(source: StreamReader, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
    """Return the ranges of a batch by partition."""
    ranges = {}
    for task in source.partitions(start, end):
        assert isinstance(task, Task)
        ranges.update({page.partition: (page.start, page.stop) for page in task.pages})
    return ranges


@pytest.fixture
def many(client: Client) -> Client:
    """A queue of many partitions with a message each."""
    client.push_many("in", [(f"p{number}", b"x") for number in range(MANY)])
    return client


def test_a_batch_of_many_partitions_is_one_task_and_a_small_offset(many: Client, dsn: str) -> None:
    source = reader(dsn)
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert len(json.dumps(end)) < 100
    assert len(source.partitions(start, end)) == 1
    assert len(planned(source, start, end)) == MANY


def test_a_snapshot_has_what_changed_and_another_process_finds_the_rest(many: Client, dsn: str) -> None:
    source = reader(dsn)
    first = source.latestOffset(source.initialOffset(), ALL)
    many.push("in", [b"a", b"b"], partition="p7")
    second = source.latestOffset(first, ALL)
    assert planned(source, first, second) == {"p7": (1, 3)}
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT cardinality(partition_ids), cardinality(all_ids) FROM penstock.snapshots ORDER BY depth"
        ).fetchall()
    assert rows == [(MANY, MANY), (1, None)]
    other = reader(dsn)
    assert planned(other, first, second) == {"p7": (1, 3)}
    assert len(planned(other, source.initialOffset(), second)) == MANY
    assert other.latestOffset(second, ALL) == second
    many.push("in", b"c", partition="new")
    assert planned(other, second, other.latestOffset(second, ALL)) == {"new": (0, 1)}


def test_every_hundredth_snapshot_has_all_positions(client: Client, dsn: str) -> None:
    source = reader(dsn)
    client.push("in", b"x", partition="other")
    at = source.initialOffset()
    for _ in range(101):
        client.push("in", b"x", partition="p")
        at = source.latestOffset(at, ALL)
    with psycopg.connect(dsn) as connection:
        full = connection.execute(
            "SELECT depth FROM penstock.snapshots WHERE all_ids IS NOT NULL ORDER BY 1"
        ).fetchall()
    assert full == [(0,), (100,)]
    assert reader(dsn).latestOffset(at, ALL) == at


def test_the_end_of_available_now_is_settled_at_its_beginning(client: Client, dsn: str) -> None:
    client.push("in", [b"a"] * 5, partition="p")
    source = reader(dsn)
    source.prepareForTriggerAvailableNow()
    client.push("in", [b"b"] * 5, partition="p")
    client.push("in", b"b", partition="new")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert planned(source, start, end) == {"p": (0, 5)}
    assert source.latestOffset(end, ALL) == end


@pytest.mark.parametrize("loss", ["deleted", "restored"])
def test_a_partition_that_is_gone_or_ends_too_soon_is_an_error_unless_told_otherwise(
    client: Client, dsn: str, loss: str
) -> None:
    client.push("in", [b"a"] * 3, partition="stays")
    client.push("in", [b"a"] * 2, partition="p")
    client.push("in", [b"a"] * 3, partition="p")
    source = reader(dsn)
    at = source.latestOffset(source.initialOffset(), ALL)
    if loss == "deleted":
        client.delete("in", partition="p")
    else:
        # As a restore of an older backup does.
        with psycopg.connect(dsn) as connection:
            connection.execute("DELETE FROM penstock.segments WHERE base_offset = 2")
    client.push("in", b"b", partition="stays")
    with pytest.raises(InvalidInput, match="failOnDataLoss"):
        reader(dsn).latestOffset(at, ALL)
    tolerant = reader(dsn, failOnDataLoss="false")
    end = tolerant.latestOffset(at, ALL)
    assert planned(tolerant, at, end) == {"stays": (3, 4)}


def test_an_offset_of_another_source_is_refused(client: Client, dsn: str) -> None:
    client.push("in", b"x")
    with pytest.raises(InvalidInput, match="none of penstock's"):
        reader(dsn).latestOffset({"orders": {"0": 23}}, ALL)
