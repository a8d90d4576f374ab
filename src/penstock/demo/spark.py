"""The part of the demo on Spark: read, transform and write, checked against what Python computes without it."""

import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter

from penstock.demo.stage import Stage
from penstock.errors import PenstockError

PAYMENTS = 5000
CUSTOMERS = 40
LARGE = 900
_SECONDS = 180


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
        with tempfile.TemporaryDirectory() as checkpoint:
            expected: Counter[str] = Counter()
            for half in range(2):
                payments = [(n * 7919 + half) % 1000 for n in range(PAYMENTS)]
                rows = [(f"c{n % CUSTOMERS}", {"cents": cents}) for n, cents in enumerate(payments)]
                self.client.push_many(self.stage.payments, rows)
                # The truth, without Spark.
                expected.update(customer for customer, payment in rows if payment["cents"] >= LARGE)
                self._job(checkpoint)
        found = {part.name: part.messages for part in self.client.partitions(self.stage.large)}
        self.stage.check("large payments of each customer, as Python counts them", found, dict(expected))
        self.stage.check("large payments written", sum(found.values()), sum(expected.values()))
        self.stage.check("lag of the Spark query", self.client.lag(self.stage.payments, "spark"), 0)

    def _job(self, checkpoint: str) -> None:
        """Run the query in a process of its own: Spark talks a lot on stderr."""
        words = [self.stage.payments, self.stage.large, checkpoint]
        done = subprocess.run(
            [sys.executable, "-m", "penstock.demo.spark_job", *words],
            input=self.client.dsn,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode:
            raise PenstockError(f"the demo's Spark job failed:\n{done.stderr[-2000:]}")
