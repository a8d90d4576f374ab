"""The limit: a Python source and sink that move the same Arrow batches and touch no database.

And the floor of a sink: the same batches, with the values of each written as one blob.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.spark.schema import DDL

BATCH = 60_000


class Synthetic(DataSource):
    """Options: `rows` in all, `tasks`, and `size` of each value; `quiet` for a stream without rows.

    A writer with a `url` writes blobs there.
    """

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(…)`."""
        return "synthetic"

    def schema(self) -> str:
        """Return the columns of penstock."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a source of rows."""
        return Rows(int(self.options["rows"]), int(self.options["tasks"]), int(self.options["size"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a source of one row a batch, or of none."""
        return Ticks(quiet="quiet" in self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a sink that counts, or one that writes blobs."""
        return Blobs(self.options["url"]) if "url" in self.options else Counting()


class Rows(DataSourceReader):
    """Makes one batch, and yields it as often as needed."""

    def __init__(self, rows: int, tasks: int, size: int) -> None:
        self.rows, self.tasks, self.size = rows, tasks, size

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        share = self.rows // self.tasks
        return [InputPartition(share + (self.rows % self.tasks if task == 0 else 0)) for task in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield so many rows."""
        whole = batch(min(BATCH, partition.value), self.size)
        left = partition.value
        while left > 0:
            yield whole.slice(0, min(left, whole.num_rows))
            left -= whole.num_rows


class Ticks(DataSourceStreamReader):
    """A stream that has one row whenever it is asked, or never has any."""

    def __init__(self, quiet: bool) -> None:
        self.step = 0 if quiet else 1

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the beginning."""
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return one more."""
        return {"tick": start["tick"] + self.step}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one task."""
        return [InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield one row."""
        yield batch(1, 100)


class Counting(DataSourceArrowWriter):
    """A sink that looks at nothing but the number of rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Count."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""


class Blobs(DataSourceArrowWriter):
    """A sink that writes the values of each batch as they lie in memory: a row a batch, a transaction a task."""

    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            for rows in iterator:
                body = memoryview(rows.column("value").buffers()[2])
                connection.execute("INSERT INTO blobs (body) VALUES (%b)", (body,))
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""


def batch(rows: int, size: int) -> Any:
    """Return rows like those of penstock."""
    from penstock.spark.columns import ARROW

    moment = pa.scalar(int(time.time() * 1_000_000), pa.timestamp("us", tz="UTC"))
    return pa.record_batch(
        [
            pa.repeat("bench", rows),
            pa.repeat("p0", rows),
            pa.array(range(rows), pa.int64()),
            pa.nulls(rows, pa.string()),
            pa.array([bytes([65 + number % 26]) * size for number in range(rows)], pa.binary()),
            pa.nulls(rows, pa.string()),
            pa.repeat(moment, rows),
            pa.repeat("01a1e1b9-b674-8000-8000-040000000000", rows),
        ],
        schema=ARROW,
    )
