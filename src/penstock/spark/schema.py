"""The columns of messages, and which of them can be written."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DDL = (
    "queue STRING NOT NULL, partition STRING NOT NULL, offset BIGINT NOT NULL, key STRING, value BINARY, "
    "headers STRING, timestamp TIMESTAMP NOT NULL, id STRING NOT NULL"
)

# The columns that are written; the other columns of a row that was read are its old place, and are left out.
WRITTEN = ("queue", "partition", "key", "value", "headers")
LEFT_OUT = ("offset", "timestamp", "id")


# What a row that is no message may have: it says which message becomes a dead letter of the group, and why.
DEAD = ("dead_queue", "dead_partition", "dead_offset", "dead_reason", "dead_error")
# A copy of that message, which the log may not have any more, and which row of several messages failed.
DEAD_COPY = ("dead_value", "dead_key", "dead_headers", "dead_timestamp", "dead_row")


def check_columns(names: Sequence[str], queue: str | None, group: str | None = None) -> None:
    """Refuse a DataFrame that cannot be written."""
    if "value" not in names:
        raise InvalidInput(f"there is no column value; the columns are {', '.join(names)}: name one of them value")
    if queue is None and "queue" not in names:
        raise InvalidInput("there is no target: give the option queue, or a column queue")
    dead = [name for name in DEAD if name in names]
    if dead and (group is None or len(dead) < len(DEAD)):
        raise InvalidInput(f"dead letters need the option groupId and the columns {', '.join(DEAD)}")
    unknown = [name for name in names if name not in (*WRITTEN, *LEFT_OUT, *DEAD, *DEAD_COPY)]
    if unknown:
        raise InvalidInput(
            f"column {', '.join(unknown)} cannot be written; the columns are {', '.join(WRITTEN)} "
            f"({', '.join(LEFT_OUT)} are left out)"
        )


def check_types(schema: "StructType") -> None:
    """Refuse columns of a type that cannot be written; numbers and times are taken as names and keys, as their text."""
    for field in schema.fields:
        # Without a string's collation.
        kind = field.dataType.simpleString().split(" ")[0]
        if field.name == "value" and kind not in ("string", "binary"):
            raise InvalidInput(
                f"column value is {kind}, and must be string or binary: write to_json(…) or CAST(… AS STRING) AS value"
            )
        if field.name == "headers" and kind not in ("string", "map<string,string>", "void"):
            raise InvalidInput(
                f"column headers is {kind}, and must be map<string,string> or the JSON of one as a string"
            )
        if field.name in ("queue", "partition", "key") and kind.startswith(("struct<", "array<", "map<")):
            raise InvalidInput(f"column {field.name} is {kind}, and must be a string")


def value_columns(text: str, message_column: str, *, with_value: bool = False) -> "StructType":
    """Return the columns of a schema's JSON, all of which may be null, and one that says which message it was."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

    message = StructType(
        [
            StructField("queue", StringType(), False),
            StructField("partition", StringType(), False),
            StructField("offset", LongType(), False),
            StructField("key", StringType()),
            StructField("headers", StringType()),
            StructField("timestamp", TimestampType(), False),
            StructField("id", StringType(), False),
            *([StructField("value", BinaryType())] if with_value else []),
        ]
    )
    columns = StructType.fromJson(_nullable(json.loads(text)))
    return StructType([*columns.fields, StructField(message_column, message, False)])


def _nullable(kind: Any) -> Any:
    """Return a type in which everything may be null, as it may in JSON."""
    if isinstance(kind, list):
        return [_nullable(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    changed = {name: _nullable(part) for name, part in kind.items() if name != "metadata"}
    for name in ("nullable", "containsNull", "valueContainsNull"):
        if name in changed:
            changed[name] = True
    return changed | {"metadata": kind["metadata"]} if "metadata" in kind else changed
