"""The part of the demo on Spark: read, transform and write, checked against what Python computes without it."""

import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import PIPE

from penstock.demo.stage import Stage
from penstock.errors import PenstockError

PAYMENTS = 5000
CUSTOMERS = 40
LARGE = 900
_SECONDS = 30


class Spark:
    """A stream on a local Spark, run twice with more in between."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client = stage.client

    def run(self) -> None:
        """Show it, where Spark is installed."""
        if importlib.util.find_spec("pyspark") is None:
            self.stage.echo("11. Spark is not installed: pip install 'penstock[spark]'")
            return
        self.stage.echo("11. Payments through a local Spark, from queue to queue, exactly once")
        expected: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as checkpoint, self._job(checkpoint) as job:
            for half in range(2):
                payments = [(n * 7919 + half) % 1000 for n in range(PAYMENTS)]
                rows = [(f"c{n % CUSTOMERS}", {"cents": cents}) for n, cents in enumerate(payments)]
                self.client.push_many(self.stage.payments, rows)
                # The truth, without Spark.
                expected.update(customer for customer, payment in rows if payment["cents"] >= LARGE)
                job()
        found = {part.name: part.messages for part in self.client.partitions(self.stage.large)}
        self.stage.check("large payments of each customer, as Python counts them", found, dict(expected))
        self.stage.check("large payments written", sum(found.values()), sum(expected.values()))
        self.stage.check("lag of the Spark query", self.client.lag(self.stage.payments, "spark"), 0)

    @contextmanager
    def _job(self, checkpoint: str) -> Iterator[Callable[[], None]]:
        """Start the job, in a process of its own since Spark talks a lot on stderr; each call runs it once."""
        words = [sys.executable, "-m", "penstock.demo.spark_job", self.stage.payments, self.stage.large, checkpoint]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=log, text=True)
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            try:
                process.stdin.write(f"{self.client.dsn}\n")

                def once() -> None:
                    assert process.stdin is not None  # noqa: S101
                    assert process.stdout is not None  # noqa: S101
                    process.stdin.write("\n")
                    process.stdin.flush()
                    if process.stdout.readline() != "done\n":
                        log.seek(0)
                        raise PenstockError(f"the demo's Spark job failed:\n{log.read()[-2000:]}")

                yield once
                process.stdin.close()
                process.wait(_SECONDS)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
