"""The columns, as one literal, and what of them can be written."""

from collections.abc import Sequence

from penstock.errors import InvalidInput

DDL = (
    "queue STRING NOT NULL, partition STRING NOT NULL, offset BIGINT NOT NULL, key STRING, value BINARY NOT NULL, "
    "headers STRING, timestamp TIMESTAMP NOT NULL, id STRING NOT NULL"
)

# What a row to be written may have; the rest of a row that was read tells where that one lay, and is left out.
WRITTEN = ("queue", "partition", "key", "value", "headers")
LEFT_OUT = ("offset", "timestamp", "id")


def check_columns(names: Sequence[str], queue: str | None) -> None:
    """Refuse a DataFrame that cannot be written."""
    if "value" not in names:
        raise InvalidInput(f"a row needs a value, and the columns are {', '.join(names)}: name one of them value")
    if queue is None and "queue" not in names:
        raise InvalidInput("say where to write: give the option queue, or a column queue")
    unknown = [name for name in names if name not in (*WRITTEN, *LEFT_OUT)]
    if unknown:
        raise InvalidInput(
            f"column {', '.join(unknown)} cannot be written; the columns are {', '.join(WRITTEN)} "
            f"({', '.join(LEFT_OUT)} are left out)"
        )
