"""Rows that Spark's sink cannot take are refused by name, with their value, before anything is staged."""

from typing import Any

import pyarrow as pa
import pytest

from penstock import InvalidInput
from penstock.broker.staging import QueueLimits
from penstock.spark.packing import Packer

BYTES = b"caf\xe9"
NOT_TEXT = pa.array([b"fine", None, BYTES], pa.binary())

BAD_COLUMNS = {
    "a key that is not UTF-8": (
        {"key": NOT_TEXT.view(pa.string())},
        r"row 2 of task 5 \(queue 'out', key 'caf\\\\xe9'\) has a key that is not UTF-8: b'caf\\xe9'; nothing was",
    ),
    "a binary key that is not UTF-8": (
        {"key": NOT_TEXT},
        r"row 2 of task 5 .* has a key that is not UTF-8: b'caf\\xe9'",
    ),
    "a partition": ({"partition": NOT_TEXT.view(pa.string())}, r"row 2 of task 5 .* has a partition that is not UTF-8"),
    "headers that are not UTF-8": (
        {"headers": NOT_TEXT.view(pa.string())},
        r"row 2 of task 5 .* has headers that are not UTF-8: b'caf\\xe9'",
    ),
    "a map that is not UTF-8": (
        {"headers": pa.MapArray.from_arrays([0, 0, 0, 1], ["a"], pa.array([BYTES], pa.binary()).view(pa.string()))},
        r"row 2 of task 5 .* has headers that are not UTF-8: b'a=caf\\xe9'",
    ),
    "headers that end too soon": (
        {"headers": [None, None, '{"a": 1']},
        "row 2 .* headers that are not a JSON object of texts",
    ),
    "headers with a number": (
        {"headers": [None, "{}", '{"a": 1}']},
        "row 2 .* headers that are not a JSON object of texts",
    ),
    "headers with a null": (
        {"headers": pa.array([None, [], [("a", None)]], pa.map_(pa.string(), pa.string()))},
        "row 2 .* headers that are not a JSON object of texts",
    ),
    "headers with a NUL": ({"headers": [None, None, r'{"trace": "a\u0000b"}']}, "row 2 .* has headers that hold a NUL"),
    "a map with a NUL": (
        {"headers": pa.array([None, None, [("a\0", "b")]], pa.map_(pa.string(), pa.string()))},
        "row 2 .* has headers that hold a NUL",
    ),
    "headers with half a character": (
        {"headers": [None, None, r'{"a": "\ud800"}']},
        "row 2 .* headers that are not a JSON object of texts",
    ),
}


def packed(to: str | None = "out", /, **columns: Any) -> list[Any]:
    table = pa.table({"value": [b"a", b"b", b"c"], **columns})
    packer = Packer(to, 5)
    return list(packer.pack(table, {name: QueueLimits(100, 16) for name in packer.queues(table)}))


@pytest.mark.parametrize(("columns", "said"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_a_row_that_postgresql_could_not_read_again_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        packed(**columns)


def test_a_queue_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"row 2 of task 5 .* has a queue that is not UTF-8"):
        packed(None, queue=pa.array([b"out", b"out", BYTES], pa.binary()).view(pa.string()))


def test_a_backslash_and_digits_are_no_nul() -> None:
    (part,) = packed(partition=["p"] * 3, headers=[None, None, r'{"a": "\\u0000"}'])
    assert bytes(part.headers) == rb'{"a": "\\u0000"}'


def test_a_key_may_be_bytes_of_text() -> None:
    (part,) = packed(partition=["p"] * 3, key=pa.array([b"x", None, "é".encode()], pa.binary()))
    assert bytes(part.keys) == "xé".encode()
