"""Sinks that fail or die at a chosen moment, once. Spark's processes import them from here."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.options import WriteOptions
from penstock.spark.source import PlainSource
from penstock.spark.writing import StreamWriter

STEPS = ("before_staging", "after_staging", "before_publish", "after_publish")


class FaultyWriter(StreamWriter):
    """A writer that does something dreadful at one step, if nobody did before."""

    def __init__(self, options: WriteOptions, step: str, marker: Path, victim: int | None) -> None:
        super().__init__(options)
        self.step, self.marker, self.victim = step, marker, victim

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
        if self.victim is None:
            raise RuntimeError(f"failed {step}")
        os.killpg(self.victim, signal.SIGKILL)
        # Spark is dead and cannot tell this process to end.
        time.sleep(600)


class FaultySource(PlainSource):
    """The source `faulty`, with a sink that fails: options `step`, `marker` and, to kill the driver, `victim`."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(…)`."""
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer that fails at one step."""
        step, marker, victim = (self.options.pop(name, None) for name in ("step", "marker", "victim"))
        options = self._write_options(schema)
        for name, value in (("step", step), ("marker", marker), ("victim", victim)):
            if value is not None:
                self.options[name] = value
        return FaultyWriter(options, str(step), Path(str(marker)), int(victim) if victim else None)
