"""An empty penstock for each test, and the few lines that every flow has."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock import Client
from penstock.pipeline import Flow
from penstock.pipeline.supervisor import Supervisor
from penstock.settings import resolve

ORDERS = "id long, customer string, amount double"


class Plant:
    """A penstock and a Spark, on which flows run."""

    def __init__(self, spark: SparkSession, client: Client, dsn: str, folder: Path) -> None:
        self.spark, self.client, self.dsn, self.folder = spark, client, dsn, folder
        self.said: list[str] = []

    def supervisor(self, flows: Sequence[Flow], **options: Any) -> Supervisor:
        settings = resolve({"url": self.dsn, "home": self.folder})
        return Supervisor(flows, settings, echo=self.said.append, backoff=0.1, **options)

    def drain(self, *flows: Flow, **options: Any) -> bool:
        """Run flows until they have read what is there; returns whether none failed."""
        return self.supervisor(flows, once=True, **options).run(self.spark)

    @contextmanager
    def running(self, *flows: Flow) -> Iterator[Supervisor]:
        """Run flows while the body runs."""
        supervisor = self.supervisor(flows)
        problems: list[BaseException] = []

        def run() -> None:
            try:
                supervisor.run(self.spark)
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield supervisor
        finally:
            supervisor.end()
            thread.join(60)
        assert not thread.is_alive()
        assert problems == []

    def state(self, flow: str) -> str:
        return next((info.state for info in self.client.flows() if info.name == flow), "unknown")

    def values(self, queue: str) -> list[Any]:
        """Return all values of a queue."""
        if queue not in [info.name for info in self.client.queues()]:
            return []
        return [
            message.json()
            for partition in self.client.partitions(queue)
            for message in self.client.scan(queue, partition.name)
        ]

    def number(self, queue: str, partition: str) -> int:
        """Return the id of a partition."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT p.partition_id FROM penstock.partitions p JOIN penstock.queues q USING (queue_id)"
                " WHERE q.name = %s AND p.name = %s",
                (queue, partition),
            ).fetchone()
        assert row is not None
        return int(row[0])

    def ids(self, queue: str) -> list[int]:
        return sorted(value["id"] for value in self.values(queue))

    def letters(self, queue: str = "in") -> Counter[str]:
        """Count the dead letters of a queue by reason."""
        return Counter(letter.reason for letter in self.client.dead_letters(queue, limit=100_000))


@pytest.fixture
def plant(spark: SparkSession, client: Client, dsn: str, folder: Path) -> Plant:
    """An empty penstock and a Spark."""
    return Plant(spark, client, dsn, folder)


def orders(low: int, high: int) -> list[dict[str, Any]]:
    """Return orders; every tenth has a negative amount."""
    return [
        {"id": number, "customer": f"c{number % 7}", "amount": -1.0 if number % 10 == 0 else number % 97 + 1.0}
        for number in range(low, high)
    ]
