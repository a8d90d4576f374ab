"""The archive as a part of the log: where ranges lie in Parquet files, and reading them as the connector's own columns.

A range is found by the database, down to the rows of a row group, and read by whoever wants it, so nobody lists folders
and nothing is read that is not wanted. What comes back is checked: it has the offsets that it should have.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.archives import Archived
from penstock.broker.operations.archives import PlanArchived
from penstock.errors import PenstockError, SetupError
from penstock.spark.connections import run
from penstock.spark.options import Target

if TYPE_CHECKING:
    from penstock.broker.places import Place

# As of a message, but for the queue, which is a folder.
COLUMNS = ("partition", "offset", "key", "value", "headers", "timestamp", "id")
_BATCH_BYTES = 8 << 20
# Spark and Hadoop have names of their own for what is the same store.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss", "wasb": "abfs"}


class ArchivedPage(NamedTuple):
    """Messages of a partition that lie in a file."""

    queue: str
    partition: str
    lies: Archived

    @property
    def messages(self) -> int:
        """How many they are."""
        return self.lies.stop - self.lies.start


def filesystem(location: str) -> tuple[Any, str]:
    """Return the file system of a location, and the location's path in it."""
    from pyarrow import fs

    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), location.rstrip("/") or "/"
    try:
        found, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
    except (ValueError, OSError, NotImplementedError) as error:
        raise SetupError(f"the archive at {location} cannot be opened: {error}") from None
    return found, path.rstrip("/") or "/"


def find(target: Target, ranges: "Sequence[tuple[Place, int, int, int]]") -> list[list[ArchivedPage]]:
    """Find for each range (place, partition, start, stop) the pages that hold it: all of it, or none."""
    columns = [list(column) for column in zip(*ranges, strict=True)]
    lies: list[Archived] = run(target, PlanArchived(*columns[1:])) if ranges else []
    rest = deque(lies)
    found = []
    for place, number, start, stop in ranges:
        pages, reached = [], start
        while rest and rest[0].partition_id == number and start <= rest[0].start < stop:
            pages.append(ArchivedPage(*place, rest.popleft()))
            reached = pages[-1].lies.stop if pages[-1].lies.start == reached else stop + 1
        found.append(pages if reached == stop else [])
    return found


def read(pages: Sequence[ArchivedPage]) -> Iterator[Any]:
    """Yield record batches of the connector's columns; pages of one row group that follow each other read it once."""
    for (location, path, _, row_group), together in groupby(pages, lambda page: page.lies[4:8]):
        table = row_group_of(location, path, row_group)
        held: list[Any] = []
        size = 0
        for page in together:
            part = table.slice(page.lies.first_row, page.messages)
            _check(page, part)
            held.append(part)
            size += page.lies.bytes
            if size >= _BATCH_BYTES:
                yield from _batches(page.queue, held)
                held, size = [], 0
        if held:
            yield from _batches(page.queue, held)


def _batches(queue: str, parts: list[Any]) -> Iterator[Any]:
    import pyarrow as pa

    from penstock.spark.columns import ARROW

    rows = pa.concat_tables(parts).combine_chunks().select(COLUMNS)
    whole = pa.table([pa.repeat(queue, rows.num_rows), *rows.columns], schema=ARROW)
    yield from whole.to_batches(max_chunksize=max(1, rows.num_rows * _BATCH_BYTES // max(rows.nbytes, 1)))


def row_group_of(location: str, path: str, row_group: int, columns: Sequence[str] = COLUMNS) -> Any:
    """Read a row group, with the checksums of its pages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found, base = filesystem(location)
    try:
        with (
            found.open_input_file(f"{base}/{path}") as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            return file.read_row_group(row_group, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise PenstockError(f"the archive's file {location}/{path} cannot be read: {error}") from None


def offset_at(page: Archived, moment: datetime) -> int:
    """Find the first message of a range that is not older than a moment; the range has one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times = row_group_of(page.location, page.path, page.row_group, ("timestamp",))["timestamp"]
    mine = times.slice(page.first_row, page.stop - page.start)
    older = pc.less(mine, pa.scalar(moment, mine.type))
    return page.start + int(pc.sum(older).as_py() or 0)


def _check(page: ArchivedPage, part: Any) -> None:
    """Refuse rows that are not those that the database knows."""
    lies = page.lies
    if part.num_rows == page.messages:
        first, last = part["offset"][0].as_py(), part["offset"][-1].as_py()
        names = {part["partition"][0].as_py(), part["partition"][-1].as_py()}
        if (first, last + 1) == (lies.start, lies.stop) and names == {page.partition}:
            return
    raise PenstockError(
        f"the archive's file {lies.location}/{lies.path} does not hold offsets {lies.start} to {lies.stop} of "
        f'partition "{page.partition}" of "{page.queue}", which it should: it was replaced or damaged'
    )
