"""A Spark job needs a producer's and a consumer's rights, and no more."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from pyspark.sql.streaming.datasource import ReadMaxBytes

from penstock import Client, SetupError
from penstock.postgres.migrate import grant
from penstock.spark.jobs import Job
from penstock.spark.options import read_options, write_options
from penstock.spark.reading import BatchReader
from penstock.spark.streaming import StreamReader
from penstock.spark.writing import give_up, publish, stage


@pytest.fixture
def worker(penstock_dsn: str) -> Iterator[tuple[str, psycopg.Connection[tuple[object, ...]]]]:
    """The address of a new user without rights, and a connection of an admin."""
    name = f"penstock_spark_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_dsn, autocommit=True) as admin:
        admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(Identifier(name)))
        grant(admin, "producer", name)
        yield make_conninfo(penstock_dsn, user=name, password="secret"), admin
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND pid <> pg_backend_pid()",
            (name,),
        )
        admin.execute(SQL("DROP OWNED BY {}").format(Identifier(name)))
        admin.execute(SQL("DROP ROLE {}").format(Identifier(name)))


def test_a_producer_writes_and_a_consumer_reads(
    worker: tuple[str, psycopg.Connection[tuple[object, ...]]], penstock_dsn: str
) -> None:
    url, admin = worker
    options = write_options({"url": url, "queue": "in"})
    rows = pa.record_batch({"value": pa.array([b"a", b"b"]), "partition": pa.array(["p", "p"])})
    publish(options, Job("w", "r", 0), [stage(options, Job("w", "r", 0), iter([rows]))])
    give_up(options.target, [stage(options, Job("w", "r", 1), iter([rows]))])
    with Client(penstock_dsn) as client:
        assert [message.value for message in client.read("in", "p")] == [b"a", b"b"]

    batch = BatchReader(read_options({"url": url, "subscribe": "in"}, streaming=False))
    with pytest.raises(SetupError, match="for a role: `penstock grant"):
        batch.partitions()
    grant(admin, "consumer", psycopg.conninfo.conninfo_to_dict(url)["user"])  # type: ignore[arg-type]
    (task,) = batch.partitions()
    assert sum(found.num_rows for found in batch.read(task)) == 2
    given = {"url": url, "subscribe": "in", "startingOffsets": "earliest", "groupId": "g", "maxBytesPerTrigger": "1k"}
    stream = StreamReader(read_options(given, streaming=True))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxBytes(1024))
    (task,) = stream.partitions(start, end)
    assert sum(found.num_rows for found in stream.read(task)) == 2
    assert stream.latestOffset(end, ReadMaxBytes(1024)) == end
    with Client(penstock_dsn) as client:
        assert client.lag("in", "g") == 0
