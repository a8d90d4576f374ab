"""An archive holds what the log held, and the two are read as one; a run that ends early has changed nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from penstock import Client, InvalidInput, Message, NotFound, PenstockError, Retryable
from penstock.broker.archives import ArchiveFile
from penstock.broker.ranges import PlannedPage
from penstock.pipeline.archiving import ArchiveResult, Archiving, archive
from penstock.settings import resolve
from penstock.spark import archives
from penstock.spark.archiving import Job, verify, write
from penstock.spark.options import read_options
from penstock.spark.planning import Task
from penstock.spark.reading import BatchReader

from .conftest import Lab, kept
from .test_reading import rows


def fill(client: Client) -> None:
    """Keys, headers, neither and both; null values; a merged segment; two days; a name that is no name of a folder."""
    client.push("in", [Message(b"a", key="k1"), Message(b"", headers={"h": "1"}), Message("ü".encode())], partition="p")
    for number in range(70):
        client.push("in", b"%d" % number, partition="s/=%", key="k")
    client.push("in", [b"more", None, b"more", None, b"more"], partition="p")
    list(client.maintain())
    client.push("in", [Message(b"both", key="ü", headers={"x": "y"})], partition="s/=%")
    with psycopg.connect(client.dsn) as connection:
        # A day passes: all but the newest segment of each partition are of yesterday.
        connection.execute(
            "UPDATE penstock.segments s SET created_at = created_at - interval '1 day',"
            " run_times = ARRAY(SELECT t - interval '1 day' FROM unnest(run_times) t)"
            " WHERE EXISTS (SELECT 1 FROM penstock.segments n"
            " WHERE n.partition_id = s.partition_id AND n.base_offset > s.base_offset)"
        )
        connection.execute("UPDATE penstock.segments SET run_times = NULL WHERE run_counts IS NULL")


def put_away(lab: Lab, **options: Any) -> ArchiveResult:
    return archive("in", str(lab.folder / "archive"), url=lab.dsn, spark=lab.spark, **options)


def archiving(lab: Lab, kind: type[Archiving] = Archiving) -> Archiving:
    return kind(resolve({"url": lab.dsn}), lab.spark, "in", str(lab.folder / "archive"))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def positions(client: Client) -> dict[str, tuple[int, int]]:
    return {one.name: (one.floor, one.head) for one in client.partitions("in")}


def flawless(client: Client) -> bool:
    return all(check.violations == 0 for check in client.verify())


def test_archive_and_log_are_read_as_the_log_was(lab: Lab) -> None:
    fill(lab.client)
    before = rows(lab.read())
    assert len(before) == 79

    # All of yesterday: whole segments, of which nothing is dropped yet.
    first = put_away(lab, before=datetime.now(UTC) - timedelta(hours=12))
    assert (first.runs, first.partitions, first.messages, first.dropped) == (1, 2, 73, 0)
    assert rows(lab.read()) == before
    # What is archived goes from the log, and from nowhere else.
    assert put_away(lab, before=datetime.now(UTC) - timedelta(hours=12), drop=True)[2:] == (0, 0, 0, 0, 0, 73)
    assert positions(lab.client) == {"p": (3, 8), "s/=%": (70, 71)}
    assert rows(lab.read()) == before
    assert rows(lab.read(startingOffsets='{"in": {"p": 1, "s/=%": 69}}', endingOffsets='{"in": {"p": 4}}')) == [
        row for row in before if row[1:3] in [("p", 1), ("p", 2), ("p", 3), ("s/=%", 69), ("s/=%", 70)]
    ]
    # The rest, and the queue goes on.
    rest = put_away(lab, drop=True)
    assert (rest.messages, rest.dropped) == (6, 6)
    assert positions(lab.client) == {"p": (8, 8), "s/=%": (71, 71)}
    assert rows(lab.read()) == before
    lab.client.push("in", [b"new"], partition="p")
    assert rows(lab.read())[:8] == before[:8]
    assert len(rows(lab.read())) == 80

    runs = lab.client.archives("in")
    assert [(run.messages, run.partitions) for run in runs] == [(73, 2), (6, 2)]
    assert sum(run.files for run in runs) == len(files(lab.folder))
    assert flawless(lab.client)


def test_spark_reads_the_files_by_queue_and_date(lab: Lab) -> None:
    fill(lab.client)
    expected = [row[1:] for row in rows(lab.read())]
    put_away(lab, drop=True)
    frame = lab.spark.read.parquet(str(lab.folder / "archive"))
    assert rows(frame) == [("in", *row) for row in expected]
    assert len(files(lab.folder)) == 2

    today = frame.where(f"queue = 'in' AND date = DATE '{datetime.now(UTC).date()}'")
    assert len(today.collect()) == 6
    assert files_read(today) == 1
    other = frame.where("queue = 'other'")
    assert other.collect() == []
    assert files_read(other) == 0


def files_read(frame: Any) -> int:
    """Return how many files the last run of a query has read, as Spark counts them."""
    leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return int(leaf.metrics().apply("numFiles").value())


def test_only_the_row_groups_that_are_wanted_are_read(lab: Lab) -> None:
    fill(lab.client)
    put_away(lab, drop=True)
    reader = BatchReader(
        read_options(
            {
                "url": lab.dsn,
                "subscribe": "in",
                "startingOffsets": '{"in": {"p": 4, "s/=%": -1}}',
                "endingOffsets": '{"in": {"p": 6}}',
            },
            streaming=False,
        )
    )
    (task,) = reader.partitions()
    assert isinstance(task, Task)
    (page,) = task.archived
    assert (page.partition, page.lies.start, page.lies.stop, page.lies.first_row) == ("p", 4, 6, 1)
    assert [row for batch in reader.read(task) for row in batch.column("offset").to_pylist()] == [4, 5]


def test_a_row_group_of_many_partitions_is_read_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number}" for number in range(300)]
    for _ in range(2):
        lab.client.push_many("in", [(name, b"x") for name in names])
    with psycopg.connect(lab.dsn) as connection:
        connection.execute(
            "UPDATE penstock.segments SET created_at = created_at - interval '1 day' WHERE base_offset = 0"
        )
    assert put_away(lab, drop=True).files == 2
    opened: list[str] = []
    read = archives.row_group_of

    def counting(location: str, path: str, *rest: Any) -> Any:
        opened.append(path)
        return read(location, path, *rest)

    monkeypatch.setattr(archives, "row_group_of", counting)
    reader = BatchReader(read_options({"url": lab.dsn, "subscribe": "in"}, streaming=False))
    found: dict[str, list[int]] = {}
    for task in reader.partitions():
        for batch in reader.read(task):
            for row in batch.to_pylist():
                found.setdefault(row["partition"], []).append(row["offset"])
    assert found == {name: [0, 1] for name in names}
    assert len(opened) == 2


def test_what_is_dropped_after_the_plan_is_read_from_the_archive(lab: Lab) -> None:
    fill(lab.client)
    put_away(lab, before=datetime.now(UTC) - timedelta(hours=12), drop=True)
    put_away(lab)
    reader = BatchReader(read_options({"url": lab.dsn, "subscribe": "in", "minPartitions": "3"}, streaming=False))
    tasks = [task for task in reader.partitions() if isinstance(task, Task)]
    assert sum(page.stop - page.start for task in tasks for page in task.pages) == 6
    assert put_away(lab, drop=True).dropped == 6
    found: dict[str, list[int]] = {"p": [], "s/=%": []}
    for task in tasks:
        for batch in reader.read(task):
            for row in batch.to_pylist():
                found[row["partition"]].append(row["offset"])
    # In order, with no gap and nothing twice.
    assert found == {"p": list(range(8)), "s/=%": list(range(71))}


def test_a_stream_finds_what_is_archived(lab: Lab) -> None:
    fill(lab.client)
    expected = kept(lab.client, "in")
    put_away(lab, before=datetime.now(UTC) - timedelta(hours=12), drop=True)
    lab.finish(lab.stream(maxBytesPerTrigger="2k", groupId="g"))
    assert lab.values() == expected
    # It goes on, also where what it has not read was archived and dropped meanwhile.
    lab.client.push("in", [b"later"] * 3, partition="p")
    lab.client.delete_group("in", "g")
    put_away(lab, drop=True)
    assert positions(lab.client) == {"p": (11, 11), "s/=%": (71, 71)}
    lab.finish(lab.stream(maxOffsetsPerTrigger="2"))
    assert lab.values() == sorted([*expected, b"later", b"later", b"later"])


def test_times_are_found_in_the_archive(lab: Lab) -> None:
    fill(lab.client)
    put_away(lab, drop=True)
    everything = rows(lab.read())
    # The time of a message in the middle of a range, one before all of them, and one between the days.
    times = [row[6] for row in everything if isinstance(row[6], datetime)]
    middle = next(row[6] for row in everything if row[1:3] == ("s/=%", 35))
    assert isinstance(middle, datetime)
    for moment, count in (
        (middle, len([time for time in times if time >= middle])),
        (datetime(2026, 1, 1), 79),
        (datetime.now() - timedelta(hours=12), 6),
    ):
        assert lab.read(startingTimestamp=moment.astimezone().isoformat()).count() == count


def test_without_the_archive_there_is_only_the_log(lab: Lab) -> None:
    fill(lab.client)
    put_away(lab, before=datetime.now(UTC) - timedelta(hours=12), drop=True)
    assert lab.read(archive="false").count() == 6
    with pytest.raises(PySparkException, match=r"offset 1 of partition \\?\"p\\?\" .* is not there"):
        lab.read(archive="false", startingOffsets='{"in": {"p": 1}}').collect()
    # A gap: what was purged and never archived is in neither place.
    lab.client.purge("in")
    lab.client.push("in", [b"x"], partition="p")
    assert lab.read().count() == 1
    with pytest.raises(PySparkException, match=r"offset 1 of partition \\?\"p\\?\" .* is not there"):
        lab.read(startingOffsets='{"in": {"p": 1}}').collect()
    # It goes on after the gap.
    assert put_away(lab, drop=True).messages == 1
    assert [row[2] for row in rows(lab.read())] == [8]
    assert flawless(lab.client)


def test_files_that_are_gone_or_replaced_are_named(lab: Lab) -> None:
    fill(lab.client)
    put_away(lab, drop=True)
    first, second = files(lab.folder)
    shutil.copy(first, second)
    with pytest.raises(PySparkException, match=r"does not hold offsets|cannot be read"):
        lab.read().collect()
    second.unlink()
    with pytest.raises(PySparkException, match=r"cannot be read"):
        lab.read().collect()


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(content)


def change_a_value(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    values = [value.upper() for value in table["value"].to_pylist()]
    _rewrite(path, table.set_column(table.schema.get_field_index("value"), table.schema.field("value"), [values]))


def change_a_header(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    headers = pc.fill_null(table["headers"], "{}")
    _rewrite(path, table.set_column(table.schema.get_field_index("headers"), "headers", headers))


def lose_a_row(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    _rewrite(path, table.slice(0, table.num_rows - 1))


def swap_rows(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    _rewrite(path, table.take([*range(40), 41, 40, *range(42, table.num_rows)]))


def _rewrite(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=table.num_rows)


@pytest.mark.parametrize("damage", [flip_a_byte, change_a_value, change_a_header, lose_a_row, swap_rows])
def test_every_kind_of_damage_is_noticed(client: Client, folder: Path, damage: Callable[[Path], None]) -> None:
    fill(client)
    with Archiving(resolve({"url": client.dsn}), None, "in", str(folder)) as run:
        (pages,) = run.plan()
        job = run.begin()
        (task,) = run.tasks(pages)
        written, other = write(job, task, "0")
        assert verify(job, written).bytes > 0
        damage(files(folder)[0])
        with pytest.raises(PenstockError, match=r"differs from the log in|cannot be read|holds \d+ messages"):
            verify(job, written)
        verify(job, other)


def test_a_damaged_file_is_noticed_before_anything_counts(lab: Lab) -> None:
    fill(lab.client)
    before, stood = rows(lab.read()), positions(lab.client)

    class Damaged(Archiving):
        def write(self, job: Job, pages: Sequence[PlannedPage]) -> list[ArchiveFile]:
            written = super().write(job, pages)
            swap_rows(files(lab.folder)[0])
            return written

    with archiving(lab, Damaged) as run:
        (pages,) = run.plan()
        with pytest.raises(PenstockError, match=r'differs from the log in offset, value, .* of partition "s/=%"'):
            run.run(pages)
        assert run.drop() == 0
    assert files(lab.folder) == []
    assert lab.client.archives() == []
    assert positions(lab.client) == stood
    assert rows(lab.read()) == before


def test_a_crash_before_the_last_step_is_harmless(lab: Lab) -> None:
    fill(lab.client)
    before = rows(lab.read())
    folder = lab.folder / "archive"
    # Of another database, or put there by hand: nobody's business.
    strange = folder / "queue=in" / "date=2026-01-01" / "strange.parquet"
    strange.parent.mkdir(parents=True)
    strange.touch()
    log = lab.folder / "driver.log"
    with log.open("w") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "spark.archive_driver", lab.dsn, str(folder)],
            cwd=Path(__file__).parent.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert driver.wait(170) == -signal.SIGKILL, log.read_text()[-3000:]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    left = [path for path in files(folder) if path != strange]
    assert len(left) == 2
    # Nobody reads what it left, and retention drops nothing of what it has not recorded.
    assert lab.client.archives() == []
    assert rows(lab.read()) == before
    lab.client.configure("in", retention_time=0.001)
    assert sum(done.dropped_messages for done in lab.client.maintain()) == 0

    assert put_away(lab, drop=True).messages == 79
    assert strange.exists()
    strange.unlink()
    assert not {path.name for path in left} & {path.name for path in files(folder)}
    assert rows(lab.read()) == before
    assert rows(lab.spark.read.parquet(str(folder))) == before
    assert flawless(lab.client)


def test_two_at_once_do_not_fight(lab: Lab) -> None:
    fill(lab.client)
    with archiving(lab) as first, archiving(lab) as second:
        (pages,) = first.plan()
        job = first.begin()
        written = first.verify(job, pages, first.write(job, pages))
        with pytest.raises(Retryable, match="is being archived by another process"):
            second.begin()
        # The first one loses its connection, and with it the queue; the second one takes over.
        with psycopg.connect(lab.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        (same,) = second.plan()
        second.run(same)
        with pytest.raises(PenstockError, match="was given up"):
            first.record(job, written)
    assert [run.messages for run in lab.client.archives()] == [79]
    assert flawless(lab.client)


def test_dropping_waits_for_groups(lab: Lab) -> None:
    fill(lab.client)
    lab.client.create_group("in", "slow")
    batch = lab.client.pop("in", "slow", partition="p", max_messages=3)
    assert batch is not None
    batch.ack()
    assert put_away(lab, drop=True).dropped == 3
    assert positions(lab.client) == {"p": (3, 8), "s/=%": (0, 71)}
    lab.client.configure("in", retention_rule="drop_and_count")
    assert put_away(lab, drop=True).dropped == 76


def test_one_partition_can_be_archived_alone(lab: Lab) -> None:
    fill(lab.client)
    assert put_away(lab, partitions=["p"], drop=True)[3:5] == (1, 8)
    assert positions(lab.client) == {"p": (8, 8), "s/=%": (0, 71)}
    assert put_away(lab)[3:5] == (1, 71)
    with pytest.raises(NotFound):
        put_away(lab, partitions=["nope"])
    with pytest.raises(NotFound):
        archive("nope", str(lab.folder), url=lab.dsn, spark=lab.spark)
    with pytest.raises(InvalidInput):
        archive("in", "", url=lab.dsn, spark=lab.spark)


def test_a_large_queue_is_archived_in_several_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.archiving.RUN_BYTES", 100)
    for number in range(4):
        lab.client.push("in", [b"x" * 100], partition=f"p{number % 2}")
    before = rows(lab.read())
    told: list[tuple[int, int]] = []
    location = f"file:{lab.folder}/archive"
    result = archive(
        "in", location, url=lab.dsn, spark=lab.spark, drop=True, progress=lambda done, total: told.append((done, total))
    )
    assert (result.runs, result.messages, result.location) == (2, 4, location)
    assert told == [(0, 4), (2, 4)]
    assert rows(lab.read()) == before
    assert flawless(lab.client)
