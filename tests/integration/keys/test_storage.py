"""What the database keeps of keys, sessions and acts, and what it does by itself."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from databases import Connection
from penstock import Client
from penstock.broker.keys import hash_secret, read_key
from penstock.broker.operations.keys import BeginSession, EndSession, FindKey, FindSession, NoteKeyUse, RecordAct
from penstock.errors import NotFound
from penstock.postgres.database import Database
from penstock.settings import resolve


@pytest.fixture
def database(dsn: str) -> Database:
    return Database(resolve({"url": dsn}))


def test_only_a_hash_of_the_secret_is_stored(client: Client, sql: Connection) -> None:
    made = client.create_api_key("shop", ["push"])
    rows = sql.execute("SELECT k::text FROM penstock.api_keys k").fetchall()
    assert made.key[-64:] not in str(rows)
    assert hash_secret(made.key[-64:]).hex() in str(rows)


def test_a_gateway_finds_a_key_until_it_is_revoked_or_expires(
    client: Client, database: Database, sql: Connection
) -> None:
    made = client.create_api_key("shop", ["push"])
    given = read_key(made.key)
    assert given is not None
    found = database.run(FindKey(given.key_id))
    assert found is not None
    assert found.matches(given.hash, datetime.now(UTC))
    sql.execute("UPDATE penstock.api_keys SET expires_at = now()")
    assert database.run(FindKey(given.key_id)) is None
    sql.execute("UPDATE penstock.api_keys SET expires_at = NULL")
    client.revoke_api_key("shop")
    assert database.run(FindKey(given.key_id)) is None
    database.close()


def test_after_a_rotation_the_old_secret_counts_for_the_grace_only(client: Client, database: Database) -> None:
    old = read_key(client.create_api_key("shop", ["push"]).key)
    new = read_key(client.rotate_api_key("shop", grace=60).key)
    assert old is not None
    assert new is not None
    found = database.run(FindKey(old.key_id))
    assert found is not None
    now = datetime.now(UTC)
    assert [found.matches(old.hash, now), found.matches(new.hash, now)] == [True, True]
    later = now + timedelta(seconds=61)
    assert [found.matches(old.hash, later), found.matches(new.hash, later)] == [False, True]
    database.close()


def test_the_use_of_a_key_is_noted_and_not_twice_within_half_a_minute(
    client: Client, database: Database, sql: Connection
) -> None:
    key_id = client.create_api_key("shop", ["push"]).info.key_id
    database.run(NoteKeyUse([key_id]))
    first = client.api_keys()[0].last_used_at
    database.run(NoteKeyUse([key_id]))
    assert first is not None
    assert client.api_keys()[0].last_used_at == first
    sql.execute("UPDATE penstock.api_keys SET last_used_at = now() - interval '1 minute'")
    database.run(NoteKeyUse([key_id]))
    last = client.api_keys()[0].last_used_at
    assert last is not None
    assert last >= first
    database.close()


def test_a_session_lasts_until_it_ends_its_key_is_rotated_or_expires(
    client: Client, database: Database, sql: Connection
) -> None:
    made = client.create_api_key("page", ["read"], expires=30)
    token = hash_secret("token")
    ends = database.run(BeginSession(token, made.info.key_id, 3600))
    assert made.info.expires_at == ends
    session = database.run(FindSession(token))
    assert session is not None
    assert session.key_id == made.info.key_id
    assert [database.run(EndSession(token)), database.run(EndSession(token))] == [True, False]
    assert database.run(FindSession(token)) is None
    database.run(BeginSession(token, made.info.key_id, 3600))
    client.rotate_api_key("page")
    assert database.run(FindSession(token)) is None
    database.run(BeginSession(token, made.info.key_id, 3600))
    sql.execute("UPDATE penstock.key_sessions SET expires_at = now()")
    assert database.run(FindSession(token)) is None
    database.run(BeginSession(hash_secret("other"), made.info.key_id, 3600))
    assert sql.execute("SELECT count(*) FROM penstock.key_sessions").fetchone() == (1,)
    client.revoke_api_key("page")
    with pytest.raises(NotFound):
        database.run(BeginSession(token, made.info.key_id, 3600))
    database.close()


def test_the_audit_log_deletes_what_is_too_old(database: Database, sql: Connection) -> None:
    for number in range(30):
        database.run(RecordAct("key:a", "delete_queue", str(number)))
    sql.execute("UPDATE penstock.audit_log SET at = now() - interval '500 days'")
    for _ in range(2):
        database.run(RecordAct("key:a", "delete_queue", "new", {"x": 1}, "192.0.2.1", "forbidden"))
    rows = sql.execute("SELECT target, result, db_user = session_user, details FROM penstock.audit_log").fetchall()
    assert rows == [("new", "forbidden", True, {"x": 1})] * 2
    database.close()


def test_an_act_is_written_with_what_it_is_about_or_not_at_all(dsn: str, sql: Connection) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT penstock.revoke_key(k.id) FROM penstock.list_keys() k")
        connection.execute("SELECT penstock.create_key('0123456789ab', 'x', sha256('s'), '{push:*}')")
        connection.rollback()
    assert sql.execute("SELECT count(*) FROM penstock.audit_log").fetchone() == (0,)
