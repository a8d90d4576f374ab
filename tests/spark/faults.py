"""Sinks that fail or die at a chosen moment, once. Spark's processes import them from here."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.jobs import current_job
from penstock.spark.options import WriteOptions
from penstock.spark.source import PlainSource
from penstock.spark.writing import StreamWriter

FAULTS = ("step", "marker", "victim", "kill", "stop", "slow")
STEPS = ("before_staging", "after_staging", "before_publish", "after_publish")


class FaultyWriter(StreamWriter):
    """A writer that does something dreadful at one step, if nobody did before."""

    def __init__(self, options: WriteOptions, faults: dict[str, str]) -> None:
        super().__init__(options)
        self.step, self.marker, self.faults = faults["step"], Path(faults["marker"]), faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write, and fail before or after."""
        self._reach("before_staging")
        message = super().write(iterator)
        self._reach("after_staging")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, and fail before or after."""
        self._reach("before_publish")
        super().commit(messages, batchId)
        self._reach("after_publish")

    def _reach(self, step: str) -> None:
        if step != self.step:
            return
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        if "victim" in self.faults:
            os.killpg(int(self.faults["victim"]), signal.SIGKILL)
            # Spark is dead and cannot tell this process to end.
            time.sleep(600)
        elif self.faults.get("kill") == "executor":
            os.kill(_executor(), signal.SIGKILL)
            time.sleep(600)
        elif "stop" in self.faults or "slow" in self.faults:
            # Somebody stops the driver meanwhile, or starts another attempt, and lets this one go on.
            deadline = time.monotonic() + 120
            while not (self.marker.parent / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        else:
            raise RuntimeError(f"failed {step}")


def _executor() -> int:
    """Return the process id of the Java that this task runs for."""
    process = os.getppid()
    while b"java" not in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]:
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return process


class FaultySource(PlainSource):
    """The source `faulty`, with a sink that fails: its options `step` and `marker` say when, the others how."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(…)`."""
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer that fails at one step."""
        faults = {name: self.options[name] for name in FAULTS if name in self.options}
        plain = PlainSource({name: value for name, value in self.options.items() if name.lower() not in FAULTS})
        writer = plain.streamWriter(schema, overwrite)
        assert isinstance(writer, StreamWriter)
        return FaultyWriter(writer.options, faults)


class EpochFaults(StreamWriter):
    """A writer that fails once in each of the first epochs, each time at another step."""

    def __init__(self, options: WriteOptions, folder: str) -> None:
        super().__init__(options)
        self.folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write, and fail before or after."""
        job = current_job()
        assert job is not None
        self._reach("before_staging", job.epoch)
        message = super().write(iterator)
        self._reach("after_staging", job.epoch)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, and fail before or after."""
        self._reach("before_publish", batchId)
        super().commit(messages, batchId)
        self._reach("after_publish", batchId)

    def _reach(self, step: str, epoch: int) -> None:
        marker = Path(self.folder, step)
        if epoch < len(STEPS) and STEPS[epoch] == step and not marker.exists():
            marker.touch()
            raise RuntimeError(f"failed {step}")


def epoch_faults(folder: Path) -> type[PlainSource]:
    """Return a source named penstock whose sink fails in each of the first epochs."""
    place = str(folder)

    class Faulty(PlainSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer = PlainSource.streamWriter(self, schema, overwrite)
            assert isinstance(writer, StreamWriter)
            return EpochFaults(writer.options, place)

    return Faulty
