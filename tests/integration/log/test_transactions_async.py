"""The same promises on the asynchronous connections that callers have."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from databases import Connection
from penstock import AsyncClient, InvalidInput, MessageTooLarge, Retryable

Execute = Callable[[str], Awaitable[Any]]


class Changed(Exception):
    """The caller changed its mind."""


def asyncpg_options(dsn: str) -> dict[str, Any]:
    values = conninfo_to_dict(dsn)
    return {
        "host": values.get("host"),
        "port": values.get("port", 5432),
        "user": values.get("user"),
        "password": values.get("password"),
        "database": values["dbname"],
    }


@asynccontextmanager
async def own_psycopg(dsn: str, autocommit: bool) -> AsyncIterator[tuple[Any, Execute]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as connection:
        yield connection, lambda query: connection.execute(query.encode())


@asynccontextmanager
async def own_asyncpg(dsn: str, begun: bool) -> AsyncIterator[tuple[Any, Execute]]:
    connection = await asyncpg.connect(**asyncpg_options(dsn))
    try:
        if begun:
            async with connection.transaction():
                yield connection, connection.execute
        else:
            yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def sqlalchemy_engine(dsn: str, driver: str, session: bool) -> AsyncIterator[tuple[Any, Execute]]:
    async def connect() -> Any:
        if driver == "asyncpg":
            return await asyncpg.connect(**asyncpg_options(dsn))
        return await psycopg.AsyncConnection.connect(dsn)

    engine = create_async_engine(f"postgresql+{driver}://", async_creator=connect)
    try:
        if session:
            async with AsyncSession(engine) as connection, connection.begin():
                yield connection, lambda query: connection.execute(sa.text(query))
        else:
            async with engine.begin() as bare:
                yield bare, lambda query: bare.execute(sa.text(query))
    finally:
        await engine.dispose()


KINDS: dict[str, Callable[[str], Any]] = {
    "psycopg": lambda dsn: own_psycopg(dsn, autocommit=False),
    "psycopg, autocommit": lambda dsn: own_psycopg(dsn, autocommit=True),
    "asyncpg": lambda dsn: own_asyncpg(dsn, begun=False),
    "asyncpg, in a transaction": lambda dsn: own_asyncpg(dsn, begun=True),
    "SQLAlchemy on psycopg": lambda dsn: sqlalchemy_engine(dsn, "psycopg", session=False),
    "SQLAlchemy on asyncpg": lambda dsn: sqlalchemy_engine(dsn, "asyncpg", session=False),
    "SQLAlchemy session on psycopg": lambda dsn: sqlalchemy_engine(dsn, "psycopg", session=True),
    "SQLAlchemy session on asyncpg": lambda dsn: sqlalchemy_engine(dsn, "asyncpg", session=True),
}


@pytest.fixture
async def api(dsn: str, sql: Connection) -> AsyncIterator[AsyncClient]:
    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    async with AsyncClient(dsn) as client:
        yield client


def orders(sql: Connection) -> int:
    ((number,),) = sql.execute("SELECT count(*) FROM orders").fetchall()
    return int(number)


@pytest.mark.parametrize("kind", KINDS)
async def test_both_commit(api: AsyncClient, dsn: str, sql: Connection, kind: str) -> None:
    async with KINDS[kind](dsn) as (connection, execute), api.transaction(connection) as tx:
        await execute("INSERT INTO orders VALUES (1)")
        first = tx.push("q", [1, 2], key="k", headers={"h": "1"})
        second = tx.push_many("q", [("0", 3), ("1", b"\x00")])
    assert orders(sql) == 1
    assert [(message.json(), message.key) for message in await api.read("q", "0")] == [(1, "k"), (2, "k"), (3, None)]
    assert [result.first_offset for result in second.results] == [2, 0]
    assert (await api.get(first.result.ids[1])).json() == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_both_roll_back(api: AsyncClient, dsn: str, sql: Connection, kind: str) -> None:
    with pytest.raises(Changed):
        async with KINDS[kind](dsn) as (connection, execute), api.transaction(connection) as tx:
            await execute("INSERT INTO orders VALUES (1)")
            tx.push("q", 1)
            raise Changed
    assert orders(sql) == 0
    assert await api.queues() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_push_is_a_penstock_error_and_takes_the_data_back(
    api: AsyncClient, dsn: str, sql: Connection, kind: str
) -> None:
    await api.create("q", max_message_bytes=1)
    with pytest.raises(MessageTooLarge, match="max_message_bytes"):
        async with KINDS[kind](dsn) as (connection, execute), api.transaction(connection) as tx:
            await execute("INSERT INTO orders VALUES (1)")
            tx.push("q", "too large")
    assert orders(sql) == 0


async def test_the_clients_own_transaction_commits_or_rolls_back_both(api: AsyncClient, sql: Connection) -> None:
    async with api.transaction() as tx:
        await tx.connection.execute("INSERT INTO orders VALUES (1)")
        tx.push("q", 1)
    with pytest.raises(Changed):
        async with api.transaction() as tx:
            await tx.connection.execute("INSERT INTO orders VALUES (2)")
            tx.push("q", 2)
            raise Changed
    assert orders(sql) == 1
    assert [message.json() for message in await api.read("q", "0")] == [1]


async def test_an_error_of_the_callers_own_sql_comes_out_as_it_is(api: AsyncClient, dsn: str) -> None:
    async with own_asyncpg(dsn, begun=False) as (connection, execute):
        with pytest.raises(asyncpg.UniqueViolationError):
            async with api.transaction(connection) as tx:
                tx.push("q", 1)
                await execute("INSERT INTO orders VALUES (1), (1)")
    assert await api.queues() == []


async def test_a_stale_snapshot_of_asyncpg_may_be_tried_again(api: AsyncClient, dsn: str) -> None:
    await api.push("q", 0)
    async with own_asyncpg(dsn, begun=False) as (connection, _):
        with pytest.raises(Retryable, match="Run the whole transaction again"):
            async with connection.transaction(isolation="repeatable_read"), api.transaction(connection) as tx:
                await connection.execute("SELECT 1")
                await api.push("q", 1)
                tx.push("q", 2)


async def test_a_synchronous_connection_is_refused_by_the_asynchronous_client(
    api: AsyncClient, sql: Connection
) -> None:
    with pytest.raises(InvalidInput, match="is synchronous: use Client"):
        async with api.transaction(sql):
            pytest.fail("the block was entered")
