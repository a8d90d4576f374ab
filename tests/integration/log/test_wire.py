"""What goes the short way answers as a cursor does, and survives what befalls a connection."""

import gc
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID
from weakref import ref

import psycopg
import pytest
from psycopg import errors

from databases import Connection
from penstock import AsyncClient, Client
from penstock.postgres.wire import Wire

ECHO = "SELECT %s::text, %s::bigint, %s::bytea, %s::uuid, NULL::text, now() - now(), ARRAY[1, 2]"
PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'penstock%'"


@pytest.fixture
def wire(sql: Connection) -> Wire:
    """A wire that prepares what comes a second time."""
    sql.prepare_threshold = 1
    return Wire(sql)


def run(sql: Connection, wire: Wire, statement: str, *parameters: Any) -> list[Any]:
    with sql.lock:
        return sql.wait(wire.run(statement, parameters))


@pytest.mark.parametrize("number", [1, 40_000, 1 << 40])
def test_it_answers_as_a_cursor_does(sql: Connection, wire: Wire, number: int) -> None:
    given = ("ä%1", number, b"\0\xff", "6f1c3a5e-0000-4000-8000-000000000001")
    for _ in range(3):
        assert run(sql, wire, ECHO, *given) == sql.execute(ECHO, given, binary=True).fetchall()


def test_a_number_that_outgrows_its_type_is_prepared_once_more(sql: Connection, wire: Wire) -> None:
    for number in [*range(5), *range(40_000, 40_005)]:
        assert run(sql, wire, "SELECT %s::numeric", number) == [(number,)]
    assert sql.execute(PREPARED).fetchall() == [(2,)]


def test_a_cast_says_how_a_parameter_is_sent_whatever_its_value(sql: Connection, wire: Wire) -> None:
    for number in [*range(5), *range(40_000, 40_005), -(1 << 63), None]:
        assert run(sql, wire, "SELECT %s::bigint", number) == [(number,)]
    assert sql.execute(PREPARED).fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer[]", [1, -1, None, (1 << 31) - 1]),
        ("bigint[]", []),
        ("bigint[]", [None, 1 << 62]),
        ("uuid[]", [UUID(int=7), None]),
        ("uuid[]", []),
        ("uuid", UUID(int=1 << 100)),
        ("boolean", True),
        ("boolean", False),
        ("float8", 1),
        ("float8", -0.5),
        ("float8", float("inf")),
        ("text", ""),
        ("text", "ä\U0001f600"),
        ("bytea", b""),
        ("bytea", bytearray(b"\0\1")),
        ("integer", True),
        ("boolean", "yes"),
        ("uuid", "00000000-0000-0000-0000-000000000001"),
        ("bigint[]", (1, 2)),
        ("text", None),
    ],
)
def test_every_value_arrives_as_a_cursor_sends_it(sql: Connection, wire: Wire, kind: str, value: Any) -> None:
    statement = f"SELECT %s::{kind}, pg_typeof(%s::{kind})::text"
    try:
        expected = sql.execute(statement.encode(), (value, value), binary=True).fetchall()
    except psycopg.Error as refused:
        with pytest.raises(type(refused)):
            run(sql, wire, statement, value, value)
    else:
        assert run(sql, wire, statement, value, value) == expected


@pytest.mark.parametrize(("kind", "value"), [("integer", 1 << 40), ("text", "a\0b"), ("integer[]", ["x"])])
def test_a_value_that_cannot_be_sent_is_refused_as_a_cursor_does(
    sql: Connection, wire: Wire, kind: str, value: Any
) -> None:
    statement = f"SELECT %s::{kind}"
    with pytest.raises(psycopg.Error) as expected:
        sql.execute(statement.encode(), (value,), binary=True)
    with pytest.raises(type(expected.value)):
        run(sql, wire, statement, value)


def test_a_statement_is_prepared_when_it_has_come_as_often_as_the_connection_says(sql: Connection) -> None:
    sql.prepare_threshold = 5
    wire = Wire(sql)
    found = []
    for _ in range(7):
        run(sql, wire, "SELECT %s::text", "x")
        found += sql.execute(PREPARED).fetchall()
    assert found == [(0,)] * 5 + [(1,)] * 2


def test_many_rows_and_none(sql: Connection, wire: Wire) -> None:
    statement = "SELECT n FROM generate_series(1, %s::integer) n"
    assert run(sql, wire, statement, 1000) == [(n,) for n in range(1, 1001)]
    assert run(sql, wire, statement, 0) == []


@pytest.mark.parametrize(
    ("statement", "error"),
    [("SELECT no_such_thing(%s::text)", errors.UndefinedFunction), ("SELECT 1 / %s::int", errors.DivisionByZero)],
)
def test_an_error_is_the_cursors_and_the_connection_goes_on(
    sql: Connection, wire: Wire, statement: str, error: type[psycopg.Error]
) -> None:
    for _ in range(2):
        with pytest.raises(error):
            run(sql, wire, statement, 0)
    assert run(sql, wire, "SELECT %s::text", "on") == [("on",)]


@pytest.mark.parametrize("forget", ["DISCARD ALL", "DEALLOCATE ALL", "DEALLOCATE penstock_0"])
def test_what_the_server_was_told_to_forget_is_prepared_again(sql: Connection, wire: Wire, forget: str) -> None:
    for word in ("a", "b", "a", "b"):
        assert run(sql, wire, f"SELECT '{word}', %s::text", word) == [(word, word)]
    assert sql.execute(PREPARED).fetchall() == [(2,)]
    sql.execute(forget.encode())
    for word in ("a", "b", "a"):
        assert run(sql, wire, f"SELECT '{word}', %s::text", word) == [(word, word)]


def test_it_is_for_single_calls_on_servers_that_remember(sql: Connection, wire: Wire) -> None:
    with sql.transaction():
        amid = wire.fits
    sql.prepare_threshold = None
    assert (wire.fits, amid, Wire(sql).fits) == (True, False, False)


def test_a_connection_that_is_closed_is_forgotten(dsn: str) -> None:
    with Client(dsn) as client:
        client.push("q", b"x", partition="p")
        with client.transaction() as tx:
            connection = ref(tx.connection)
            assert "wire" in vars(tx.connection)
    del tx
    gc.collect()
    assert connection() is None


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run the short way."""
    taken: list[str] = []
    short = Wire.run

    def run(wire: Wire, statement: str, parameters: Sequence[Any]) -> Any:
        taken.append(statement)
        return short(wire, statement, parameters)

    monkeypatch.setattr(Wire, "run", run)
    return taken


def test_pushing_popping_and_acknowledging_go_the_short_way(dsn: str, ways: list[str]) -> None:
    with Client(dsn) as client:
        client.create_group("q", "g")
        assert client.push("q", [b"a", b"b"], partition="p").first_offset == 0
        assert client.push("q", {"c": 1}, partition="p", key="k", headers={"h": "1"}).first_offset == 2
        batch = client.pop("q", "g")
        assert batch is not None
        assert [message.value for message in batch.messages] == [b"a", b"b", b'{"c":1}']
        batch.ack()
        with client.transaction() as tx:
            tx.push("q", b"d", partition="p")
        assert client.partitions("q")[0].head == 4
    called = [name for statement in ways for name in re.findall(r"\bpenstock\.(\w+)\(", statement)]
    assert called == ["push_segment", "push_segment", "ack_and_pop", "ack_claims"]


async def test_an_asynchronous_push_goes_the_short_way(dsn: str, ways: list[str]) -> None:
    async with AsyncClient(dsn, push_batching=False) as client:
        assert [(await client.push("q", b"x", partition="p")).first_offset for _ in range(3)] == [0, 1, 2]
    assert len(ways) == 3
