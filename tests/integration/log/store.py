"""Writes a database as text: the schema of today, and the rows of one that is in use.

`python tests/integration/log/store.py DSN FILE` fills the empty database DSN and writes it to FILE. Run it once for
each version that is released; what is stored of a released version never changes.
"""

import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from penstock import Client, sql

STORED = Path(__file__).parent / "stored"


def fill(dsn: str) -> None:
    """Use everything that leaves rows behind: claims in flight, dead letters, what is scheduled, a staged push."""
    with Client(dsn) as client:
        client.create_group("orders", "billing", max_attempts=1)
        client.create_group("orders", "crowd", mode="shared")
        client.push("orders", [b"bad", b"good", b"open"], partition="ada", key="k", headers={"h": "1"})
        failing = client.pop("orders", "billing", max_messages=1)
        assert failing is not None
        failing.nack(reason="no such customer")
        client.configure_group("orders", "billing", max_attempts=3)
        for group in ("billing", "crowd"):
            assert client.pop("orders", group, max_messages=1) is not None
        client.push("orders", b"later", partition="ada", delay=3600)
    with psycopg.connect(dsn, autocommit=True) as connection:
        stage = connection.execute("SELECT penstock.begin_stage('writer', 'run', 0)").fetchone()
        assert stage is not None
        connection.execute(
            "SELECT penstock.stage_segments(%s, 0, '{orders}', '{ada}', '{1}', 'staged', '\\x06000000')",
            stage,
        )


def dump(connection: psycopg.Connection[Any]) -> str:
    """Return all rows and sequences of the schema as statements."""
    lines = [sql.script().partition("\n")[2]]
    tables = connection.execute(
        "SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
        " WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind = 'r' AND c.relname <> 'migrations'"
        " GROUP BY c.relname ORDER BY c.relname"
    ).fetchall()
    for table, columns in tables:
        names = SQL(", ").join(map(Identifier, columns))
        texts = SQL(", ").join(SQL("{}::text").format(Identifier(column)) for column in columns)
        rows = connection.execute(SQL("SELECT {} FROM penstock.{} ORDER BY ctid").format(texts, Identifier(table)))
        for row in rows.fetchall():
            insert = SQL("INSERT INTO penstock.{} ({}) OVERRIDING SYSTEM VALUE VALUES ({});").format(
                Identifier(table), names, SQL(", ").join(map(Literal, row))
            )
            lines.append(insert.as_string(connection))
    sequences = connection.execute(
        "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'penstock' AND last_value IS NOT NULL"
        " ORDER BY 1"
    )
    lines += [f"SELECT setval('penstock.{name}', {value});" for name, value in sequences.fetchall()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    fill(sys.argv[1])
    with psycopg.connect(sys.argv[1]) as opened:
        Path(sys.argv[2]).write_text(dump(opened), "utf-8")
