"""What the driver's part of a stream keeps: small offsets, small snapshots, few tasks. No Spark is needed to see it."""

import json

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import Client, DataLost, InvalidInput, NotFound, PenstockError
from penstock.errors import Unavailable
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
    with pytest.raises(DataLost, match="failOnDataLoss"):
        reader(dsn).latestOffset(at, ALL)
    tolerant = reader(dsn, failOnDataLoss="false")
    end = tolerant.latestOffset(at, ALL)
    assert planned(tolerant, at, end) == {"stays": (3, 4)}


def test_an_offset_of_another_source_is_refused(client: Client, dsn: str) -> None:
    client.push("in", b"x")
    with pytest.raises(InvalidInput, match="not penstock's"):
        reader(dsn).latestOffset({"orders": {"0": 23}}, ALL)


def drop(dsn: str, partition: str, below: int) -> None:
    """Drop the first messages of a partition, as retention does."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "SELECT penstock.drop_below(partition_id, %s, 1000) FROM penstock.partitions WHERE name = %s",
            (below, partition),
        )


@pytest.mark.parametrize("known", ["planned", "new"])
def test_what_was_dropped_at_the_beginning_of_a_partition_is_an_error_unless_told_otherwise(
    client: Client, dsn: str, known: str
) -> None:
    source = reader(dsn)
    client.push("in", b"x", partition="other")
    start = source.initialOffset()
    if known == "new":
        start = source.latestOffset(start, ALL)
    for _ in range(2):
        client.push("in", [b"a"] * 5, partition="p")
    if known == "planned":
        end = source.latestOffset(start, ALL)
        drop(dsn, "p", 5)
    else:
        drop(dsn, "p", 5)
        end = source.latestOffset(start, ALL)
    with pytest.raises(DataLost, match='offset 0 of partition "p" of "in" is not there'):
        source.partitions(start, end)
    assert planned(reader(dsn, failOnDataLoss="false"), start, end)["p"] == (5, 10)


def test_a_partition_that_had_lost_its_beginning_before_the_query_began_is_read_from_there(
    client: Client, dsn: str
) -> None:
    for _ in range(2):
        client.push("in", [b"a"] * 5, partition="p")
    drop(dsn, "p", 5)
    source = reader(dsn)
    start = source.initialOffset()
    assert planned(source, start, source.latestOffset(start, ALL)) == {"p": (5, 10)}


@pytest.mark.parametrize("way", [{}, {"assign": '{"in": ["p"]}', "subscribe": ""}, {"groupId": "g"}])
def test_a_query_survives_the_deletion_of_its_queue_if_told_to(client: Client, dsn: str, way: dict[str, str]) -> None:
    client.push("in", [b"a"] * 5, partition="p")
    options = {name: value for name, value in ({"subscribe": "in"} | way).items() if value}
    chosen = {"url": dsn, "startingOffsets": "earliest", "failOnDataLoss": "false", **options}
    source = StreamReader(read_options(chosen, streaming=True))
    start = source.initialOffset()
    first = source.latestOffset(start, ALL)
    client.delete("in")
    # The batch that was planned reads nothing, and still says which snapshot it reads.
    (task,) = source.partitions(start, first)
    assert isinstance(task, Task)
    assert (task.pages, task.first) == ([], True)
    restarted = StreamReader(read_options(chosen, streaming=True))
    restarted.prepareForTriggerAvailableNow()
    for one in (source, restarted):
        assert one.latestOffset(first, ALL) == first
    client.push("in", [b"b"] * 2, partition="p")
    if "assign" not in way:
        second = source.latestOffset(first, ALL)
        assert planned(source, first, second) == {"p": (0, 2)}


def test_a_queue_that_does_not_exist_is_an_error_where_a_query_begins(client: Client, dsn: str) -> None:
    source = reader(dsn, failOnDataLoss="false", subscribe="typo")
    source.prepareForTriggerAvailableNow()
    with pytest.raises(NotFound, match='no queue "typo"'):
        source.latestOffset(source.initialOffset(), ALL)


def test_a_deleted_queue_is_an_error_unless_told_otherwise(client: Client, dsn: str) -> None:
    client.push("in", b"a", partition="p")
    source = reader(dsn)
    at = source.latestOffset(source.initialOffset(), ALL)
    client.delete("in")
    with pytest.raises(NotFound, match='no queue "in"'):
        source.latestOffset(at, ALL)


def test_a_queue_that_is_deleted_during_its_batch_does_not_end_a_query_of_a_pattern(client: Client, dsn: str) -> None:
    for queue in ("a1", "a2"):
        client.push(queue, [b"a"] * 2, partition="p")
    chosen = {"url": dsn, "subscribePattern": "a.", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    source = StreamReader(read_options({**chosen, "groupId": "g"}, streaming=True))
    first = source.latestOffset(source.initialOffset(), ALL)
    client.delete("a1")
    assert source.latestOffset(first, ALL) == first
    assert client.lag("a2", "g") == 0


def test_a_checkpoint_that_went_back_gets_the_next_batch_again_wherever_that_was_published(
    client: Client, dsn: str
) -> None:
    client.push("in", [b"a"] * 10, partition="p")
    source = reader(dsn, maxOffsetsPerTrigger="5")
    first = source.latestOffset(source.initialOffset(), ReadMaxRows(5))
    second = source.latestOffset(first, ReadMaxRows(5))
    client.push("in", [b"b"] * 10, partition="q")
    again = reader(dsn, maxOffsetsPerTrigger="5")
    assert again.latestOffset(first, ReadMaxRows(5)) == second
    assert planned(again, first, second) == {"p": (5, 10)}


def test_of_two_queries_with_one_group_the_former_is_refused(client: Client, dsn: str) -> None:
    client.push("in", [b"a"] * 4, partition="p")
    slow, fast = reader(dsn, groupId="g", maxOffsetsPerTrigger="1"), reader(dsn, groupId="g")
    at = slow.latestOffset(slow.initialOffset(), ReadMaxRows(1))
    end = fast.latestOffset(fast.initialOffset(), ALL)
    assert fast.latestOffset(end, ALL) == end
    with pytest.raises(PenstockError, match="was taken over by another query"):
        slow.latestOffset(at, ReadMaxRows(1))
    assert client.lag("in", "g") == 0
    # Started again, it has the group, and retention waits for it.
    again = reader(dsn, groupId="g", maxOffsetsPerTrigger="1")
    again.latestOffset(at, ReadMaxRows(1))
    assert client.lag("in", "g") == 3


def test_spark_is_told_how_far_a_query_is_behind(client: Client, dsn: str) -> None:
    client.push("in", [b"a"] * 10, partition="p")
    client.push("in", [b"a"] * 2, partition="q")
    source = reader(dsn, maxOffsetsPerTrigger="6")
    at = source.latestOffset(source.initialOffset(), ReadMaxRows(6))
    assert source.reportLatestOffset() == {
        "partitions": 2,
        "latestOffsets": 12,
        "offsetsBehindLatest": 6,
        "minOffsetsBehindLatest": 1,
        "maxOffsetsBehindLatest": 5,
        "avgOffsetsBehindLatest": 3.0,
    }
    source.latestOffset(at, ReadMaxRows(6))
    report = source.reportLatestOffset()
    assert report is not None
    assert report["offsetsBehindLatest"] == 0


def test_a_batch_waits_for_a_least_number_of_messages_for_so_long(client: Client, dsn: str) -> None:
    client.push("in", [b"a"] * 3, partition="p")
    source = reader(dsn, minOffsetsPerTrigger="4", maxTriggerDelay="1h")
    limit = source.getDefaultReadLimit()
    start = source.initialOffset()
    assert source.latestOffset(start, limit) == start
    client.push("in", b"b", partition="q")
    first = source.latestOffset(start, limit)
    assert planned(source, start, first) == {"p": (0, 3), "q": (0, 1)}
    client.push("in", b"b", partition="q")
    assert source.latestOffset(first, limit) == first
    # A trigger that wants all, one that reads to an end, and one that has waited for long enough, do not wait.
    assert source.latestOffset(first, ALL) != first
    impatient = reader(dsn, minOffsetsPerTrigger="4", maxTriggerDelay="0s")
    assert impatient.latestOffset(start, limit) != start
    bounded = reader(dsn, minOffsetsPerTrigger="40")
    bounded.prepareForTriggerAvailableNow()
    assert bounded.latestOffset(start, limit) != start


def test_a_stream_starts_at_a_moment_of_each_partition(client: Client, dsn: str) -> None:
    for partition in ("p", "q"):
        client.push("in", b"a", partition=partition)
    client.push("in", b"b", partition="p")
    moment = client.read("in", "p")[1].timestamp
    client.push("in", b"b", partition="q")
    source = StreamReader(
        read_options(
            {
                "url": dsn,
                "subscribe": "in",
                "startingOffsetsByTimestamp": json.dumps({"in": {"p": moment.isoformat()}}),
            },
            streaming=True,
        )
    )
    start = source.initialOffset()
    assert planned(source, start, source.latestOffset(start, ALL)) == {"p": (1, 2), "q": (0, 2)}


def test_a_database_that_is_down_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.streaming.START_PATIENCE", 0.1)
    source = reader("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(Unavailable, match="cannot be reached"):
        source.prepareForTriggerAvailableNow()
    with pytest.raises(Unavailable, match="cannot be reached"):
        source.latestOffset(source.initialOffset(), ALL)
