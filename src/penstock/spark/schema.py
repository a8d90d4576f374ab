"""The columns, as one literal: for Spark as DDL, for Arrow as a schema that matches it to the bit."""

from penstock.errors import MissingExtra

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtra("spark", "The Spark connector") from None

DDL = (
    "queue STRING NOT NULL, partition STRING NOT NULL, offset BIGINT NOT NULL, key STRING, value BINARY NOT NULL, "
    "headers STRING, timestamp TIMESTAMP NOT NULL, id STRING NOT NULL"
)

ARROW = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)

# What a row to be written may have; the rest of a row that was read tells where that one lay, and is left out.
WRITTEN = ("queue", "partition", "key", "value", "headers")
LEFT_OUT = ("offset", "timestamp", "id")
