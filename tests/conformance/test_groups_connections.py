"""Consuming in a transaction on a connection that the caller already has: psycopg, psycopg2, asyncpg, SQLAlchemy."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine

from penstock import AsyncClient, Client, Message, StoredMessage

from .groups import MODES, drain


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, client: Client, dsn: str) -> Iterator[str]:
    """Group "g" of queue "q", in each mode, with three messages, and a table of the user's own."""
    client.create_group("q", "g", mode=request.param)
    client.push("q", [1, 2, 3])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (value integer)")
    yield request.param
    assert [check for check in client.verify() if check.violations] == []


def results(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM results ORDER BY value")]


@pytest.mark.parametrize("factory", [None, dict_row])
def test_on_a_psycopg_connection_of_ones_own(client: Client, dsn: str, mode: str, factory: Any) -> None:
    options = {} if factory is None else {"row_factory": factory}
    with psycopg.connect(dsn, **options) as connection:
        batch: Any
        for end in (connection.rollback, connection.commit):
            with client.transaction(connection) as tx:
                batch = tx.pop("q", "g")
                connection.execute("INSERT INTO results VALUES (5)")
                tx.push("out", len(batch))
                tx.ack(batch)
            assert client.lag("q", "g") == 3
            end()
        assert (results(dsn), client.lag("q", "g"), drain(client, "out")) == ([5], 0, [3])


def test_on_a_sqlalchemy_connection_of_ones_own(client: Client, dsn: str, mode: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with engine.connect() as connection:
        outside: Any = client.pop("q", "g", max_messages=1)
        for end in (connection.rollback, connection.commit):
            with client.transaction(connection) as tx:
                if end == connection.commit:
                    tx.ack(outside)
                connection.execute(sqlalchemy.text("INSERT INTO results VALUES (5)"))
                while (batch := tx.pop("q", "g")) is not None:
                    tx.ack(batch)
            end()
        assert (results(dsn), client.lag("q", "g")) == ([5], 0)
    engine.dispose()


def on_sqlalchemy(dsn: str) -> Any:
    return sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(dsn)).connect()


@pytest.mark.parametrize("connect", [psycopg2.connect, on_sqlalchemy])
def test_on_a_connection_of_psycopg2(client: Client, dsn: str, mode: str, connect: Callable[[str], Any]) -> None:
    client.push("q", [Message(4, "key", {"traceId": "t"})], partition="keyed")
    connection = connect(dsn)
    for end in (connection.rollback, connection.commit):
        messages: list[StoredMessage] = []
        with client.transaction(connection) as tx:
            while (batch := tx.pop("q", "g")) is not None:
                messages += batch.messages
                tx.push("out", [Message(message.value, message.key) for message in batch.messages], partition="p")
                tx.ack(batch)
        assert client.lag("q", "g") == 4
        end()
    connection.close()
    assert client.lag("q", "g") == 0
    assert [(message.value, message.key) for message in messages] == [
        *((b"%d" % number, None) for number in (1, 2, 3)),
        (b"4", "key"),
    ]
    assert (messages[-1].headers, messages[-1].id) == ({"traceId": "t"}, client.read("q", "keyed")[0].id)
    assert [(message.value, message.key) for message in client.read("out", "p")] == [
        (message.value, message.key) for message in messages
    ]


def test_on_an_asyncpg_connection_of_ones_own(client: Client, dsn: str, mode: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)

    async def work() -> None:
        connection = await asyncpg.connect(
            host=parts["host"],
            port=parts["port"],
            user=parts["user"],
            database=parts["dbname"],
            password=parts.get("password"),
        )
        async with AsyncClient(dsn) as twin:
            for commits in (False, True):
                outer = connection.transaction()
                await outer.start()
                async with twin.transaction(connection) as tx:
                    batch = await tx.pop("q", "g", lease=60)
                    assert batch is not None
                    await connection.execute("INSERT INTO results VALUES (5)")
                    tx.push("out", len(batch))
                    await tx.ack(batch)
                assert await twin.lag("q", "g") == 3
                await (outer.commit() if commits else outer.rollback())
        await connection.close()

    asyncio.run(work())
    assert (results(dsn), client.lag("q", "g"), drain(client, "out")) == ([5], 0, [3])


def test_on_an_asynchronous_sqlalchemy_connection_of_ones_own(client: Client, dsn: str, mode: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    password = f":{parts['password']}" if "password" in parts else ""
    place = f"{parts['user']}{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"

    async def work(driver: str) -> None:
        engine = create_async_engine(f"postgresql+{driver}://{place}")
        async with AsyncClient(dsn) as twin, engine.connect() as connection:
            async with twin.transaction(connection) as tx:
                batch = await tx.pop("q", "g", max_messages=1)
                assert batch is not None
                await connection.execute(sqlalchemy.text("INSERT INTO results VALUES (5)"))
                await tx.ack(batch)
            await connection.commit()
        await engine.dispose()

    for driver in ("asyncpg", "psycopg"):
        asyncio.run(work(driver))
    assert (results(dsn), client.lag("q", "g")) == ([5, 5], 1)
