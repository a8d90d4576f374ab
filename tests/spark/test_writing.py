"""A batch write is all or nothing, puts each row where it belongs, and names the row that it cannot take."""

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from penstock import Message

from .conftest import Lab


def left_behind(lab: Lab) -> int:
    """Return how many stages there are."""
    with psycopg.connect(lab.dsn) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM penstock.list_stages()").fetchall()
    return int(count)


def test_rows_go_to_their_queue_and_partition_with_key_and_headers(lab: Lab) -> None:
    frame = lab.spark.createDataFrame(
        [
            ("a", "p", "k1", b"1", {"h": "x", "i": "y"}),
            ("a", "q", None, b"2", None),
            ("b", "p", "k3", b"", {}),
            ("a", "p", None, b"4", None),
        ],
        "queue STRING, partition STRING, key STRING, value BINARY, headers MAP<STRING, STRING>",
    ).coalesce(1)
    lab.write(frame)
    found = {
        (info.name, partition.name): [
            (message.key, message.value, message.headers) for message in lab.client.scan(info.name, partition.name)
        ]
        for info in lab.client.queues()
        for partition in lab.client.partitions(info.name)
    }
    assert found == {
        ("a", "p"): [("k1", b"1", {"h": "x", "i": "y"}), (None, b"4", None)],
        ("a", "q"): [(None, b"2", None)],
        ("b", "p"): [("k3", b"", None)],
    }
    assert left_behind(lab) == 0


def test_a_key_picks_the_partition_that_it_picks_for_the_client(lab: Lab) -> None:
    for queue in ("out", "twin"):
        lab.client.create(queue, spread=16)
    keys = [f"k{number}" for number in range(50)]
    frame = lab.spark.range(50).select(
        f.concat(f.lit("k"), "id").alias("key"), f.col("id").cast("string").alias("value")
    )
    lab.write(frame, queue="out")
    lab.client.push_many("twin", [Message(b"%d" % number, key=key) for number, key in enumerate(keys)])

    def placed(queue: str) -> dict[str, set[bytes | None]]:
        return {
            partition.name: {message.value for message in lab.client.scan(queue, partition.name)}
            for partition in lab.client.partitions(queue)
        }

    assert placed("out") == placed("twin")


def test_many_rows_of_many_partitions_keep_their_order(lab: Lab) -> None:
    frame = lab.spark.range(0, 30_000, 1, 1).select(
        (f.col("id") % 7).cast("string").alias("partition"), f.col("id").cast("string").alias("value")
    )
    lab.write(frame, queue="out")
    for partition in lab.client.partitions("out"):
        values = [message.json() for message in lab.client.scan("out", partition.name)]
        assert values == list(range(int(partition.name), 30_000, 7))


def test_scattered_rows_keep_their_keys_and_headers(lab: Lab) -> None:
    frame = lab.spark.range(0, 3_000, 1, 1).selectExpr(
        "concat('p', id % 100) AS partition",
        "CAST(id AS STRING) AS value",
        "if(id % 3 = 0, NULL, concat('k', id)) AS key",
        "if(id % 5 = 0, concat('{\"n\":\"', id, '\"}'), NULL) AS headers",
    )
    lab.write(frame, queue="out")
    found = [
        (m.json(), m.partition, m.key, m.headers)
        for partition in lab.client.partitions("out")
        for m in lab.client.scan("out", partition.name)
    ]
    assert sorted(found, key=lambda row: row[0]) == [
        (n, f"p{n % 100}", f"k{n}" if n % 3 else None, None if n % 5 else {"n": str(n)}) for n in range(3_000)
    ]


def test_names_of_any_kind_arrive(lab: Lab) -> None:
    names = ['a"b', "c\\d", "{e,f}", "NULL", " g ", "ü,'", 'h\\"']
    frame = lab.spark.createDataFrame(
        [(name, name, b"v") for name in names], "queue STRING, partition STRING, value BINARY"
    )
    lab.write(frame)
    found = [(queue.name, part.name) for queue in lab.client.queues() for part in lab.client.partitions(queue.name)]
    assert sorted(found) == sorted((name, name) for name in names)


def test_what_was_read_can_be_written(lab: Lab) -> None:
    lab.client.push("in", [Message(b"a", key="k", headers={"h": "1"}), b"b"], partition="p")
    lab.write(lab.read(), queue="out")
    assert [(m.value, m.key, m.headers, m.partition) for m in lab.client.read("out", "p")] == [
        (b"a", "k", {"h": "1"}, "p"),
        (b"b", None, None, "p"),
    ]


def test_null_values_come_back_from_the_log_as_null(lab: Lab) -> None:
    frame = lab.spark.range(0, 3_000, 1, 1).selectExpr(
        "concat('p', id % 3) AS partition",
        "if(id % 4 = 0, NULL, CAST(id AS STRING)) AS value",
        "CAST(id AS STRING) AS key",
    )
    lab.write(frame, queue="in")
    expected = {str(number): b"%d" % number if number % 4 else None for number in range(3_000)}
    logged = [message for name in ("p0", "p1", "p2") for message in lab.client.read("in", name)]
    assert {message.key: message.value for message in logged} == expected
    read = lab.read()
    assert read.schema["value"].nullable
    assert {row.key: row.value for row in read.collect()} == expected
    assert read.where("value IS NULL").count() == 750
    lab.write(read, queue="out")
    copied = [message for name in ("p0", "p1", "p2") for message in lab.client.read("out", name)]
    assert [(message.key, message.value) for message in copied] == [(message.key, message.value) for message in logged]


BAD_ROWS = {
    "too large": (["repeat('x', if(id = 7, 11, 10)) AS value"], r"row 3 of task 1 .* of 11 bytes, .* allows 10"),
    "empty key": (["'v' AS value", "if(id = 7, '', 'k') AS key"], r"row 3 of task 1 .* key that is empty"),
    "headers": (["'v' AS value", "if(id = 7, '[1]', '{}') AS headers"], r"row 3 of task 1 .* not a JSON object of"),
}


@pytest.mark.parametrize(("columns", "said"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_row_that_cannot_be_taken_is_named_and_nothing_is_published(lab: Lab, columns: list[str], said: str) -> None:
    lab.client.create("out", max_message_bytes=10)
    frame = lab.spark.range(0, 8, 1, 2).selectExpr("'p' AS partition", *columns)
    with pytest.raises(PySparkException, match=said):
        lab.write(frame, queue="out")
    assert lab.values() == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["'x' AS body"], {"queue": "out"}, "there is no column value; the columns are body"),
        (["'x' AS value"], {}, "give the option queue, or a column queue"),
        (["'x' AS value", "1 AS colour"], {"queue": "out"}, "column colour cannot be written"),
        (["'x' AS value"], {"queue": "out", "topic": "t"}, "unknown option topic"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(
    lab: Lab, columns: list[str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        lab.write(lab.spark.range(1).selectExpr(*columns), **options)


def test_a_task_that_fails_after_others_are_done_publishes_nothing(lab: Lab) -> None:
    frame = lab.spark.range(0, 20, 1, 4).selectExpr(
        "CAST(if(id = 19, raise_error('enough'), id) AS STRING) AS value", "'p' AS partition"
    )
    with pytest.raises(PySparkException, match="enough"):
        lab.write(frame, queue="out")
    assert lab.values() == []
    lab.write(lab.spark.range(20).selectExpr("CAST(id AS STRING) AS value", "'p' AS partition"), queue="out")
    assert len(lab.values()) == 20


def test_overwriting_is_refused(lab: Lab) -> None:
    frame = lab.spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match="penstock supports appending only"):
        frame.write.format("penstock").option("url", lab.dsn).option("queue", "out").mode("overwrite").save()
