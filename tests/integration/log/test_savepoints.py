"""What is rolled back to a savepoint was neither pushed nor acknowledged, whichever driver did it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import django
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session

from databases import Connection
from penstock import Client, InvalidInput, PenstockError


class Changed(Exception):
    """The caller changed its mind."""


# A connection, how SQL is run on it, and what makes a savepoint around a block.
Way = tuple[Any, Callable[[str], Any], Callable[[], AbstractContextManager[Any]]]


@contextmanager
def by_hand(execute: Callable[[str], Any], name: str = "by_hand") -> Iterator[None]:
    execute(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        execute(f"ROLLBACK TO SAVEPOINT {name}")
        raise
    execute(f"RELEASE SAVEPOINT {name}")


@contextmanager
def on_psycopg(dsn: str, autocommit: bool = False, hand: bool = False) -> Iterator[Way]:
    with psycopg.connect(dsn, autocommit=autocommit) as connection:

        def execute(query: str) -> Any:
            return connection.execute(query.encode())

        yield connection, execute, (lambda: by_hand(execute)) if hand else connection.transaction


@contextmanager
def on_psycopg2(dsn: str) -> Iterator[Way]:
    connection = psycopg2.connect(dsn)

    def execute(query: str) -> Any:
        return connection.cursor().execute(query)

    with connection:
        yield connection, execute, lambda: by_hand(execute)
    connection.close()


@contextmanager
def on_sqlalchemy(dsn: str, hand: bool = False) -> Iterator[Way]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with engine.begin() as connection:

        def execute(query: str) -> Any:
            return connection.execute(sa.text(query))

        yield connection, execute, (lambda: by_hand(execute)) if hand else connection.begin_nested
    engine.dispose()


@contextmanager
def on_a_session(dsn: str) -> Iterator[Way]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with Session(engine) as session, session.begin():
        yield session, lambda query: session.execute(sa.text(query)), session.begin_nested
    engine.dispose()


@contextmanager
def on_django(dsn: str) -> Iterator[Way]:
    values = conninfo_to_dict(dsn)
    places = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {
        "ENGINE": "django.db.backends.postgresql",
        **{name: values.get(place) or "" for name, place in places.items()},
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    from django.db import connections, transaction

    connection = connections["default"]

    def execute(query: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(query)

    yield connection, execute, transaction.atomic
    connection.close()


WAYS: dict[str, Callable[[str], AbstractContextManager[Way]]] = {
    "psycopg": on_psycopg,
    "psycopg, autocommit": lambda dsn: on_psycopg(dsn, autocommit=True),
    "psycopg, by hand": lambda dsn: on_psycopg(dsn, hand=True),
    "psycopg2": on_psycopg2,
    "SQLAlchemy": on_sqlalchemy,
    "SQLAlchemy, by hand": lambda dsn: on_sqlalchemy(dsn, hand=True),
    "SQLAlchemy session": on_a_session,
    "Django": on_django,
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, dsn: str, sql: Connection) -> Callable[[], AbstractContextManager[Way]]:
    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    return lambda: WAYS[request.param](dsn)


Open = Callable[[], AbstractContextManager[Way]]


def pushed(client: Client) -> list[Any]:
    return [message.json() for queue in client.queues() for message in client.tail(queue.name, follow=False)]


def orders(sql: Connection) -> list[int]:
    return [number for (number,) in sql.execute("SELECT id FROM orders ORDER BY id")]


@contextmanager
def taken_back(savepoint: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """A savepoint to which the body is rolled back."""
    try:
        with savepoint():
            yield
            raise Changed
    except Changed:
        pass


def test_pushes_and_data_of_a_savepoint_are_rolled_back_together(client: Client, sql: Connection, way: Open) -> None:
    with way() as (connection, execute, savepoint), client.transaction(connection) as tx:
        before = tx.push("q", "before")
        with taken_back(savepoint):
            execute("INSERT INTO orders VALUES (1)")
            undone = tx.push("q", "undone")
        execute("INSERT INTO orders VALUES (2)")
        after = tx.push_many("q", [("0", "after")])
    assert (orders(sql), pushed(client)) == ([2], ["before", "after"])
    assert (before.result.first_offset, after.results[0].first_offset) == (0, 1)
    with pytest.raises(PenstockError, match="rolled back"):
        _ = undone.result


def test_pushes_of_a_released_savepoint_stay(client: Client, sql: Connection, way: Open) -> None:
    with way() as (connection, execute, savepoint), client.transaction(connection) as tx, savepoint():
        execute("INSERT INTO orders VALUES (1)")
        tx.push("q", "kept")
    assert (orders(sql), pushed(client)) == ([1], ["kept"])


def test_an_outer_savepoint_takes_what_an_inner_one_released(client: Client, sql: Connection, way: Open) -> None:
    with way() as (connection, execute, savepoint), client.transaction(connection) as tx:
        with savepoint():
            tx.push("q", "outer")
            with taken_back(savepoint):
                tx.push("q", "inner, undone")
        with taken_back(savepoint):
            with savepoint():
                tx.push("q", "inner, released")
            execute("INSERT INTO orders VALUES (1)")
        tx.push("q", "last")
    assert (orders(sql), pushed(client)) == ([], ["outer", "last"])


def test_an_error_of_sql_in_a_savepoint_takes_pushes_before_and_after_it(
    client: Client, sql: Connection, way: Open
) -> None:
    with way() as (connection, execute, savepoint), client.transaction(connection) as tx:
        execute("INSERT INTO orders VALUES (1)")
        with taken_back(savepoint):
            tx.push("q", "before the error")
            with pytest.raises(Exception, match="orders_pkey"):
                execute("INSERT INTO orders VALUES (1)")
            tx.push("q", "after the error")
        tx.push("q", "last")
    assert (orders(sql), pushed(client)) == ([1], ["last"])


def test_a_batch_acknowledged_in_a_savepoint_is_acknowledged_again_after_it(client: Client, way: Open) -> None:
    client.create_group("q", "g")
    client.push("q", [1, 2])
    batch = client.pop("q", "g")
    assert batch is not None
    with way() as (connection, _, savepoint):
        with client.transaction(connection) as tx, taken_back(savepoint):
            tx.ack(batch)
        assert [batch.settled] == [False]
        with client.transaction(connection) as tx:
            with taken_back(savepoint):
                tx.ack(batch)
            tx.ack(batch)
            with pytest.raises(PenstockError, match="settled already"):
                tx.ack(batch)
        assert [batch.settled] == [True]
    assert client.lag("q", "g") == 0


def test_a_batch_of_the_transaction_is_open_again_after_its_savepoint(client: Client, way: Open) -> None:
    client.push("q", [1, 2])
    client.create_group("q", "g", subscription="all")
    with way() as (connection, _, savepoint):
        with client.transaction(connection) as tx:
            batch = tx.pop("q", "g")
            assert batch is not None
            with taken_back(savepoint):
                batch.ack()
        assert [batch.settled] == [False]
    assert (client.lag("q", "g"), len(client.claims("q"))) == (2, 1)


def test_two_blocks_on_one_connection_do_not_mix_up_their_savepoints(client: Client, way: Open) -> None:
    with way() as (connection, _, savepoint), client.transaction(connection) as outer:
        outer.push("q", "outer")
        with taken_back(savepoint):
            outer.push("q", "outer, undone")
            with client.transaction(connection) as inner:
                inner.push("q", "inner, undone")
        with client.transaction(connection) as inner, taken_back(savepoint):
            inner.push("q", "inner, undone too")
        outer.push("q", "outer, again")
    assert pushed(client) == ["outer", "outer, again"]


def test_the_clients_own_transaction_knows_savepoints(client: Client) -> None:
    with client.transaction() as tx:
        tx.push("q", 1)
        with taken_back(tx.connection.transaction):
            tx.push("q", 2)
        tx.push("q", 3)
        with tx.connection.pipeline():
            tx.connection.execute("SAVEPOINT piped")
            tx.push("q", 4)
            tx.connection.execute("ROLLBACK TO piped")
        tx.push("q", 5)
    assert pushed(client) == [1, 3, 5]
    with client.transaction() as tx:
        assert "wait" in vars(tx.connection)
    assert "wait" not in vars(tx.connection)


def rolled_back_on_sqlalchemy(dsn: str, driver: Any, session: bool) -> Iterator[Any]:
    name = driver.__name__
    engine = sa.create_engine(f"postgresql+{name}://", creator=lambda: driver.connect(dsn))
    with Session(engine) if session else engine.connect() as connection:
        yield connection
    engine.dispose()


CONNECTED: dict[str, Callable[[str], Iterator[Any]]] = {
    "psycopg": lambda dsn: iter([psycopg.connect(dsn)]),
    "psycopg2": lambda dsn: iter([psycopg2.connect(dsn)]),
    "SQLAlchemy on psycopg": lambda dsn: rolled_back_on_sqlalchemy(dsn, psycopg, session=False),
    "SQLAlchemy on psycopg2": lambda dsn: rolled_back_on_sqlalchemy(dsn, psycopg2, session=False),
    "SQLAlchemy session on psycopg": lambda dsn: rolled_back_on_sqlalchemy(dsn, psycopg, session=True),
    "SQLAlchemy session on psycopg2": lambda dsn: rolled_back_on_sqlalchemy(dsn, psycopg2, session=True),
}


@pytest.mark.parametrize("kind", CONNECTED)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_ends_within_the_block_is_refused(client: Client, dsn: str, kind: str, end: str) -> None:
    client.push("old", [1, 2])
    batch = client.pop("old")
    assert batch is not None

    def work(connection: Any) -> None:
        with client.transaction(connection) as tx:
            tx.push("q", 1)
            tx.ack(batch)
            getattr(connection, end)()

    for connection in CONNECTED[kind](dsn):
        with pytest.raises(PenstockError, match="end it after the block"):
            work(connection)
        connection.commit()
        connection.close()
    assert [queue.name for queue in client.queues()] == ["old"]
    assert not batch.settled


def test_a_block_in_which_the_settings_are_reset_is_refused(client: Client, way: Open) -> None:
    with way() as (connection, execute, savepoint):

        def work() -> None:
            with client.transaction(connection) as tx:
                with savepoint():
                    tx.push("q", 1)
                execute("RESET ALL")

        with pytest.raises(PenstockError, match="settings were reset"):
            work()
    assert client.queues() == []


@pytest.mark.parametrize("reset", ["RESET ALL", "SET penstock.marks = ''", "SET LOCAL penstock.marks TO DEFAULT"])
def test_the_clients_own_transaction_refuses_that_its_settings_are_reset(client: Client, reset: str) -> None:
    def work() -> None:
        with client.transaction() as tx:
            tx.connection.execute("SAVEPOINT a")
            tx.push("q", 1)
            tx.connection.execute(reset.encode())

    with pytest.raises(PenstockError, match="settings were reset"):
        work()
    assert client.queues() == []


@pytest.mark.parametrize("kind", ["psycopg", "psycopg2", "SQLAlchemy, by hand"])
def test_a_rollback_to_a_savepoint_from_before_the_block_is_refused(client: Client, dsn: str, kind: str) -> None:
    with WAYS[kind](dsn) as (connection, execute, _):

        def work() -> None:
            with client.transaction(connection) as tx:
                tx.push("q", 1)
                execute("ROLLBACK TO before")

        execute("SAVEPOINT before")
        with pytest.raises(PenstockError, match="from before the block"):
            work()
    assert client.queues() == []


def test_a_push_while_rows_are_streamed_or_copied_does_not_disturb_them(client: Client, sql: Connection) -> None:
    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    with client.transaction() as tx:
        cursor = tx.connection.cursor()
        for (number,) in cursor.stream("SELECT generate_series(1, 3)"):
            tx.push("q", f"streamed {number}", partition="p")
        with cursor.copy("COPY orders FROM STDIN") as copy:
            for number in range(2):
                copy.write_row((number,))
                tx.push("q", f"copied in {number}", partition="p")
        with taken_back(tx.connection.transaction), cursor.copy("COPY orders TO STDOUT") as copy:
            for _ in copy.rows():
                tx.push("q", "undone", partition="p")
    assert pushed(client) == ["streamed 1", "streamed 2", "streamed 3", "copied in 0", "copied in 1"]
    assert orders(sql) == [0, 1]


@pytest.mark.parametrize("driver", [psycopg, psycopg2], ids=["psycopg", "psycopg2"])
def test_a_connection_of_sqlalchemy_that_commits_each_statement_is_refused(
    client: Client, dsn: str, driver: Any
) -> None:
    engine = sa.create_engine(f"postgresql+{driver.__name__}://", creator=lambda: driver.connect(dsn))
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidInput, match="AUTOCOMMIT"),
        client.transaction(connection),
    ):
        pass
    engine.dispose()


def test_a_block_of_sqlalchemy_without_savepoints_runs_two_more_statements_whatever_it_pushes(
    client: Client, dsn: str
) -> None:
    client.push("q", 0, partition="p")
    statements: list[str] = []
    with on_sqlalchemy(dsn) as (connection, execute, _):
        sa.event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2]))
        with client.transaction(connection) as tx:
            for number in range(3):
                tx.push("q", number, partition="p")
                execute("SELECT 1")
    assert [statement.split("(")[0] for statement in statements] == [
        "SELECT extract", "SELECT 1", "SELECT 1", "SELECT 1", "SELECT extract", "SELECT * FROM penstock.push_segment",
    ]  # fmt: skip
