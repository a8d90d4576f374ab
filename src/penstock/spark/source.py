"""Where Spark comes in: the data source named penstock, which only says who does what."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.options import WriteOptions, read_options, write_options
from penstock.spark.packing import check_columns
from penstock.spark.reading import BatchReader, FilteringReader
from penstock.spark.schema import DDL
from penstock.spark.streaming import StreamReader
from penstock.spark.writing import BatchWriter, StreamWriter


class PlainSource(DataSource):
    """The source for sessions in which Spark keeps its filters to itself."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(…)`."""
        return "penstock"

    def schema(self) -> str:
        """Return the columns."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        return BatchReader(read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a stream."""
        return StreamReader(read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch."""
        if overwrite:
            raise InvalidInput("a log is appended to: use mode('append')")
        return BatchWriter(self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return what writes a stream."""
        return StreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(self.options)
        check_columns(schema.fieldNames(), options.queue)
        return options


class PenstockSource(PlainSource):
    """The source for sessions in which Spark hands over its filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch and takes filters."""
        return FilteringReader(read_options(self.options, streaming=False))
