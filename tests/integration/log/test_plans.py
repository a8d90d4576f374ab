"""Cost does not grow with what is stored: with 20,000 partitions every hot call still goes by the index.

The connection is an old one, whose plans were made when the tables were empty. PostgreSQL's own counters say how many
sequential scans there were and how many rows were fetched.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from databases import Connection
from penstock import Client

PARTITIONS = 20_000
FILL = """
    INSERT INTO penstock.partitions (queue_id, name)
    SELECT q.queue_id, 'p' || n FROM penstock.queues q, generate_series(1, %s) n;
"""
SEGMENTS = """
    INSERT INTO penstock.segments (partition_id, base_offset, created_at, count, bytes, body, ends)
    SELECT p.partition_id, n, clock_timestamp(), 1, 1, 'x', '\\x01000000'
    FROM penstock.partitions p, generate_series(0, 1) n WHERE p.name LIKE 'p%%'
"""


class Work(NamedTuple):
    """What the tables went through."""

    sequential_scans: int
    rows: int


@pytest.fixture(scope="module")
def grown(penstock_server: str, penstock_template: str) -> Iterator[tuple[Client, Connection]]:
    """A client that began with an empty database, which has 20,000 partitions by now."""
    name = f"penstock_plans_{uuid4().hex[:12]}"
    dsn = make_conninfo(penstock_server, dbname=name)
    with psycopg.connect(penstock_server, autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(penstock_template)))
        with Client(dsn, pool_size=1) as client, psycopg.connect(dsn, autocommit=True) as sql:
            yield grow(client, sql)
        server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def grow(client: Client, sql: Connection) -> tuple[Client, Connection]:
    sql.execute("ALTER TABLE penstock.segments SET (autovacuum_enabled = off)")
    sql.execute("ALTER TABLE penstock.partitions SET (autovacuum_enabled = off)")
    for act in HOT.values():
        for _ in range(7):
            client.push("q", b"x", partition="0")
            act(client)
    sql.execute(FILL.encode(), (PARTITIONS,))
    sql.execute(SEGMENTS)
    if sql.info.server_version >= 150000:
        sql.execute("SELECT pg_stat_force_next_flush()")
    return client, sql


def newest_id(client: Client) -> Any:
    return client.read("q", "0", 3, 4)[0].id


HOT: dict[str, Callable[[Client], Any]] = {
    "push": lambda client: client.push("q", b"x", partition="0"),
    "push to several": lambda client: client.push_many("q", [("0", b"x"), ("1", b"x")]),
    "push by SQL": lambda client: in_sql(client, "SELECT penstock.push('q', ARRAY['x'::bytea], '0')"),
    "read": lambda client: client.read("q", "0", 2, 4),
    "read by time": lambda client: client.read("q", "0", 2, 4, start_time=client.read("q", "0", 2, 3)[0].timestamp),
    "get": lambda client: client.get(newest_id(client)),
    "get by SQL": lambda client: in_sql(client, f"SELECT * FROM penstock.get('{newest_id(client)}')"),
    "head": lambda client: client.partitions("q", "0"),
    "spread": lambda client: client.push("q", b"x", key="k"),
}


def in_sql(client: Client, query: str) -> Any:
    with client.transaction() as tx:
        return tx.connection.execute(query).fetchall()


def work(client: Client, sql: Connection) -> Work:
    with client.transaction() as tx:
        version = tx.connection.info.server_version
        if version >= 150000:
            tx.connection.execute("SELECT pg_stat_force_next_flush()")
    ((scans, rows),) = sql.execute(
        "SELECT sum(seq_scan)::integer, sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::integer"
        " FROM pg_stat_user_tables WHERE schemaname = 'penstock' AND relname IN ('segments', 'partitions')"
    ).fetchall()
    return Work(scans, rows)


@pytest.mark.parametrize("what", HOT)
def test_a_hot_call_goes_by_the_index_however_much_is_stored(grown: tuple[Client, Connection], what: str) -> None:
    client, sql = grown
    before = work(client, sql)
    for _ in range(3):
        HOT[what](client)
    after = work(client, sql)
    assert after.sequential_scans == before.sequential_scans
    assert after.rows - before.rows < 300


def test_the_counters_would_show_a_sequential_scan(grown: tuple[Client, Connection]) -> None:
    client, sql = grown
    before = work(client, sql)
    in_sql(client, "SELECT count(*) FROM penstock.partitions WHERE priority = 7")
    after = work(client, sql)
    assert after.sequential_scans > before.sequential_scans
    assert after.rows - before.rows >= PARTITIONS
