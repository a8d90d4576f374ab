"""What is compared: penstock, a row per message, the limit, and the limit of what has offsets.

Each contender gets the same list of bytes and the same server, driver and durability. A row per message, with a counter
row that hands out offsets, is how a log in PostgreSQL is usually built. The limit stores each batch as one value that
nobody can take apart: no log in PostgreSQL that keeps what it was given can write with less work. With an offset from a
counter row, and where each message ends, it is the least that a log without gaps has to write.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from penstock.client.client import Client

Write = Callable[[list[bytes]], object]
Read = Callable[[], int]
SCHEMA = "penstock_bench"
# As much as penstock reads with one call, so that the others make no more calls than it does.
PAGE_BYTES = 8 << 20


class Space(NamedTuple):
    """Where one case keeps its messages: a queue of this name, or tables whose names begin with it."""

    name: str
    size: int
    partitions: int

    def table(self, kind: str, partition: int | str = "") -> Identifier:
        """Return the name of a table of this space."""
        return Identifier(SCHEMA, f"{self.name}_{kind}{partition}")


class Contender(ABC):
    """One way to keep a log."""

    name: str

    @abstractmethod
    def create(self, connection: psycopg.Connection[Any], space: Space) -> None:
        """Make what the first message needs."""

    @abstractmethod
    def disk_bytes(self, connection: psycopg.Connection[Any], space: Space) -> int:
        """Say how much disk the messages take, with all indexes."""

    @abstractmethod
    def writer(self, dsn: str, space: Space, partition: int) -> Iterator[Write]:
        """Yield what writes one batch, durably."""

    def reader(self, dsn: str, space: Space, partition: int, target: str) -> Iterator[Read]:
        """Yield what reads a whole partition into Python objects or Arrow and says how many messages it had."""
        raise NotImplementedError


class Penstock(Contender):
    """Penstock through its public client."""

    name = "penstock"

    def create(self, connection: psycopg.Connection[Any], space: Space) -> None:
        """Make nothing: a push makes the queue."""

    def disk_bytes(self, connection: psycopg.Connection[Any], space: Space) -> int:
        """Copy the queue's rows to a table made like `segments`, whose other rows then do not count."""
        table = space.table("segments")
        connection.execute(SQL("CREATE TABLE {} (LIKE penstock.segments INCLUDING ALL)").format(table))
        for (option,) in connection.execute(
            "SELECT unnest(reloptions) FROM pg_class WHERE oid = 'penstock.segments'::regclass"
        ).fetchall():
            key, _, value = option.partition("=")
            connection.execute(SQL("ALTER TABLE {} SET ({} = {})").format(table, Identifier(key), Literal(value)))
        connection.execute(
            SQL(
                "INSERT INTO {} SELECT s.* FROM penstock.queues q JOIN penstock.partitions p USING (queue_id) "
                "JOIN penstock.segments s USING (partition_id) WHERE q.name = {} ORDER BY partition_id, base_offset"
            ).format(table, Literal(space.name))
        )
        return _size(connection, table)

    def writer(self, dsn: str, space: Space, partition: int) -> Iterator[Write]:
        """Push a batch."""
        with Client(dsn) as client:
            yield lambda batch: client.push(space.name, batch, partition=str(partition))

    def reader(self, dsn: str, space: Space, partition: int, target: str) -> Iterator[Read]:
        """Read with `read` or `read_arrow`."""
        with Client(dsn) as client:
            read = client.read if target == "python" else client.read_arrow
            yield lambda: len(read(space.name, str(partition)))


class Rows(Contender):
    """A row per message: a table per partition, a row and two index entries per message, a counter row."""

    name = "rows"

    def create(self, connection: psycopg.Connection[Any], space: Space) -> None:
        """Make the tables."""
        counter = space.table("log_counter")
        connection.execute(SQL("CREATE TABLE {} (id INT PRIMARY KEY, next_offset BIGINT NOT NULL)").format(counter))
        for partition in range(space.partitions):
            connection.execute(
                SQL(
                    "CREATE TABLE {} (id BIGSERIAL PRIMARY KEY, c_offset BIGINT UNIQUE NOT NULL, "
                    "payload BYTEA NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT now())"
                ).format(space.table("topicpartition", partition))
            )
            connection.execute(
                SQL("INSERT INTO {} (id, next_offset) VALUES ({}, 1)").format(counter, Literal(partition))
            )

    def disk_bytes(self, connection: psycopg.Connection[Any], space: Space) -> int:
        """Add up the tables of the partitions."""
        return sum(_size(connection, space.table("topicpartition", number)) for number in range(space.partitions))

    def writer(self, dsn: str, space: Space, partition: int) -> Iterator[Write]:
        """Reserve offsets and insert the rows, in the document's one statement."""
        statement = SQL(
            "WITH reserve AS (UPDATE {} SET next_offset = next_offset + %(count)s WHERE id = %(id)s::int "
            "RETURNING (next_offset - %(count)s) AS first_off) "
            "INSERT INTO {}(c_offset, payload) SELECT r.first_off + p.ord - 1, p.payload "
            "FROM reserve r, unnest(%(payloads)b::bytea[]) WITH ORDINALITY AS p(payload, ord)"
        ).format(space.table("log_counter"), space.table("topicpartition", partition))
        with _connect(dsn) as connection:
            text = statement.as_bytes(connection)
            yield lambda batch: connection.execute(text, {"count": len(batch), "id": partition, "payloads": batch})

    def reader(self, dsn: str, space: Space, partition: int, target: str) -> Iterator[Read]:
        """Fetch the rows in binary, in pages by offset."""
        statement = SQL(
            "SELECT c_offset, payload, created_at FROM {} WHERE c_offset >= %s AND c_offset < %s ORDER BY c_offset"
        ).format(space.table("topicpartition", partition))
        step = PAGE_BYTES // space.size

        def pages() -> Iterator[list[Any]]:
            first = 1
            while rows := connection.execute(text, (first, first + step), binary=True).fetchall():
                yield rows
                first += step

        with _connect(dsn) as connection:
            text = statement.as_bytes(connection)
            if target == "python":
                yield lambda: len(list(chain.from_iterable(pages())))
            else:
                yield lambda: len(_arrow(space.name, str(partition), pages()))


class Blob(Contender):
    """The limit: a batch is one value."""

    name = "blob"

    def create(self, connection: psycopg.Connection[Any], space: Space) -> None:
        """Make a table that stores values as penstock does on this server."""
        table = space.table("blob")
        connection.execute(SQL("CREATE TABLE {} (id BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)").format(table))
        how = "SET COMPRESSION lz4" if has_lz4(connection) else "SET STORAGE EXTERNAL"
        connection.execute(SQL("ALTER TABLE {} ALTER COLUMN body {}").format(table, SQL(how)))

    def disk_bytes(self, connection: psycopg.Connection[Any], space: Space) -> int:
        """Take the table's size."""
        return _size(connection, space.table("blob"))

    def writer(self, dsn: str, space: Space, partition: int) -> Iterator[Write]:
        """Join the batch and insert it."""
        with _connect(dsn) as connection:
            text = SQL("INSERT INTO {} (body) VALUES (%b)").format(space.table("blob")).as_bytes(connection)
            yield lambda batch: connection.execute(text, (b"".join(batch),))


class Numbered(Contender):
    """The limit of a log without gaps: a batch is one value, and has its offset and where each message ends."""

    name = "numbered"

    def create(self, connection: psycopg.Connection[Any], space: Space) -> None:
        """Make a table for the batches of all partitions, and one for their counters."""
        table, counter = space.table("numbered"), space.table("numbered_counter")
        connection.execute(SQL("CREATE TABLE {} (id INT PRIMARY KEY, next_offset BIGINT NOT NULL)").format(counter))
        connection.execute(
            SQL("INSERT INTO {} SELECT n, 0 FROM generate_series(0, {} - 1) n").format(
                counter, Literal(space.partitions)
            )
        )
        connection.execute(
            SQL(
                "CREATE TABLE {} (partition INT, c_offset BIGINT, created_at TIMESTAMPTZ NOT NULL, "
                "body BYTEA NOT NULL, ends BYTEA NOT NULL, PRIMARY KEY (partition, c_offset))"
            ).format(table)
        )
        for column in ("body", "ends"):
            how = "SET COMPRESSION lz4" if has_lz4(connection) else "SET STORAGE EXTERNAL"
            connection.execute(SQL("ALTER TABLE {} ALTER COLUMN {} {}").format(table, Identifier(column), SQL(how)))

    def disk_bytes(self, connection: psycopg.Connection[Any], space: Space) -> int:
        """Take the table's size."""
        return _size(connection, space.table("numbered"))

    def writer(self, dsn: str, space: Space, partition: int) -> Iterator[Write]:
        """Reserve offsets and insert the batch, in one statement."""
        statement = SQL(
            "WITH reserve AS (UPDATE {} SET next_offset = next_offset + %(count)s WHERE id = %(id)s::int "
            "RETURNING (next_offset - %(count)s) AS first_off) "
            "INSERT INTO {} SELECT %(id)s::int, r.first_off, clock_timestamp(), %(body)b, %(ends)b FROM reserve r "
            "RETURNING c_offset"
        ).format(space.table("numbered_counter"), space.table("numbered"))
        with _connect(dsn) as connection:
            text = statement.as_bytes(connection)

            def write(batch: list[bytes]) -> object:
                ends = struct.pack(f"<{len(batch)}i", *accumulate(map(len, batch)))
                parameters = {"count": len(batch), "id": partition, "body": b"".join(batch), "ends": ends}
                return connection.execute(text, parameters).fetchall()

            yield write


CONTENDERS: dict[str, Contender] = {one.name: one for one in (Penstock(), Rows(), Blob(), Numbered())}


@contextmanager
def cleaned_schema(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Have a schema for the tables of the others, and leave nothing of it behind."""
    drop = SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(SCHEMA))
    connection.execute(drop)
    connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(SCHEMA)))
    try:
        yield
    finally:
        connection.execute(drop)


def has_lz4(connection: psycopg.Connection[Any]) -> bool:
    """Say whether this server can compress with lz4."""
    row = connection.execute(
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    ).fetchone()
    return bool(row and row[0])


def _connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)


def _size(connection: psycopg.Connection[Any], table: Identifier) -> int:
    row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (table.as_string(connection),)).fetchone()
    assert row is not None  # noqa: S101
    return int(row[0])


def _arrow(queue: str, partition: str, pages: Iterator[list[Any]]) -> Any:
    """Return rows as the table that `read_arrow` returns."""
    import pyarrow as pa

    from penstock.broker.arrow import SCHEMA as COLUMNS

    batches = []
    for rows in pages:
        offsets, values, times = zip(*rows, strict=True)
        columns = [
            pa.repeat(queue, len(rows)),
            pa.repeat(partition, len(rows)),
            pa.array(offsets, pa.int64()),
            pa.nulls(len(rows), pa.string()),
            pa.array(values, pa.binary()),
            pa.nulls(len(rows), pa.string()),
            pa.array(times, pa.timestamp("us", tz="UTC")),
        ]
        batches.append(pa.record_batch(columns, schema=COLUMNS))
    return pa.Table.from_batches(batches, COLUMNS)
