"""Brings a database's schema to the version that this code needs.

Numbered migrations go forward only. All of it is one transaction under a lock, so two processes that start at once do
it once, and a failure leaves the database as it was.
"""

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import sql
from penstock.errors import SetupError
from penstock.postgres.failures import translate, translated

MINIMUM_SERVER = 140000
# Any constant will do, as long as every version of penstock uses the same.
_LOCK = 7_298_131_264_911


@dataclass(frozen=True)
class ServerState:
    """What a server says of itself: its version, whether a pooler stands before it, the schema's version."""

    server_version: int
    pooled: bool
    schema_version: int | None


@dataclass(frozen=True)
class Migrated:
    """What a migrate did."""

    before: int | None
    after: int
    partitions: int
    partitions_with_messages: int


def inspect(connection: psycopg.Connection[Any]) -> ServerState:
    """Look at a server; refuse one that is too old."""
    with translated():
        return _inspect(connection)


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Say whether a pooler stands before the server: it answers the handshake with a process id of its own."""
    with translated():
        return bool(_row(connection, "SELECT pg_backend_pid()")[0] != connection.info.backend_pid)


def identity(connection: psycopg.Connection[Any]) -> str:
    """Return what distinguishes this database from all others, copies of it included."""
    with translated():
        made_at, database = _row(
            connection,
            "SELECT (extract(epoch FROM min(m.applied_at)) * 1000000)::bigint,"
            " (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())"
            " FROM penstock.migrations m",
        )
    return f"{made_at:x}-{database:x}"


def _inspect(connection: psycopg.Connection[Any]) -> ServerState:
    version, exists = _row(
        connection,
        "SELECT current_setting('server_version_num')::integer, EXISTS ("
        " SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'penstock' AND c.relname = 'migrations')",
    )
    if version < MINIMUM_SERVER:
        raise SetupError(f"this server is PostgreSQL {version // 10000}; penstock needs 14 or later")
    number, first = None, None
    if exists:
        number, first = _row(
            connection, "SELECT max(number), min(name) FILTER (WHERE number = 1) FROM penstock.migrations"
        )
    if first is not None and first != sql.migrations()[0].name:
        raise SetupError(
            f"the schema is at version {number} of a development version from before 0.1.0, which cannot be migrated: "
            "use a new database, or another PENSTOCK_HOME, or drop the schema penstock and all its data"
        )
    return ServerState(version, is_pooled(connection), number)


def require_usable(state: ServerState) -> None:
    """Refuse a schema that this code cannot work with: it may be one version behind or ahead.

    So clients and the schema need not be upgraded in the same moment, and either may go first.
    """
    found = state.schema_version
    if found is None or not sql.oldest() <= found <= sql.version() + 1:
        require_current(state)


def require_current(state: ServerState) -> None:
    """Refuse a schema that is not the one this code was written for."""
    needed = sql.version()
    if state.schema_version is None or state.schema_version < needed:
        raise SetupError(
            f"the schema is at version {state.schema_version or 0} and this code needs {needed}: run `penstock migrate`"
        )
    if state.schema_version > needed:
        raise SetupError(
            f"the schema is at version {state.schema_version} and this code knows only {needed}: "
            "upgrade penstock (pip install --upgrade penstock)"
        )


def migrate(connection: psycopg.Connection[Any]) -> Migrated:
    """Apply what is missing and write functions and views anew. The connection is in autocommit mode."""
    try:
        with connection.transaction():
            return _migrate(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        said = str(error.diag.message_primary).rstrip(".")
        raise SetupError(
            f"{said}. The schema penstock is made by a user with CREATE on the database, and migrated by its owner or "
            "a superuser: ask one of them to run `penstock migrate`"
        ) from error
    except psycopg.Error as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error


def _migrate(connection: psycopg.Connection[Any]) -> Migrated:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    before = _inspect(connection).schema_version
    if before is not None and before > sql.version():
        require_current(ServerState(MINIMUM_SERVER, False, before))
    for step in sql.steps(before):
        _script(connection, step.sql)
        connection.execute(
            "INSERT INTO penstock.migrations (number, name) VALUES (%s, %s)",
            (step.number, step.name),
        )
    _script(connection, sql.repeatable())
    if _row(
        connection,
        "SELECT has_schema_privilege(r.oid, 'penstock', 'USAGE') FROM pg_roles r WHERE r.rolname = 'penstock_admin'",
    ) == (True,):
        # The roles are in use here: let them have what is new.
        _script(connection, sql.roles())
    partitions, with_messages = _row(
        connection,
        "SELECT (SELECT count(*) FROM penstock.partitions), (SELECT count(*) FROM penstock.partition_lookup)",
    )
    return Migrated(before, sql.version(), partitions, with_messages)


def grant(connection: psycopg.Connection[Any], role: str, to: str) -> None:
    """Make the roles where they are missing and give one of them to a database user."""
    try:
        with connection.transaction():
            require_current(_inspect(connection))
            _script(connection, sql.roles())
            connection.execute(
                psycopg.sql.SQL("GRANT {} TO {}").format(
                    psycopg.sql.Identifier(f"penstock_{role}"), psycopg.sql.Identifier(to)
                )
            )
    except psycopg.errors.InsufficientPrivilege as error:
        said = str(error.diag.message_primary).rstrip(".")
        raise SetupError(
            f"{said}. Roles are given by a superuser, or by the owner of the schema penstock, who needs CREATEROLE to "
            "make them and, from PostgreSQL 16 on, ADMIN OPTION on those that another has made. Ask one of them to run "
            f"this command, or the statements that `penstock grant {role} {to} --sql` prints"
        ) from error
    except psycopg.Error as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error


def _script(connection: psycopg.Connection[Any], text: str) -> None:
    """Run several statements; without parameters they go to the server as they are."""
    connection.execute(text.encode())


def _row(connection: psycopg.Connection[Any], query: str) -> Any:
    return connection.execute(query.encode()).fetchone()
