"""Connections beside the client's: to look on, to hold locks, to do what SQL callers do."""

import contextlib
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

Connection = psycopg.Connection[Any]


class Connections(contextlib.ExitStack):
    """Opens connections, and closes them when the test is over."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = dsn

    def open(self, **options: Any) -> Connection:
        connection: Connection = psycopg.connect(self.dsn, **options)
        self.callback(connection.close)
        return connection


def empty(connection: Connection) -> None:
    """Take everybody else's connections and everything in the tables away from a database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    tables = connection.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'public'"
        " OR schemaname = 'penstock' AND tablename <> 'migrations'"
    ).fetchall()
    removing = {"public": SQL("DROP TABLE {} CASCADE"), "penstock": SQL("DELETE FROM {}")}
    # All in one statement: a round trip for each of thirty tables is most of what a short test takes.
    connection.execute(SQL("; ").join(removing[schema].format(Identifier(schema, table)) for schema, table in tables))
