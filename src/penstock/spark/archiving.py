"""What the tasks of an archive do: write Parquet files, read them back and compare, put them in place, and clean up.

Files are written where no reader of Parquet looks (a folder that begins with `_`), and moved to their place when they
are verified. All work on files is done in tasks: what a task can write here, a task can read back later.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import quote

from penstock.broker.archives import Archived, ArchivedRange, ArchiveFile
from penstock.errors import InvalidInput, PenstockError
from penstock.spark import archives
from penstock.spark.archives import ArchivedPage, filesystem
from penstock.spark.options import ReadOptions
from penstock.spark.planning import Page, Task

STAGING = "_penstock"
_ROW_GROUP_BYTES = 32 << 20
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Job:
    """A run: what is read, and where it is written to."""

    options: ReadOptions
    queue: str
    location: str
    run: str

    @property
    def staging(self) -> str:
        """The folder of the run, below the location."""
        return f"{STAGING}/{self.run}"


def queue_folder(queue: str) -> str:
    """Return the folder of a queue as Hive and Spark write it."""
    return f"queue={quote(queue, safe='')}"


def write(job: Job, task: Task, number: str) -> list[ArchiveFile]:
    """Write what a task was dealt: a file for each date. `number` names the attempt."""
    import pyarrow.parquet as pq

    found, base = filesystem(job.location)
    by_date: dict[date, _Rows] = {}
    ids = {page.partition: page.partition_id for page in task.pages}
    for batch in _log(job, task):
        for day, part, span in _by_date(batch, ids):
            by_date.setdefault(day, _Rows()).add(part, span)
    files = []
    for day, rows in sorted(by_date.items()):
        path = f"{queue_folder(job.queue)}/date={day.isoformat()}/{job.run}-{number}.parquet"
        _make_folder(found, f"{base}/{job.staging}/{path}")
        with (
            found.open_output_stream(f"{base}/{job.staging}/{path}") as sink,
            pq.ParquetWriter(
                sink,
                rows.schema,
                compression="zstd",
                use_dictionary=["partition", "key", "headers"],
                write_page_checksum=True,
            ) as writer,
        ):
            files.append(ArchiveFile(path, list(rows.write(writer))))
    return files


class _Rows:
    """The rows of one file, in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, tuple[int, str, int, int]]] = []

    @property
    def schema(self) -> Any:
        return self._parts[0][0].schema

    def add(self, part: Any, span: tuple[int, str, int, int]) -> None:
        """Add rows of one partition."""
        self._parts.append((part, span))

    def write(self, writer: Any) -> Iterator[ArchivedRange]:
        """Write row groups, and yield what lies where in them."""
        import pyarrow as pa

        group: list[tuple[Any, tuple[int, str, int, int]]] = []
        size = row_group = 0
        for index, (part, span) in enumerate(self._parts):
            group.append((part, span))
            size += part.nbytes
            if size >= _ROW_GROUP_BYTES or index + 1 == len(self._parts):
                table = pa.Table.from_batches([rows for rows, _ in group])
                writer.write_table(table, row_group_size=table.num_rows)
                yield from _ranges(group, row_group)
                group, size, row_group = [], 0, row_group + 1


def _ranges(group: list[tuple[Any, tuple[int, str, int, int]]], row_group: int) -> Iterator[ArchivedRange]:
    """Yield the ranges of a row group; neighbours that follow each other are one."""
    row = 0
    held: ArchivedRange | None = None
    for part, (number, name, start, stop) in group:
        times = part.column("timestamp")
        first, last = (times[index].as_py().astimezone(UTC) for index in (0, -1))
        if held is not None and (held.partition_id, held.stop) == (number, start):
            held = ArchivedRange(
                *(number, name, held.start, stop, row_group, held.first_row, held.bytes + part.nbytes),
                *(held.first_time, last),
            )
        else:
            if held is not None:
                yield held
            held = ArchivedRange(number, name, start, stop, row_group, row, part.nbytes, first, last)
        row += stop - start
    if held is not None:
        yield held


def _by_date(batch: Any, ids: dict[str, int]) -> Iterator[tuple[date, Any, tuple[int, str, int, int]]]:
    """Divide a record batch where partition or date change; yield the date, the rows, and whose offsets they are."""
    import numpy as np
    import pyarrow as pa

    names = batch.column("partition").dictionary_encode()
    days = np.asarray(batch.column("timestamp").cast(pa.timestamp("us")).view(pa.int64())) // 86_400_000_000
    offsets = np.asarray(batch.column("offset"))
    lanes = np.asarray(names.indices)
    changes = (np.diff(lanes) != 0) | (np.diff(days) != 0) | (np.diff(offsets) != 1)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    rows = batch.select(list(archives.COLUMNS))
    for low, high in pairwise(bounds):
        name = names.dictionary[int(lanes[low])].as_py()
        day = datetime.fromtimestamp(int(days[low]) * 86400, UTC).date()
        span = ids[name], name, int(offsets[low]), int(offsets[high - 1]) + 1
        yield day, rows.slice(low, high - low), span


def verify(job: Job, file: ArchiveFile) -> ArchiveFile:
    """Read a file back, compare it row for row with the log, and return it with its size and checksum."""
    import pyarrow.parquet as pq

    found, base = filesystem(job.location)
    path = f"{job.staging}/{file.path}"
    try:
        with found.open_input_file(f"{base}/{path}") as source, pq.ParquetFile(source) as parquet:
            rows = parquet.metadata.num_rows
    except (OSError, ValueError) as error:
        raise PenstockError(f"{job.location}/{path} cannot be read back: {error}") from None
    if rows != file.messages:
        raise PenstockError(f"{job.location}/{path} holds {rows} messages, and {file.messages} were written to it")
    for _, parts in groupby(file.ranges, lambda part: part.row_group):
        _compare(job, path, list(parts))
    size, digest = 0, blake2b(digest_size=16)
    with found.open_input_stream(f"{base}/{path}") as stream:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return ArchiveFile(file.path, file.ranges, size, digest.hexdigest())


def _compare(job: Job, path: str, parts: Sequence[ArchivedRange]) -> None:
    """Compare a row group with the log, as the connector reads the one and the other."""
    import pyarrow as pa

    from penstock.spark.columns import ARROW

    pages = [
        ArchivedPage(
            job.queue,
            part.partition,
            Archived(*(part.partition_id, part.start, part.stop, part.bytes), job.location, path, 0, *_place(part)),
        )
        for part in parts
    ]
    written = pa.Table.from_batches(archives.read(pages), ARROW)
    kept = pa.Table.from_batches(_log(job, Task([_page(job, part) for part in parts])), ARROW)
    if written.equals(kept):
        return
    row = 0
    for part in parts:
        mine, theirs = (table.slice(row, part.stop - part.start) for table in (written, kept))
        columns = [name for name in ARROW.names if not mine[name].equals(theirs[name])]
        if columns:
            raise PenstockError(
                f'{job.location}/{path} differs from the log in {", ".join(columns)} of partition "{part.partition}", '
                f"offsets {part.start} to {part.stop}; nothing was recorded"
            )
        row += part.stop - part.start
    raise PenstockError(f"{job.location}/{path} holds other messages than the log; nothing was recorded")


def _log(job: Job, task: Task) -> Iterator[Any]:
    """Read from the log what is archived, or say that somebody has removed it meanwhile."""
    from penstock.spark.reading import messages

    try:
        yield from messages(job.options, task)
    except InvalidInput as error:
        raise PenstockError(
            f"the log changed while it was archived, and nothing was recorded; run it again. {error}"
        ) from None


def _page(job: Job, part: ArchivedRange) -> Page:
    return Page(part.partition_id, job.queue, part.partition, part.start, part.stop, part.bytes)


def _place(part: ArchivedRange) -> tuple[int, int]:
    return part.row_group, part.first_row


def publish(job: Job, files: Sequence[ArchiveFile]) -> None:
    """Move verified files to their place."""
    found, base = filesystem(job.location)
    folders = set()
    for file in files:
        target = f"{base}/{file.path}"
        folders.add(_make_folder(found, target))
        _sync(found, f"{base}/{job.staging}/{file.path}")
        found.move(f"{base}/{job.staging}/{file.path}", target)
    for folder in folders:
        # The folder, and those above it, which may be as new.
        while folder.startswith(base):
            _sync(found, folder)
            folder = folder.rpartition("/")[0]


def clean(location: str, queue: str, run_name: str, *, everything: bool) -> None:
    """Remove what a run has left: its staging, and if it was never recorded, also what it has put in place."""
    from pyarrow import fs

    found, base = filesystem(location)
    if everything:
        folder = fs.FileSelector(f"{base}/{queue_folder(queue)}", allow_not_found=True, recursive=True)
        for info in found.get_file_info(folder):
            if info.base_name.startswith(f"{run_name}-"):
                found.delete_file(info.path)
    staging = found.get_file_info(f"{base}/{STAGING}/{run_name}")
    if staging.type == fs.FileType.Directory:
        found.delete_dir(staging.path)


def _make_folder(found: Any, path: str) -> str:
    folder = path.rpartition("/")[0]
    found.create_dir(folder, recursive=True)
    return folder


def _sync(found: Any, path: str) -> None:
    """See that it is on the disk: the log may be dropped next. Other stores are durable when a file is closed."""
    from pyarrow import fs

    if isinstance(found, fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
