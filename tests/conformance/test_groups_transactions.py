"""Consume, transform and produce in one transaction: all of it commits, or nothing does."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine

from penstock import AsyncClient, Client, LeaseLost, PenstockError

from .groups import MODES, drain, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, api: Any, dsn: str) -> str:
    """Group "g" of queue "q", in each mode, with three messages, and a table of the user's own."""
    api.create_group("q", "g", mode=request.param)
    api.push("q", [1, 2, 3])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (value integer)")
    return str(request.param)


def results(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM results ORDER BY value")]


def execute(api: Any, tx: Any, value: int) -> None:
    """Write into the user's own table, on the transaction's connection."""
    done = tx.connection.execute("INSERT INTO results VALUES (%s)", (value,))
    if asyncio.iscoroutine(done):
        api._run(done)


def test_claim_own_writes_pushes_and_ack_commit_together(api: Any, dsn: str, mode: str) -> None:
    with api.transaction() as tx:
        batch = tx.pop("q", "g", max_messages=2)
        for message in batch.messages:
            execute(api, tx, message.json())
            tx.push("out", message.json() * 10)
        tx.ack(batch)
        assert api.lag("q", "g") == 3
    assert batch.settled
    assert (results(dsn), drain(api, "out"), api.lag("q", "g")) == ([1, 2], [10, 20], 1)
    assert drain(api, "q", "g") == [3]


def test_an_error_takes_back_claim_own_writes_pushes_and_ack(api: Any, dsn: str, mode: str) -> None:
    def fail() -> None:
        with api.transaction() as tx:
            batch = tx.pop("q", "g")
            execute(api, tx, 1)
            tx.push("out", 1)
            tx.ack(batch)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert (results(dsn), api.lag("q", "g"), api.claims("q")) == ([], 3, [])
    assert [queue.name for queue in api.queues()] == ["q"]
    again = api.pop("q", "g")
    assert (values(again), again.messages[0].attempt) == ([1, 2, 3], 1)


def test_a_batch_that_was_popped_outside_is_acknowledged_inside(api: Any, dsn: str, mode: str) -> None:
    batch = api.pop("q", "g")

    def fail() -> None:
        with api.transaction() as tx:
            tx.ack(batch)
            raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        fail()
    assert not batch.settled
    assert api.lag("q", "g") == 3
    with api.transaction() as tx:
        execute(api, tx, 7)
        tx.ack(batch)
    assert (results(dsn), api.lag("q", "g")) == ([7], 0)
    with pytest.raises(PenstockError, match="settled already"):
        batch.ack()


def test_an_ack_whose_lease_is_gone_takes_the_whole_transaction_back(api: Any, dsn: str, mode: str) -> None:
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])

    def work() -> None:
        with api.transaction() as tx:
            execute(api, tx, 1)
            tx.push("out", 1)
            tx.ack(batch)

    with pytest.raises(LeaseLost):
        work()
    assert (results(dsn), [queue.name for queue in api.queues()]) == ([], ["q"])


def test_a_claim_that_is_not_acknowledged_inside_is_held_after_the_commit(api: Any, mode: str) -> None:
    with api.transaction() as tx:
        batch = tx.pop("q", "g", max_messages=2, lease=100)
        assert api.claims("q") == []
    assert len(api.claims("q")) == 1
    assert values(batch) == [1, 2]
    api.release_claim(api.claims("q")[0])
    assert sorted(drain(api, "q", "g")) == [1, 2, 3]


def test_nothing_to_pop_in_a_transaction_is_none(open_api: Callable[..., Any]) -> None:
    api = open_api()
    with api.transaction() as tx:
        assert tx.pop("q", "g") is None


@pytest.mark.parametrize("factory", [None, dict_row])
def test_on_a_psycopg_connection_of_ones_own(api: Any, dsn: str, mode: str, factory: Any) -> None:
    options = {} if factory is None else {"row_factory": factory}
    with Client(dsn) as client, psycopg.connect(dsn, **options) as connection:
        for end in (connection.rollback, connection.commit):
            with client.transaction(connection) as tx:
                batch = tx.pop("q", "g")
                connection.execute("INSERT INTO results VALUES (5)")
                tx.push("out", len(batch))
                tx.ack(batch)
            assert client.lag("q", "g") == 3
            end()
        assert (results(dsn), client.lag("q", "g"), drain(client, "out")) == ([5], 0, [3])


def test_on_a_sqlalchemy_connection_of_ones_own(api: Any, dsn: str, mode: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with Client(dsn) as client, engine.connect() as connection:
        outside = client.pop("q", "g", max_messages=1)
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


def test_on_an_asyncpg_connection_of_ones_own(api: Any, dsn: str, mode: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)

    async def work() -> None:
        connection = await asyncpg.connect(
            host=parts["host"],
            port=parts["port"],
            user=parts["user"],
            database=parts["dbname"],
            password=parts.get("password"),
        )
        async with AsyncClient(dsn) as client:
            for commits in (False, True):
                outer = connection.transaction()
                await outer.start()
                async with client.transaction(connection) as tx:
                    batch = await tx.pop("q", "g", lease=60)
                    assert batch is not None
                    await connection.execute("INSERT INTO results VALUES (5)")
                    tx.push("out", len(batch))
                    await tx.ack(batch)
                assert await client.lag("q", "g") == 3
                await (outer.commit() if commits else outer.rollback())
        await connection.close()

    asyncio.run(work())
    assert (results(dsn), api.lag("q", "g"), drain(api, "out")) == ([5], 0, [3])


def test_on_an_asynchronous_sqlalchemy_connection_of_ones_own(api: Any, dsn: str, mode: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    password = f":{parts['password']}" if "password" in parts else ""
    place = f"{parts['user']}{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"

    async def work(driver: str) -> None:
        engine = create_async_engine(f"postgresql+{driver}://{place}")
        async with AsyncClient(dsn) as client, engine.connect() as connection:
            async with client.transaction(connection) as tx:
                batch = await tx.pop("q", "g", max_messages=1)
                assert batch is not None
                await connection.execute(sqlalchemy.text("INSERT INTO results VALUES (5)"))
                await tx.ack(batch)
            await connection.commit()
        await engine.dispose()

    for driver in ("asyncpg", "psycopg"):
        asyncio.run(work(driver))
    assert (results(dsn), api.lag("q", "g")) == ([5, 5], 1)
