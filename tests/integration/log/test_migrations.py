"""A database is brought to the version that the code needs: once, wholly, by anyone who may create a schema."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal

from penstock import Client, SetupError
from penstock import sql as source
from penstock.postgres.migrate import migrate

CATALOG = {
    "functions": "SELECT p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), coalesce(p.proacl::text, '')"
    " FROM pg_proc p WHERE p.pronamespace = 'penstock'::regnamespace ORDER BY 1",
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, generation_expression"
    " FROM information_schema.columns WHERE table_schema = 'penstock' ORDER BY table_name, ordinal_position",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'penstock' ORDER BY 1",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'penstock'::regnamespace ORDER BY 1, 2",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'penstock' ORDER BY 1",
    "relations": "SELECT relname, relkind, reloptions, coalesce(relacl::text, '') FROM pg_class"
    " WHERE relnamespace = 'penstock'::regnamespace ORDER BY 1",
    "storage": "SELECT attrelid::regclass::text, attname, attstorage, attcompression FROM pg_attribute a"
    " JOIN pg_class c ON c.oid = attrelid WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind = 'r'"
    " AND attnum > 0 ORDER BY 1, 2",
    "migrations": "SELECT number, name FROM penstock.migrations ORDER BY 1",
}


def catalog(dsn: str) -> dict[str, list[Any]]:
    with psycopg.connect(dsn) as connection:
        return {what: connection.execute(query.encode()).fetchall() for what, query in CATALOG.items()}


@pytest.fixture
def new_database(penstock_server: str) -> Iterator[Callable[..., str]]:
    """Makes empty databases."""
    made: list[str] = []
    with psycopg.connect(penstock_server, autocommit=True) as connection:

        def create(owner: str | None = None) -> str:
            made.append(f"penstock_empty_{uuid4().hex[:12]}")
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(made[-1])))
            if owner is not None:
                connection.execute(
                    SQL("GRANT CREATE ON DATABASE {} TO {}").format(Identifier(made[-1]), Identifier(owner))
                )
            return make_conninfo(penstock_server, dbname=made[-1])

        yield create
        for name in made:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture
def user(penstock_server: str) -> Iterator[tuple[str, str]]:
    """A database user without any rights, and its password."""
    name, password = f"penstock_user_{uuid4().hex[:12]}", "it's secret"
    with psycopg.connect(penstock_server, autocommit=True) as connection:
        connection.execute(
            SQL("CREATE ROLE {} LOGIN NOSUPERUSER PASSWORD {}").format(Identifier(name), Literal(password))
        )
        yield name, password
        connection.execute(SQL("DROP ROLE {}").format(Identifier(name)))


def test_an_empty_database_is_migrated_on_first_connect(new_database: Callable[..., str]) -> None:
    dsn = new_database()
    with Client(dsn) as client:
        assert client.push("q", 1).first_offset == 0
    assert [number for number, _ in catalog(dsn)["migrations"]] == [step.number for step in source.migrations()]


def test_many_first_connects_at_once_migrate_once(new_database: Callable[..., str]) -> None:
    dsn, failures = new_database(), []

    def use(number: int) -> None:
        try:
            with Client(dsn, pool_size=1) as client:
                client.push("q", number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Client(dsn) as client:
        assert client.describe("q").messages == 4


def test_migrating_twice_is_harmless(penstock_dsn: str) -> None:
    before = catalog(penstock_dsn)
    with Client(penstock_dsn) as client:
        client.push("q", [1, 2])
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        again = migrate(connection)
    assert (again.before, again.after) == (source.version(), source.version())
    assert (again.partitions, again.partitions_with_messages) == (1, 1)
    assert catalog(penstock_dsn) == before
    with Client(penstock_dsn) as client:
        assert [message.json() for message in client.read("q", "0")] == [1, 2]


def test_migrating_with_nothing_to_do_waits_for_no_transaction(penstock_dsn: str) -> None:
    with (
        psycopg.connect(penstock_dsn) as busy,
        psycopg.connect(penstock_dsn, autocommit=True, options="-c lock_timeout=5s") as connection,
    ):
        busy.execute("SELECT penstock.push_json('q', '1')")
        for (table,) in busy.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'").fetchall():
            busy.execute(SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(Identifier("penstock", table)))
        assert migrate(connection).before == source.version()


def test_a_server_that_gained_lz4_is_used_to_the_full(penstock_dsn: str) -> None:
    before = catalog(penstock_dsn)
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        if connection.execute("SELECT penstock.lz4_available()").fetchall() == [(True,)]:
            connection.execute("ALTER TABLE penstock.segments ALTER COLUMN body_compressed SET COMPRESSION pglz")
        connection.execute("ALTER TABLE penstock.segments ALTER COLUMN keys SET STORAGE MAIN")
        migrate(connection)
    assert catalog(penstock_dsn) == before


def test_functions_are_kept_that_were_written_after_a_savepoint(penstock_dsn: str) -> None:
    """As psql does with ON_ERROR_ROLLBACK."""
    before = catalog(penstock_dsn)
    with psycopg.connect(penstock_dsn) as connection:
        connection.execute("SELECT 1")
        for part in source.repeatable().split("\n-- Drops functions"):
            with connection.transaction():
                connection.execute(part.encode() if part.startswith("SET") else f"-- {part}".encode())
    assert catalog(penstock_dsn) == before


def test_a_newer_schema_is_refused_and_left_alone(penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO penstock.migrations (number, name) VALUES (9999, 'from the future')")
        before = catalog(penstock_dsn)
        with pytest.raises(SetupError, match=r"version 9999 .* upgrade penstock"):
            Client(penstock_dsn)
        with pytest.raises(SetupError, match="upgrade penstock"):
            migrate(connection)
    assert catalog(penstock_dsn) == before


def test_a_schema_from_before_the_first_release_is_refused_and_left_alone(penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        connection.execute("UPDATE penstock.migrations SET name = 'log' WHERE number = 1")
        for newest in (1, 20):
            connection.execute(
                "INSERT INTO penstock.migrations (number, name) VALUES (%s, 'limits') ON CONFLICT DO NOTHING", (newest,)
            )
            before = catalog(penstock_dsn)
            with pytest.raises(SetupError, match=r"development version .* use a new database"):
                Client(penstock_dsn)
            with pytest.raises(SetupError, match="use a new database"):
                migrate(connection)
            assert catalog(penstock_dsn) == before


def works(dsn: str) -> None:
    with Client(dsn) as client:
        client.push("q", 1)
        with client.pop("q", "g") as batch:  # type: ignore[union-attr]
            assert len(batch) == 1


def test_a_schema_that_is_one_version_ahead_serves_older_clients(penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO penstock.migrations (number, name) VALUES (%s, 'the next one')", (source.version() + 1,)
        )
        before = catalog(penstock_dsn)
        works(penstock_dsn)
        with pytest.raises(SetupError, match="upgrade penstock"):
            migrate(connection)
    assert catalog(penstock_dsn) == before


def test_a_schema_that_is_one_version_behind_serves_newer_clients_and_stays_as_it_is(
    penstock_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = source.version() + 1
    monkeypatch.setattr(source, "version", lambda: ahead)
    before = catalog(penstock_dsn)
    works(penstock_dsn)
    assert catalog(penstock_dsn) == before


def test_an_older_schema_says_how_to_migrate(penstock_dsn: str) -> None:
    with psycopg.connect(penstock_dsn, autocommit=True) as connection:
        connection.execute("UPDATE penstock.migrations SET number = 0 WHERE number = 1")
        connection.execute("DELETE FROM penstock.migrations WHERE number > 1")
    with pytest.raises(SetupError, match="run `penstock migrate`"):
        Client(penstock_dsn)


def test_a_failure_in_the_middle_leaves_nothing(
    new_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = new_database()
    broken = source.repeatable() + "\nSELECT 1 / 0;"
    monkeypatch.setattr(source, "repeatable", lambda: broken)
    with pytest.raises(Exception, match="division by zero"):
        Client(dsn)
    with psycopg.connect(dsn) as connection:
        query = "SELECT count(*) FROM pg_namespace WHERE nspname = 'penstock'"
        assert connection.execute(query).fetchall() == [(0,)]
    monkeypatch.undo()
    with Client(dsn) as client:
        client.push("q", 1)


def test_the_script_makes_the_same_database_as_migrate(new_database: Callable[..., str], penstock_dsn: str) -> None:
    dsn = new_database()
    first, _, statements = source.script().partition("\n")
    assert first == "\\set ON_ERROR_STOP on"
    assert not re.search(r"^\\", statements, re.MULTILINE)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statements.encode())
    made, expected = catalog(dsn), catalog(penstock_dsn)
    for what in CATALOG:
        assert made[what] == expected[what], what
    with Client(dsn) as client:
        assert client.push("q", 1).first_offset == 0


def test_an_owner_without_superuser_can_migrate_and_use_everything(
    user: tuple[str, str], new_database: Callable[..., str]
) -> None:
    name, password = user
    dsn = make_conninfo(new_database(owner=name), user=name, password=password)
    with Client(dsn) as client:
        client.create("q", retention_bytes=1)
        client.push_many("q", [("a", 1), ("b", 2)])
        client.push("q", 3, partition="a")
        assert [message.json() for message in client.read("q", "a")] == [1, 3]
        assert client.get(client.read("q", "b")[0].id).json() == 2
        with client.transaction() as tx:
            tx.push("q", 4)
        client.configure("q", lease_time=1)
        assert [done.visited for done in client.maintain()] == [3]
        client.purge("q", partition="a")
        client.delete("q")
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate(connection)
        assert connection.execute("SELECT * FROM penstock.messages").fetchall() == []


def test_a_user_who_may_not_create_a_schema_is_told_so(user: tuple[str, str], new_database: Callable[..., str]) -> None:
    name, password = user
    with pytest.raises(SetupError, match="permission denied"):
        Client(make_conninfo(new_database(), user=name, password=password))


def test_what_an_older_version_called_with_other_parameters_is_gone_after_a_migrate(
    new_database: Callable[..., str],
) -> None:
    dsn = new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate(connection)
        fresh = catalog(dsn)
        # As the first version had it: a call with defaults would fit both.
        connection.execute(
            "CREATE FUNCTION penstock.sweep(max_rows integer DEFAULT 1) RETURNS integer LANGUAGE sql AS 'SELECT 1'"
        )
        with pytest.raises(psycopg.errors.AmbiguousFunction):
            connection.execute("SELECT penstock.sweep()")
        migrate(connection)
    assert catalog(dsn) == fresh
