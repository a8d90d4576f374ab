"""A push and the caller's own data commit together or not at all, on whatever connection the caller has."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg2
import psycopg_pool
import pytest
import sqlalchemy as sa
from psycopg import errors
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from databases import Connection
from penstock import AsyncClient, Client, InvalidInput, MessageTooLarge, PenstockError

# Opens the caller's connection; runs SQL on it; how the caller's own transaction is begun and ended.
Execute = Callable[[str], Any]


@contextmanager
def own_psycopg(dsn: str, autocommit: bool) -> Iterator[tuple[Any, Execute]]:
    with psycopg.connect(dsn, autocommit=autocommit) as connection:
        yield connection, lambda query: connection.execute(query.encode())


@contextmanager
def psycopg_in_a_transaction(dsn: str) -> Iterator[tuple[Any, Execute]]:
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
        yield connection, lambda query: connection.execute(query.encode())


@contextmanager
def own_psycopg2(dsn: str) -> Iterator[tuple[Any, Execute]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection:
            yield connection, lambda query: connection.cursor().execute(query)
    finally:
        connection.close()


@contextmanager
def closing(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


@contextmanager
def sqlalchemy_connection(dsn: str, driver: Any = psycopg) -> Iterator[tuple[Any, Execute]]:
    engine = sa.create_engine(f"postgresql+{driver.__name__}://", creator=lambda: driver.connect(dsn))
    with closing(engine), engine.begin() as connection:
        yield connection, lambda query: connection.execute(sa.text(query))


@contextmanager
def sqlalchemy_session(dsn: str) -> Iterator[tuple[Any, Execute]]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with closing(engine), Session(engine) as session, session.begin():
        yield session, lambda query: session.execute(sa.text(query))


KINDS: dict[str, Callable[[str], Any]] = {
    "psycopg": lambda dsn: own_psycopg(dsn, autocommit=False),
    "psycopg, autocommit": lambda dsn: own_psycopg(dsn, autocommit=True),
    "psycopg, in a transaction": psycopg_in_a_transaction,
    "SQLAlchemy connection": sqlalchemy_connection,
    "SQLAlchemy session": sqlalchemy_session,
    "psycopg2": own_psycopg2,
    "SQLAlchemy on psycopg2": lambda dsn: sqlalchemy_connection(dsn, psycopg2),
}


class Changed(Exception):
    """The caller changed its mind."""


@pytest.fixture
def orders(sql: Connection) -> Callable[[], int]:
    """A table of the caller's own, and how many rows it has."""
    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")

    def count() -> int:
        ((number,),) = sql.execute("SELECT count(*) FROM orders").fetchall()
        return int(number)

    return count


def pushed(client: Client) -> list[Any]:
    return [message.json() for queue in client.queues() for message in client.read(queue.name, "0")]


@pytest.mark.parametrize("kind", KINDS)
def test_both_commit(client: Client, dsn: str, orders: Callable[[], int], kind: str) -> None:
    with KINDS[kind](dsn) as (connection, execute), client.transaction(connection) as tx:
        assert tx.connection is connection
        execute("INSERT INTO orders VALUES (1)")
        first = tx.push("q", [1, 2])
        execute("INSERT INTO orders VALUES (2)")
        second = tx.push("q", 3)
    assert orders() == 2
    assert pushed(client) == [1, 2, 3]
    assert (first.result.first_offset, second.result.first_offset) == (0, 2)
    assert client.get(second.result.ids[0]).json() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_both_roll_back(client: Client, dsn: str, orders: Callable[[], int], kind: str) -> None:
    with (
        pytest.raises(Changed),
        KINDS[kind](dsn) as (connection, execute),
        client.transaction(connection) as tx,
    ):
        execute("INSERT INTO orders VALUES (1)")
        tx.push("q", 1)
        raise Changed
    assert orders() == 0
    assert client.queues() == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "psycopg, autocommit"])
def test_the_callers_rollback_after_the_block_takes_the_push_along(
    client: Client, dsn: str, orders: Callable[[], int], kind: str
) -> None:
    with pytest.raises(Changed), KINDS[kind](dsn) as (connection, execute):
        with client.transaction(connection) as tx:
            execute("INSERT INTO orders VALUES (1)")
            tx.push("q", 1)
        raise Changed
    assert orders() == 0
    assert client.queues() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_push_is_a_penstock_error_and_takes_the_data_back(
    client: Client, dsn: str, orders: Callable[[], int], kind: str
) -> None:
    client.create("q", max_message_bytes=1)
    with (
        pytest.raises(MessageTooLarge, match="max_message_bytes"),
        KINDS[kind](dsn) as (connection, execute),
        client.transaction(connection) as tx,
    ):
        execute("INSERT INTO orders VALUES (1)")
        tx.push("q", "too large")
    assert orders() == 0
    assert client.partitions("q") == []


def test_the_clients_own_transaction_commits_both(client: Client, orders: Callable[[], int]) -> None:
    with client.transaction() as tx:
        tx.connection.execute("INSERT INTO orders VALUES (1)")
        tx.push("q", 1)
    assert (orders(), pushed(client)) == (1, [1])


def test_the_clients_own_transaction_rolls_back_both(client: Client, orders: Callable[[], int]) -> None:
    with pytest.raises(Changed), client.transaction() as tx:
        tx.connection.execute("INSERT INTO orders VALUES (1)")
        tx.push("q", 1)
        raise Changed
    assert (orders(), pushed(client)) == (0, [])


def test_an_error_of_the_callers_own_sql_comes_out_as_it_is(client: Client, orders: Callable[[], int]) -> None:
    with pytest.raises(errors.UniqueViolation), client.transaction() as tx:
        tx.push("q", 1)
        tx.connection.execute("INSERT INTO orders VALUES (1), (1)")
    assert (orders(), pushed(client)) == (0, [])


def test_an_error_that_the_caller_makes_of_it_comes_out_as_it_is(client: Client, orders: Callable[[], int]) -> None:
    with pytest.raises(Changed), client.transaction() as tx:
        try:
            tx.connection.execute("INSERT INTO orders VALUES (1), (1)")
        except errors.UniqueViolation as error:
            raise Changed from error
    assert orders() == 0


def test_a_savepoint_of_the_caller_does_not_end_the_transaction(client: Client, orders: Callable[[], int]) -> None:
    with client.transaction() as tx:
        with pytest.raises(errors.UniqueViolation), tx.connection.transaction():
            tx.connection.execute("INSERT INTO orders VALUES (1), (1)")
        tx.connection.execute("INSERT INTO orders VALUES (2)")
        tx.push("q", 1)
    assert (orders(), pushed(client)) == (1, [1])


def test_partitions_are_locked_only_when_the_block_ends(client: Client, sql: Connection) -> None:
    client.push("q", 0)
    sql.execute("SET penstock.lock_timeout = '1s'")
    with client.transaction() as tx:
        pending = tx.push("q", "gathered")
        sql.execute("SELECT penstock.push_json('q', '\"meanwhile\"', '0')")
    assert pending.result.first_offset == 2
    assert pushed(client) == [0, "meanwhile", "gathered"]


def test_a_deferred_constraint_that_fails_at_commit_takes_the_push_back(client: Client, sql: Connection) -> None:
    sql.execute("CREATE TABLE late (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(PenstockError), client.transaction() as tx:
        tx.connection.execute("INSERT INTO late VALUES (1), (1)")
        tx.push("q", 1)
    assert client.queues() == []


async def test_what_is_no_connection_is_answered_with_what_to_give_instead(client: Client, dsn: str) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    async_engine = create_async_engine("postgresql+psycopg://", async_creator=psycopg.AsyncConnection.connect)
    api = AsyncClient(dsn)
    factories: list[tuple[Any, str]] = [
        (engine, "with engine.begin"),
        (async_engine, "with engine.begin"),
        (sessionmaker(engine), "with factory"),
        (async_sessionmaker(async_engine), "with factory"),
        (psycopg_pool.ConnectionPool(dsn, open=False), "take one from it"),
    ]
    for given, advice in factories:
        with pytest.raises(InvalidInput, match=advice), client.transaction(given):
            pytest.fail("the block was entered")
        with pytest.raises(InvalidInput, match=advice):
            async with api.transaction(given):
                pytest.fail("the block was entered")
    async with await psycopg.AsyncConnection.connect(dsn) as connection, AsyncSession(async_engine) as session:
        for given in (connection, session):
            with pytest.raises(InvalidInput, match="asynchronous: use AsyncClient"), client.transaction(given):
                pytest.fail("the block was entered")
    with Session(engine) as plain, pytest.raises(InvalidInput, match="synchronous: use Client"):
        async with api.transaction(plain):
            pytest.fail("the block was entered")
    await api.close()


def test_an_asynchronous_connection_is_refused_by_the_synchronous_client(client: Client) -> None:
    class AsyncConnection:
        __module__ = "asyncpg.connection"

    with pytest.raises(InvalidInput, match="use AsyncClient"), client.transaction(AsyncConnection()):
        pytest.fail("the block was entered")
