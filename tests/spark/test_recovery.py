"""Whatever is repeated, rolled back or late: input and output are equal, or the query refuses loudly."""

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.spark.jobs import Job
from penstock.spark.options import write_options
from penstock.spark.writing import Staged, publish, stage

from .conftest import Lab
from .faults import FaultySource
from .test_streaming import batches, push


def forget(lab: Lab, *kinds: str) -> int:
    """Remove the newest file of some parts of the checkpoint, as a power cut would; return its epoch."""
    newest = 0
    for kind in kinds:
        files = [path for path in (lab.folder / "checkpoint" / kind).iterdir() if path.name.isdigit()]
        newest = max(int(path.name) for path in files)
        (lab.folder / "checkpoint" / kind / str(newest)).unlink()
        (lab.folder / "checkpoint" / kind / f".{newest}.crc").unlink(missing_ok=True)
    return newest


def run_failing(lab: Lab, step: str, marker: Path, **options: str) -> None:
    """Run the query with a sink that fails once, and see it fail."""
    lab.spark.dataSource.register(FaultySource)
    with pytest.raises(StreamingQueryException, match=f"failed {step}"):
        lab.finish(lab.stream(**options), name="faulty", step=step, marker=str(marker))


def test_an_epoch_that_is_run_twice_is_published_once(lab: Lab) -> None:
    expected = push(lab.client, 0, 50)
    lab.finish(lab.stream(maxOffsetsPerTrigger="20"))
    forget(lab, "commits")
    expected = sorted(expected + push(lab.client, 50, 60))
    lab.finish(lab.stream(maxOffsetsPerTrigger="20"))
    assert lab.values() == expected


def test_a_checkpoint_that_went_back_two_epochs_reads_the_same_under_the_same_epoch(lab: Lab) -> None:
    expected = push(lab.client, 0, 50)
    lab.finish(lab.stream(maxOffsetsPerTrigger="20"))
    assert forget(lab, "offsets", "commits") == 2
    assert forget(lab, "offsets", "commits") == 1
    expected = sorted(expected + push(lab.client, 50, 200))
    lab.finish(lab.stream())
    assert lab.values() == expected
    assert batches(lab) == [20, 20, 10, 150]


def test_a_checkpoint_that_lost_its_first_epoch_is_refused_and_nothing_is_written(lab: Lab) -> None:
    expected = push(lab.client, 0, 50)
    lab.finish(lab.stream())
    forget(lab, "offsets", "commits")
    push(lab.client, 50, 60)
    with pytest.raises(StreamingQueryException, match="published already, and with other content"):
        lab.finish(lab.stream())
    assert lab.values() == expected


def test_batch_0_from_the_end_is_the_same_when_it_is_run_again_after_the_head_has_moved(lab: Lab) -> None:
    push(lab.client, 0, 50)
    lab.finish(lab.stream(startingOffsets="latest"))
    forget(lab, "commits")
    expected = push(lab.client, 50, 130)
    lab.finish(lab.stream(startingOffsets="latest"))
    assert lab.values() == expected


def test_batch_0_that_was_planned_and_not_published_is_the_same_when_the_head_has_moved(lab: Lab) -> None:
    expected = push(lab.client, 0, 50)
    run_failing(lab, "before_publish", lab.folder / "marker")
    expected = sorted(expected + push(lab.client, 50, 130))
    lab.finish(lab.stream())
    assert lab.values() == expected
    assert batches(lab) == [50, 80]


@pytest.mark.parametrize("step", ["before_staging", "after_staging", "after_publish"])
def test_a_failure_at_any_step_neither_loses_nor_repeats(lab: Lab, step: str) -> None:
    expected = push(lab.client, 0, 50)
    run_failing(lab, step, lab.folder / "marker", maxOffsetsPerTrigger="20")
    expected = sorted(expected + push(lab.client, 50, 60))
    lab.finish(lab.stream(maxOffsetsPerTrigger="20"))
    assert lab.values() == expected
    with psycopg.connect(lab.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM penstock.stages").fetchone() == (0,)


def test_a_task_of_a_former_run_that_finishes_late_changes_nothing(lab: Lab) -> None:
    expected = push(lab.client, 0, 50)
    lab.finish(lab.stream())
    with psycopg.connect(lab.dsn) as connection:
        query, former = connection.execute("SELECT writer, run FROM penstock.sink_commits").fetchall()[0]
    expected = sorted(expected + push(lab.client, 50, 60))
    lab.finish(lab.stream())
    assert batches(lab) == [50, 10]

    options = write_options({"url": lab.dsn, "queue": "out"})
    job = Job(query, former, 2)
    late = stage(options, job, iter([pa.record_batch({"value": pa.array([b"late"])})]))
    assert isinstance(late, Staged)
    with pytest.raises(PenstockError, match="replaced by a newer one"):
        publish(options, job, [late])
    expected = sorted(expected + push(lab.client, 60, 70))
    lab.finish(lab.stream())
    assert lab.values() == expected


@pytest.mark.parametrize("by_session", [False, True], ids=["option", "session"])
def test_other_files_under_an_epoch_that_was_published_are_refused(
    lab: Lab, spark: SparkSession, folder: Path, by_session: bool
) -> None:
    files, checkpoint = folder / "files", folder / "checkpoints" / "copy"
    files.mkdir()

    def copy() -> None:
        read = spark.readStream.format("text").load(str(files))
        sink = read.writeStream.format("penstock").option("url", lab.dsn).option("queue", "out").queryName("copy")
        sink = sink if by_session else sink.option("checkpointLocation", str(checkpoint))
        assert sink.trigger(availableNow=True).start().awaitTermination(60)

    if by_session:
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(checkpoint.parent))
    try:
        for name in ("a", "b"):
            (files / f"{name}.txt").write_text(f"{name}\n")
            copy()
        for kind in ("offsets", "commits", "sources/0"):
            for name in ("1", ".1.crc"):
                (checkpoint / kind / name).unlink()
        # The same file under the same number is the same epoch.
        copy()
        for kind in ("offsets", "commits", "sources/0"):
            for name in ("1", ".1.crc"):
                (checkpoint / kind / name).unlink()
        (files / "b.txt").unlink()
        (files / "c.txt").write_text("c\n")
        with pytest.raises(StreamingQueryException, match="with other content"):
            copy()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")

    assert sorted(lab.values("out")) == [b"a", b"b"]
