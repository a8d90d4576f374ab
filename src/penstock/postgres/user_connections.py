"""Connections that the caller already has.

A push belongs in the transaction that writes the caller's own data, whoever opened it: psycopg, asyncpg, SQLAlchemy or
Django. Each of these is recognised by what it is, and never imported here: whoever has one has imported it.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from itertools import count
from typing import Any
from uuid import UUID

from penstock.errors import InvalidInput
from penstock.postgres import savepoints
from penstock.postgres.savepoints import Effects
from penstock.postgres.statements.call import Call

Execute = Callable[[Call[Any]], list[Any]]
AsyncExecute = Callable[[Call[Any]], Awaitable[list[Any]]]

_SUPPORTED = (
    "give a psycopg, psycopg2, SQLAlchemy or Django connection, or a SQLAlchemy session; "
    "AsyncClient takes psycopg's and SQLAlchemy's asynchronous ones, and asyncpg's"
)


@contextmanager
def transaction_on(connection: Any, effects: Effects) -> Iterator[Execute]:
    """Yield what runs calls in the caller's transaction, and see what its savepoints take back of the effects.

    Where the connection commits each statement by itself, the block is made one transaction.
    """
    _refuse_factories(connection)
    if _is_asynchronous(connection):
        raise InvalidInput(
            f"transaction() of Client cannot use a {_named(connection)}, which is asynchronous: use AsyncClient, or "
            "give a synchronous connection or session"
        )
    match _family(connection):
        case "psycopg":

            def on_psycopg(call: Call[Any]) -> list[Any]:
                rows: list[Any] = _tuples(connection).execute(call.sql, call.parameters).fetchall()
                return rows

            with _begun(connection.transaction, connection.autocommit and _idle(connection)):
                # This begins a transaction, too. Else the caller's first `connection.transaction()` would be the
                # transaction, and end it in the block.
                _begin(effects, on_psycopg)
                with savepoints.watch_psycopg(connection, effects):
                    yield on_psycopg
        case "psycopg2":
            if connection.autocommit:
                raise InvalidInput("this psycopg2 connection commits each statement: set autocommit = False")
            _begin(effects, lambda call: _with_cursor(connection, call))
            with savepoints.mark_at_once(effects, lambda call: _with_cursor(connection, call)):
                yield lambda call: _with_cursor(connection, call)
        case "sqlalchemy":
            session = connection if hasattr(connection, "get_bind") else None
            bound = connection if session is None else session.connection()
            _refuse_autocommit(bound)
            _begin(effects, lambda call: _on_sqlalchemy(bound, call))
            with _watched_session(session, effects), savepoints.watch_sqlalchemy(bound, effects, _on_sqlalchemy):
                # A nested transaction of a session begins its savepoint when it is asked for the connection.
                yield lambda call: _on_sqlalchemy(bound if session is None else session.connection(), call)
        case "django":
            from django.db import transaction

            with transaction.atomic(using=connection.alias, savepoint=False):
                _begin(effects, lambda call: _with_cursor(connection, call))
                with savepoints.watch_django(connection, effects, _with_cursor):
                    yield lambda call: _with_cursor(connection, call)
        case _:
            raise InvalidInput(f"transaction() cannot use a {_named(connection)}: {_SUPPORTED}")


@asynccontextmanager
async def async_transaction_on(connection: Any, effects: Effects) -> AsyncIterator[AsyncExecute]:
    """Do the same for an asynchronous connection."""
    _refuse_factories(connection)
    if _family(connection) != "unknown" and not _is_asynchronous(connection):
        raise InvalidInput(
            f"transaction() of AsyncClient cannot use a {_named(connection)}, which is synchronous: use Client, or "
            "give an asynchronous connection or session"
        )
    match _family(connection):
        case "psycopg" if hasattr(connection, "__aenter__"):
            async with _async_begun(connection.transaction, connection.autocommit and _idle(connection)):
                await _async_begin(effects, lambda call: _psycopg(connection, call))
                with savepoints.async_watch_psycopg(connection, effects):
                    yield lambda call: _psycopg(connection, call)
        case "asyncpg":
            async with _async_begun(connection.transaction, not connection.is_in_transaction()):
                await _async_begin(effects, lambda call: _asyncpg(connection, call))
                async with savepoints.follow_asyncpg(connection, effects):
                    yield lambda call: _asyncpg(connection, call)
        case "sqlalchemy" if hasattr(connection, "run_sync"):
            session = getattr(connection, "sync_session", None)
            bound = await connection.connection() if hasattr(connection, "get_bind") else connection
            _refuse_autocommit(bound.sync_connection)
            await _async_begin(effects, lambda call: _sqlalchemy(connection, call))
            with (
                _watched_session(session, effects),
                savepoints.watch_sqlalchemy(bound.sync_connection, effects, _on_sqlalchemy),
            ):
                yield lambda call: _sqlalchemy(connection, call)
        case _:
            raise InvalidInput(f"transaction() cannot use a {_named(connection)}: {_SUPPORTED}")


def _begin(effects: Effects, execute: Execute) -> None:
    """Mark where the block begins, in which transaction."""
    call = effects.begin()
    call.parse(execute(call))


async def _async_begin(effects: Effects, execute: AsyncExecute) -> None:
    call = effects.begin()
    call.parse(await execute(call))


def _refuse_autocommit(connection: Any) -> None:
    """Refuse a connection of SQLAlchemy that commits each statement."""
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise InvalidInput(
            "this SQLAlchemy connection commits each statement: use one whose isolation_level is not AUTOCOMMIT"
        )


def numbered(sql: str) -> str:
    """Turn placeholders into `$1`, `$2` …"""
    numbers = count(1)
    return re.sub("%[sb]", lambda _: f"${next(numbers)}", sql)


def _family(connection: Any) -> str:
    """Name the library that a connection comes from; a pool's or a proxy's wrapper counts as what it wraps."""
    if hasattr(connection, "in_atomic_block") and hasattr(connection, "alias"):
        return "django"
    modules = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    for family in ("psycopg", "psycopg2", "sqlalchemy", "asyncpg"):
        if family in modules:
            return family
    return "unknown"


def _named(connection: Any) -> str:
    kind = type(connection)
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}" if kind.__module__ != "builtins" else kind.__name__


def _is_asynchronous(connection: Any) -> bool:
    """Say whether a connection or session is awaited: asyncpg's are, SQLAlchemy's that can run synchronous code, …"""
    return _family(connection) == "asyncpg" or hasattr(connection, "run_sync") or hasattr(connection, "__aenter__")


def _refuse_factories(connection: Any) -> None:
    """Refuse what makes connections or sessions and is none, with what to do."""
    names = {kind.__name__ for kind in type(connection).__mro__}
    if names & {"sessionmaker", "async_sessionmaker"}:
        raise InvalidInput(
            f"transaction() cannot use a {_named(connection)}, which makes sessions: call it, and give the session, as "
            "in `with factory() as session, client.transaction(session) as tx`"
        )
    if names & {"Engine", "AsyncEngine"} and _family(connection) == "sqlalchemy":
        raise InvalidInput(
            f"transaction() cannot use a {_named(connection)}, which makes connections: give one of them, as in "
            "`with engine.begin() as connection, client.transaction(connection) as tx`"
        )
    if names & {"Pool", "ConnectionPool", "AsyncConnectionPool", "AbstractConnectionPool"}:
        raise InvalidInput(
            f"transaction() cannot use a {_named(connection)}, which lends connections: take one from it, and give that"
        )


def _idle(connection: Any) -> bool:
    return bool(connection.info.transaction_status.name == "IDLE")


@contextmanager
def _begun(begin: Callable[[], AbstractContextManager[Any]], needed: bool) -> Iterator[None]:
    if needed:
        with begin():
            yield
    else:
        yield


@asynccontextmanager
async def _async_begun(begin: Callable[[], AbstractAsyncContextManager[Any]], needed: bool) -> AsyncIterator[None]:
    if needed:
        async with begin():
            yield
    else:
        yield


def _watched_session(session: Any, effects: Effects) -> AbstractContextManager[None]:
    return nullcontext() if session is None else savepoints.watch_session(session, effects)


def _on_sqlalchemy(connection: Any, call: Call[Any]) -> list[Any]:
    return _plain_rows(connection.exec_driver_sql(_style(connection, call.sql), call.parameters).fetchall())


def _with_cursor(connection: Any, call: Call[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(_one_kind(call.sql), tuple(map(_without_uuids, call.parameters)))
        return _plain_rows(cursor.fetchall())


def _without_uuids(value: Any) -> Any:
    """Return a parameter as text where it is a UUID, which psycopg2 knows only once it is told."""
    if isinstance(value, list):
        return list(map(_without_uuids, value))
    return str(value) if isinstance(value, UUID) else value


def _plain_rows(rows: Iterable[Iterable[Any]]) -> list[Any]:
    """Return rows as psycopg would: psycopg2 gives buffers for bytea."""
    return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in rows]


def _style(connection: Any, sql: str) -> str:
    return numbered(sql) if connection.dialect.paramstyle == "numeric_dollar" else _one_kind(sql)


def _one_kind(sql: str) -> str:
    """Leave the choice between text and binary to a driver that takes no advice."""
    return sql.replace("%b", "%s")


def _tuples(connection: Any) -> Any:
    """Return a psycopg cursor that gives rows as we read them, whatever the connection's owner prefers."""
    from psycopg.rows import tuple_row

    return connection.cursor(binary=True, row_factory=tuple_row)


async def _psycopg(connection: Any, call: Call[Any]) -> list[Any]:
    cursor = await _tuples(connection).execute(call.sql, call.parameters)
    rows: list[Any] = await cursor.fetchall()
    return rows


async def _asyncpg(connection: Any, call: Call[Any]) -> list[Any]:
    return [tuple(row) for row in await connection.fetch(numbered(call.sql), *call.parameters)]


async def _sqlalchemy(connection: Any, call: Call[Any]) -> list[Any]:
    # A nested transaction of a session begins its savepoint when it is asked for the connection.
    bound = await connection.connection() if hasattr(connection, "get_bind") else connection
    result = await bound.exec_driver_sql(_style(bound, call.sql), call.parameters)
    return [tuple(row) for row in result.fetchall()]
