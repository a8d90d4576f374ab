"""The same promises on Django's connection, inside `atomic` and outside of it."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from databases import Connection
from penstock import Client, MessageTooLarge


class Changed(Exception):
    """The caller changed its mind."""


@pytest.fixture
def connection(dsn: str, sql: Connection) -> Iterator[Any]:
    values = conninfo_to_dict(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": values["dbname"],
        "USER": values.get("user", ""),
        "PASSWORD": values.get("password", ""),
        "HOST": values.get("host", ""),
        "PORT": values.get("port", ""),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    from django.db import connections

    sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    yield connections["default"]
    connections["default"].close()


def insert(connection: Any, number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])


def state(client: Client, sql: Connection) -> tuple[int, list[Any]]:
    ((orders,),) = sql.execute("SELECT count(*) FROM orders").fetchall()
    return orders, [message.json() for queue in client.queues() for message in client.tail(queue.name, follow=False)]


def test_in_autocommit_the_block_is_the_transaction(connection: Any, client: Client, sql: Connection) -> None:
    with client.transaction(connection) as tx:
        insert(connection, 1)
        pending = tx.push("q", {"order": 1})
    assert state(client, sql) == (1, [{"order": 1}])
    assert pending.result.first_offset == 0
    with pytest.raises(Changed), client.transaction(connection) as tx:
        insert(connection, 2)
        tx.push("q", {"order": 2})
        raise Changed
    assert state(client, sql) == (1, [{"order": 1}])


def test_in_atomic_the_push_commits_with_the_outer_block(connection: Any, client: Client, sql: Connection) -> None:
    from django.db import transaction

    with transaction.atomic():
        insert(connection, 1)
        with client.transaction(connection) as tx:
            tx.push("q", 1)
        assert state(client, sql) == (0, [])
    assert state(client, sql) == (1, [1])
    with pytest.raises(Changed), transaction.atomic():
        insert(connection, 2)
        with client.transaction(connection) as tx:
            tx.push("q", 2)
        raise Changed
    assert state(client, sql) == (1, [1])


def test_a_refused_push_takes_the_data_back(connection: Any, client: Client, sql: Connection) -> None:
    client.create("q", max_message_bytes=1)
    with pytest.raises(MessageTooLarge), client.transaction(connection) as tx:
        insert(connection, 1)
        tx.push("q", "too large")
    assert state(client, sql) == (0, [])


def test_an_error_of_the_callers_own_sql_comes_out_as_it_is(connection: Any, client: Client) -> None:
    from django.db import IntegrityError

    with pytest.raises(IntegrityError), client.transaction(connection) as tx:
        tx.push("q", 1)
        insert(connection, 1)
        insert(connection, 1)
    assert client.queues() == []
