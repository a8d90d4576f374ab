"""Numbers of JSON become decimals of a column, or say why not, whatever their exponent."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.columns import ARROW
from penstock.spark.parsing import Parser

NUMBER = "decimal(10,2)"
KINDS: dict[str, tuple[Any, str]] = {
    "a column": (NUMBER, "%s"),
    "in an array": ({"type": "array", "elementType": NUMBER, "containsNull": True}, "[null, %s]"),
    "in a map": ({"type": "map", "keyType": "string", "valueType": NUMBER, "valueContainsNull": True}, '{"k": %s}'),
    "in a struct": ({"type": "struct", "fields": [{"name": "n", "type": NUMBER, "nullable": True}]}, '{"n": %s}'),
}
FITTING = {
    "1.230": "1.23",
    "1e7": "10000000.00",
    "12345678.9": "12345678.90",
    "0e-99999999": "0.00",
    "0e999999999": "0.00",
    "0.000": "0.00",
}
UNFIT = (
    "1e-999999999",
    "1e999999999",
    "1e-3",
    "1.234",
    "1e8",
    "123456789",
    '"NaN"',
    '"sNaN"',
    '"-Infinity"',
    "9" * 9999,
)


def parse(kind: Any, values: list[bytes]) -> tuple[Any, list[Any]]:
    parser = Parser({"fields": [{"name": "price", "type": kind, "nullable": True}]}, "_message")
    count = len(values)
    columns = {
        **{name: pa.array(["x"] * count) for name in ("queue", "partition", "key", "headers", "id")},
        "offset": pa.array(range(count), pa.int64()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
    }
    return parser.parse(pa.record_batch([columns[field.name] for field in ARROW], schema=ARROW))


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_does_not_fit_its_decimal_is_put_aside_and_its_neighbours_are_read(kind: str) -> None:
    spark, form = KINDS[kind]
    values = [b'{"price": %s}' % (form % number).encode() for number in (*FITTING, *UNFIT)]
    batch, misfits = parse(spark, values)
    assert batch.num_rows == len(FITTING)
    assert sorted(misfit.row for misfit in misfits) == list(range(len(FITTING), len(values)))
    assert all("does not fit decimal(10,2)" in misfit.error and len(misfit.error) < 200 for misfit in misfits)


def test_a_zero_is_a_zero_whatever_its_exponent() -> None:
    batch, _ = parse(NUMBER, [b'{"price": %s}' % number.encode() for number in FITTING])
    assert batch.column("price").to_pylist() == [Decimal(number) for number in FITTING.values()]
