"""The sink: what the client takes comes back as it was, and what it refuses the sink refuses, without a trace."""

import threading
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from evil.corpus import BYTES, JSON_TEXTS, MIB, TEXTS
from penstock import Client, PenstockError

from .conftest import Lab

ROW = "partition STRING, key STRING, value BINARY, headers MAP<STRING, STRING>"
VALUES = {name: value for name, value in {**BYTES, **JSON_TEXTS}.items() if len(value) <= MIB}
# As columns of a row, beside one that is well.
REFUSED = {
    "a key that is not UTF-8": "CAST(X'ff' AS STRING) AS key",
    "a NUL in a key": "CAST(X'610062' AS STRING) AS key",
    "an empty key": "'' AS key",
    "headers that are cut off": "'{\"a\": 1' AS headers",
    "an escaped NUL in a header": r"""r'{"trace":"a\u0000b"}' AS headers""",
    "half a surrogate pair in a header": r"""r'{"a":"\ud800"}' AS headers""",
    "a header that is a number": "'{\"a\": 1}' AS headers",
    "headers that are nested": f"repeat('[', {2_000}) AS headers",
    "a partition that is not UTF-8": "CAST(X'ff' AS STRING) AS partition",
    "a control character in a partition": "CAST(X'0a' AS STRING) AS partition",
    "an empty partition": "'' AS partition",
    "any partition": "'*' AS partition",
    "a queue that is not UTF-8": "CAST(X'ff' AS STRING) AS queue",
}


def taken(client: Client, partition: str = "p", key: str | None = None) -> bool:
    try:
        client.push("twin", b"x", partition=partition, key=key)
    except PenstockError:
        return False
    return True


def test_what_the_client_takes_the_sink_takes_and_both_give_it_back(lab: Lab) -> None:
    texts = [text for text in TEXTS.values() if "\0" not in text and text.encode("utf-8", "replace").decode() == text]
    rows: list[tuple[str, str | None, bytes, dict[str, str] | None]]
    rows = [("values", None, value, None) for value in VALUES.values()]
    rows += [("keys", text, b"x", {"h": text}) for text in texts if taken(lab.client, key=text)]
    rows += [(text, None, b"x", None) for text in texts if taken(lab.client, partition=text)]
    lab.write(lab.spark.createDataFrame(rows, ROW).coalesce(1), queue="in")
    logged = [
        (message.partition, message.key, message.value, message.headers)
        for partition in lab.client.partitions("in")
        for message in lab.client.scan("in", partition.name)
    ]
    assert sorted(logged, key=str) == sorted(rows, key=str)
    lab.write(lab.read(), queue="out")
    copied = [
        (message.partition, message.key, message.value, message.headers)
        for partition in lab.client.partitions("out")
        for message in lab.client.scan("out", partition.name)
    ]
    assert sorted(copied, key=str) == sorted(logged, key=str)
    assert [check for check in lab.client.verify() if check.violations] == []


@pytest.mark.parametrize("column", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_as_text_is_refused(lab: Lab, column: str) -> None:
    lab.client.create("out")
    place = [] if column.endswith("queue") else ["'out' AS queue"]
    with pytest.raises(PySparkException, match=r"penstock\.errors\.InvalidInput"):
        lab.write(lab.spark.range(0, 1, 1, 1).selectExpr("'v' AS value", column, *place))
    assert lab.values() == []
    assert [queue.name for queue in lab.client.queues()] == ["out"]
    assert [check for check in lab.client.verify() if check.violations] == []


def error_of(spark: SparkSession, action: Callable[[], object]) -> str:
    """Return what an action fails with; one that hangs is interrupted."""
    errors: list[str] = []

    def run() -> None:
        spark.addTag("an action")
        try:
            action()
        except PySparkException as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    if thread.is_alive():
        spark.interruptTag("an action")
        pytest.fail("Spark waits for the text of the exception")
    return errors[0]


def test_a_function_whose_error_utf_8_cannot_encode_fails_its_job(spark: SparkSession) -> None:
    @functions.udf("string")
    def failing(number):  # type: ignore[no-untyped-def]
        raise ValueError("half a pair: \ud800")

    error = error_of(spark, lambda: spark.range(1).select(failing("id")).collect())
    assert "ValueError: half a pair: \\ud800" in error


def test_an_option_that_utf_8_cannot_encode_is_refused(lab: Lab) -> None:
    lab.client.push("in", b"x", partition="p")
    error = error_of(lab.spark, lambda: lab.read(assign=r'{"in": ["\ud800"]}').collect())
    assert "\\ud800" in error
