"""The data source named penstock: it returns the readers and writers for what Spark asks.

Spark makes it again in a process for each step of a query, some of them for each batch. So each step imports what it
needs itself.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.options import MOST_TASKS, WriteOptions, check_read_options, read_options, write_options
from penstock.spark.schema import DDL, check_columns, check_types, value_columns
from penstock.spark.signing import signs_errors


@signs_errors
class PlainSource(DataSource):
    """The source for sessions in which Spark does not push filters down."""

    # A session registers a class of its own that has its number: where a query is planned, nobody knows the cores.
    most_tasks = MOST_TASKS

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(…)`."""
        return "penstock"

    def schema(self) -> str | StructType:
        """Return the columns: those of a message, or those that its value has.

        Spark asks for them when a reader is loaded, so what is wrong with its options is said there already.
        """
        check_read_options(self.options)
        given = {name.lower(): value for name, value in self.options.items()}
        if "valueschema" not in given:
            return DDL
        with_value = given.get("messagevalue", "").lower() == "true"
        return value_columns(given["valueschema"], given.get("messagecolumn", "_message"), with_value=with_value)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        from penstock.spark.reading import BatchReader

        return BatchReader(read_options(self.options, streaming=False, most_tasks=self.most_tasks))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a stream."""
        from penstock.spark.streaming import StreamReader

        return StreamReader(read_options(self.options, streaming=True, most_tasks=self.most_tasks))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch."""
        from penstock.spark.connections import require_database
        from penstock.spark.writing import BatchWriter

        if overwrite:
            raise InvalidInput("penstock supports appending only: use mode('append')")
        options = self._write_options(schema)
        require_database(options.target)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return what writes a stream."""
        from penstock.spark.writing import StreamWriter

        if overwrite:
            raise InvalidInput("penstock supports appending only: use outputMode('append')")
        options = self._write_options(schema)
        if options.name is not None:
            raise InvalidInput("batchName is for batches: a stream has its checkpoint")
        return StreamWriter(options)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(self.options)
        check_columns(schema.fieldNames(), options.queue, options.group)
        check_types(schema)
        return options


@signs_errors
class PenstockSource(PlainSource):
    """The source for sessions in which Spark pushes filters down."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch and takes filters."""
        from penstock.spark.reading import FilteringReader

        return FilteringReader(read_options(self.options, streaming=False, most_tasks=self.most_tasks))
