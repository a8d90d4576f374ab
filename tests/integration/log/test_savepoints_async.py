"""The same promises about savepoints on the asynchronous connections that callers have."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from databases import Connection
from penstock import AsyncClient, InvalidInput, PenstockError

from .test_transactions_async import asyncpg_options


class Changed(Exception):
    """The caller changed its mind."""


Execute = Callable[[str], Awaitable[Any]]
Savepoint = Callable[[], AbstractAsyncContextManager[Any]]
Way = tuple[Any, Execute, Savepoint]


@asynccontextmanager
async def by_hand(execute: Execute) -> AsyncIterator[None]:
    await execute("SAVEPOINT By_Hand")
    try:
        yield
    except BaseException:
        await execute('ROLLBACK WORK TO "by_hand"')
        raise
    await execute("release by_hand;")


@asynccontextmanager
async def on_psycopg(dsn: str, hand: bool = False) -> AsyncIterator[Way]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:

        def execute(query: str) -> Awaitable[Any]:
            return connection.execute(query.encode())

        yield connection, execute, (lambda: by_hand(execute)) if hand else connection.transaction


@asynccontextmanager
async def on_asyncpg(dsn: str, hand: bool = False) -> AsyncIterator[Way]:
    options = asyncpg_options(dsn)
    async with asyncpg.create_pool(**options, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield (
            connection,
            connection.execute,
            (lambda: by_hand(connection.execute)) if hand else connection.transaction,
        )


def engine_of(dsn: str, driver: str) -> AsyncEngine:
    async def connect() -> Any:
        if driver == "asyncpg":
            return await asyncpg.connect(**asyncpg_options(dsn))
        return await psycopg.AsyncConnection.connect(dsn)

    return create_async_engine(f"postgresql+{driver}://", async_creator=connect)


@asynccontextmanager
async def on_sqlalchemy(dsn: str, driver: str, session: bool) -> AsyncIterator[Way]:
    engine = engine_of(dsn, driver)
    if session:
        async with AsyncSession(engine) as begun, begun.begin():
            yield begun, lambda query: begun.execute(sa.text(query)), begun.begin_nested
    else:
        async with engine.begin() as bare:
            yield bare, lambda query: bare.execute(sa.text(query)), bare.begin_nested
    await engine.dispose()


WAYS: dict[str, Callable[[str], Any]] = {
    "psycopg": on_psycopg,
    "psycopg, by hand": lambda dsn: on_psycopg(dsn, hand=True),
    "asyncpg": on_asyncpg,
    "asyncpg, by hand": lambda dsn: on_asyncpg(dsn, hand=True),
    "SQLAlchemy on psycopg": lambda dsn: on_sqlalchemy(dsn, "psycopg", session=False),
    "SQLAlchemy on asyncpg": lambda dsn: on_sqlalchemy(dsn, "asyncpg", session=False),
    "SQLAlchemy session on psycopg": lambda dsn: on_sqlalchemy(dsn, "psycopg", session=True),
    "SQLAlchemy session on asyncpg": lambda dsn: on_sqlalchemy(dsn, "asyncpg", session=True),
}
Open = Callable[[], AbstractAsyncContextManager[Way]]


@pytest.fixture
async def api(dsn: str, sql: Connection) -> AsyncIterator[AsyncClient]:
    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    async with AsyncClient(dsn) as client:
        yield client


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, dsn: str) -> Open:
    return lambda: WAYS[request.param](dsn)


async def pushed(api: AsyncClient) -> list[Any]:
    return [m.json() for queue in await api.queues() async for m in api.tail(queue.name, follow=False)]


def orders(sql: Connection) -> list[int]:
    return [number for (number,) in sql.execute("SELECT id FROM orders ORDER BY id")]


@asynccontextmanager
async def taken_back(savepoint: Savepoint) -> AsyncIterator[None]:
    """A savepoint to which the body is rolled back."""
    try:
        async with savepoint():
            yield
            raise Changed
    except Changed:
        pass


async def test_pushes_and_data_of_a_savepoint_are_rolled_back_together(
    api: AsyncClient, sql: Connection, way: Open
) -> None:
    async with way() as (connection, execute, savepoint), api.transaction(connection) as tx:
        before = tx.push("q", "before")
        async with taken_back(savepoint):
            await execute("INSERT INTO orders VALUES (1)")
            undone = tx.push("q", "undone")
        await execute("INSERT INTO orders VALUES (2)")
        async with savepoint():
            after = tx.push_many("q", [("0", "after")])
    assert (orders(sql), await pushed(api)) == ([2], ["before", "after"])
    assert (before.result.first_offset, after.results[0].first_offset) == (0, 1)
    with pytest.raises(PenstockError, match="rolled back"):
        _ = undone.result


async def test_an_outer_savepoint_takes_what_an_inner_one_released(
    api: AsyncClient, sql: Connection, way: Open
) -> None:
    async with way() as (connection, execute, savepoint), api.transaction(connection) as tx:
        async with savepoint():
            tx.push("q", "outer")
            async with taken_back(savepoint):
                tx.push("q", "inner, undone")
        async with taken_back(savepoint):
            async with savepoint():
                tx.push("q", "inner, released")
            await execute("INSERT INTO orders VALUES (1)")
        tx.push("q", "last")
    assert (orders(sql), await pushed(api)) == ([], ["outer", "last"])


async def test_an_error_of_sql_in_a_savepoint_takes_pushes_before_and_after_it(
    api: AsyncClient, sql: Connection, way: Open
) -> None:
    async with way() as (connection, execute, savepoint), api.transaction(connection) as tx:
        await execute("INSERT INTO orders VALUES (1)")
        async with taken_back(savepoint):
            tx.push("q", "before the error")
            with pytest.raises(Exception, match="orders_pkey"):
                await execute("INSERT INTO orders VALUES (1)")
            tx.push("q", "after the error")
        tx.push("q", "last")
    assert (orders(sql), await pushed(api)) == ([1], ["last"])


async def test_a_batch_acknowledged_in_a_savepoint_is_acknowledged_again_after_it(api: AsyncClient, way: Open) -> None:
    await api.create_group("q", "g", mode="shared")
    await api.push("q", [1, 2])
    batch = await api.pop("q", "g")
    assert batch is not None
    async with way() as (connection, _, savepoint):
        async with api.transaction(connection) as tx, taken_back(savepoint):
            await tx.ack(batch)
        assert [batch.settled] == [False]
        async with api.transaction(connection) as tx:
            async with taken_back(savepoint):
                await tx.ack(batch)
            await tx.ack(batch)
            with pytest.raises(PenstockError, match="settled already"):
                await tx.ack(batch)
        assert [batch.settled] == [True]
    assert await api.lag("q", "g") == 0


async def test_the_clients_own_transaction_knows_savepoints(api: AsyncClient) -> None:
    async with api.transaction() as tx:
        tx.push("q", 1)
        async with taken_back(tx.connection.transaction):
            tx.push("q", 2)
        tx.push("q", 3)
        async with tx.connection.pipeline():
            await tx.connection.execute("SAVEPOINT piped")
            tx.push("q", 4)
            await tx.connection.execute("ROLLBACK TO piped")
        tx.push("q", 5)
    assert await pushed(api) == [1, 3, 5]
    assert "wait" not in vars(tx.connection)


async def test_several_statements_in_one_text_of_asyncpg_are_followed(api: AsyncClient, dsn: str) -> None:
    async with on_asyncpg(dsn) as (connection, execute, _), api.transaction(connection) as tx:
        await execute("SAVEPOINT a; SELECT 1")
        tx.push("q", "undone")
        await execute("SELECT 2; ROLLBACK TO SAVEPOINT a; RELEASE a")
        tx.push("q", "kept")
    assert await pushed(api) == ["kept"]


@pytest.mark.parametrize(
    ("begin", "undo"),
    [
        ("SAVEPOINT a", "ROLLBACK TO a -- undo"),
        ("/* c; /* nested */ */ SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"),
        ("SELECT 'it''s; -- ' ; -- begin\nSAVEPOINT \"a\"", "ROLLBACK /* all */ WORK TO a"),
        ("SELECT $a$;/*$a$, E'\\';--'; SAVEPOINT a", "ROLLBACK TRANSACTION TO SAVEPOINT a;"),
    ],
)
async def test_comments_and_quotes_do_not_hide_a_savepoint_of_asyncpg(
    api: AsyncClient, dsn: str, begin: str, undo: str
) -> None:
    async with on_asyncpg(dsn) as (connection, execute, _), api.transaction(connection) as tx:
        await execute(begin)
        tx.push("q", "undone")
        await execute("SELECT 'ROLLBACK TO a'")
        await execute(undo)
        tx.push("q", "kept")
    assert await pushed(api) == ["kept"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("session", [False, True], ids=["connection", "session"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_of_sqlalchemy_that_ends_within_the_block_is_refused(
    api: AsyncClient, dsn: str, driver: str, session: bool, end: str
) -> None:
    async def work(connection: Any) -> None:
        async with api.transaction(connection) as tx:
            tx.push("q", 1)
            await getattr(connection, end)()

    engine = engine_of(dsn, driver)
    async with AsyncSession(engine) if session else engine.connect() as connection:
        with pytest.raises(PenstockError, match="end it after the block"):
            await work(connection)
        await connection.commit()
    await engine.dispose()
    assert await api.queues() == []


@pytest.mark.parametrize("how", ["rollback", "commit", "ROLLBACK AND CHAIN", "COMMIT; BEGIN"])
async def test_a_transaction_of_asyncpg_that_ends_within_the_block_is_refused(
    api: AsyncClient, dsn: str, how: str
) -> None:
    connection = await asyncpg.connect(**asyncpg_options(dsn))

    async def work() -> None:
        transaction = connection.transaction()
        await transaction.start()
        async with api.transaction(connection) as tx:
            tx.push("q", 1)
            if hasattr(transaction, how):
                await getattr(transaction, how)()
            else:
                await connection.execute(how)

    with pytest.raises(PenstockError, match="end it after the block"):
        await work()
    await connection.close()
    assert await api.queues() == []


async def test_a_block_in_which_the_settings_are_reset_is_refused(api: AsyncClient, way: Open) -> None:
    async with way() as (connection, execute, savepoint):

        async def work() -> None:
            async with api.transaction(connection) as tx:
                async with savepoint():
                    tx.push("q", 1)
                await execute("RESET ALL")

        with pytest.raises(PenstockError, match="settings were reset"):
            await work()
    assert await api.queues() == []


async def test_a_push_while_rows_are_streamed_or_copied_does_not_disturb_them(
    api: AsyncClient, sql: Connection
) -> None:
    async with api.transaction() as tx:
        cursor = tx.connection.cursor()
        async for (number,) in cursor.stream("SELECT generate_series(1, 3)"):
            tx.push("q", f"streamed {number}", partition="p")
        async with cursor.copy("COPY orders FROM STDIN") as copy:
            for number in range(2):
                await copy.write_row((number,))
                tx.push("q", f"copied in {number}", partition="p")
        async with taken_back(tx.connection.transaction), cursor.copy("COPY orders TO STDOUT") as copy:
            async for _ in copy.rows():
                tx.push("q", "undone", partition="p")
    assert await pushed(api) == ["streamed 1", "streamed 2", "streamed 3", "copied in 0", "copied in 1"]
    assert orders(sql) == [0, 1]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_connection_of_sqlalchemy_that_commits_each_statement_is_refused(
    api: AsyncClient, dsn: str, driver: str
) -> None:
    engine = engine_of(dsn, driver)
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            async with api.transaction(connection):
                pass
    await engine.dispose()
