"""One Spark for all tests, since its start takes longer than most of them, and an empty penstock for each."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock.spark
from penstock import Client
from sessions import end_spark, leave_handlers_alone


@pytest.fixture(scope="session")
def spark_folder() -> Iterator[Path]:
    """Where the shared Spark writes its log, and what its page would show."""
    path = Path(tempfile.mkdtemp(prefix="penstock-spark-log-"))
    (path / "events").mkdir()
    (path / "log4j2.properties").write_text(
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = File\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {path}/spark.log\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %p %c: %m%n%ex\n"
    )
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(spark_folder: Path) -> Iterator[SparkSession]:
    """A session on this machine, with two cores."""
    leave_handlers_alone()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's Python processes find the faulty sinks of these tests there.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    log_settings = spark_folder / "log4j2.properties"
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={log_settings}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(spark_folder / "events"),
    }
    session = penstock.spark.session("tests", "local[2]", settings)
    yield session
    end_spark()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session, in which Spark hands its filters over."""
    penstock.spark.register(spark, push_filters=True)
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    penstock.spark.register(spark)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for checkpoints."""
    path = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def connect_port() -> Iterator[None]:
    """Have Spark Connect's port for oneself: every local server listens there, and tests run side by side."""
    with (Path(tempfile.gettempdir()) / f"penstock-tests-connect-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept(client: Client, queue: str) -> list[bytes]:
    """Return all values of a queue that are not null, sorted."""
    if queue not in [info.name for info in client.queues()]:
        return []
    return sorted(
        message.value
        for partition in client.partitions(queue)
        for message in client.scan(queue, partition.name)
        if message.value is not None
    )


class Lab:
    """A penstock and a Spark, and the few lines that every query has."""

    def __init__(self, spark: SparkSession, client: Client, dsn: str, folder: Path) -> None:
        self.spark, self.client, self.dsn, self.folder = spark, client, dsn, folder

    def read(self, queue: str = "in", **options: str) -> DataFrame:
        """Read a batch."""
        reader = self.spark.read.format("penstock").option("url", self.dsn)
        return reader.options(
            **(options if {"assign", "subscribePattern"} & options.keys() else {"subscribe": queue} | options)
        ).load()

    def stream(self, queue: str = "in", **options: str) -> DataFrame:
        """Read a stream, from the beginning unless told otherwise."""
        chosen = {"subscribe": queue, "startingOffsets": "earliest"} | options
        return self.spark.readStream.format("penstock").option("url", self.dsn).options(**chosen).load()

    def write(self, frame: DataFrame, **options: str) -> None:
        """Write a batch."""
        frame.write.format("penstock").option("url", self.dsn).options(**options).mode("append").save()

    def start(
        self, frame: DataFrame, options: dict[str, str] | None = None, *, name: str = "penstock", now: bool = True
    ) -> StreamingQuery:
        """Start a query that writes to queue `out`."""
        writer = frame.writeStream.format(name).option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.options(**({"url": self.dsn, "queue": "out"} | (options or {})))
        return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()

    def finish(self, frame: DataFrame, name: str = "penstock", **options: str) -> None:
        """Run a query until it has read what is there."""
        assert self.start(frame, options, name=name).awaitTermination(120)

    def values(self, queue: str = "out") -> list[bytes]:
        """Return all values of a queue, sorted."""
        return kept(self.client, queue)


@pytest.fixture
def lab(spark: SparkSession, client: Client, dsn: str, folder: Path) -> Lab:
    """An empty penstock and a Spark."""
    return Lab(spark, client, dsn, folder)
