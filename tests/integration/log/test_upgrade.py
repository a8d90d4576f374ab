"""A stored database of every released version is brought to ours, and what was in flight in it is consumed."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock import Client
from penstock import sql as source
from penstock.postgres.migrate import migrate

from .store import STORED
from .test_migrations import catalog, new_database

__all__ = ["new_database"]

# Those that were released: what is stored of them never changes.
RELEASED = (Path(source.__file__).parent / "migrations" / "checksums.txt").read_text("utf-8").split()[1::2]
VERSIONS = [int(name[:4]) for name in RELEASED]


@pytest.fixture(params=VERSIONS)
def upgraded(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """The DSN of a stored database after a migrate."""
    dsn = new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((STORED / f"version_{request.param}.sql").read_bytes())
        assert migrate(connection).before == request.param
    return dsn


def test_an_upgraded_schema_is_that_of_a_fresh_database(upgraded: str, penstock_dsn: str) -> None:
    made, expected = catalog(upgraded), catalog(penstock_dsn)
    for what in expected:
        assert made[what] == expected[what], what


def test_queues_have_the_settings_of_this_version_after_the_upgrade(upgraded: str) -> None:
    with Client(upgraded) as client:
        before = client.describe("orders").settings
        client.create("fresh")
        assert before.keys() == client.describe("fresh").settings.keys()
        assert before["push_paused"] is False


def test_what_was_in_flight_is_consumed_after_the_upgrade(upgraded: str) -> None:
    with Client(upgraded) as client:
        (dead,) = client.dead_letters("orders")
        assert (dead.value, dead.reason) == (b"bad", "no such customer")
        (scheduled,) = client.scheduled("orders")
        with psycopg.connect(upgraded, autocommit=True) as connection:
            # The leases that were held ended long ago, or end now.
            connection.execute("UPDATE penstock.journal SET due_at = now() - interval '1 minute' WHERE state = 'c'")
            connection.execute("UPDATE penstock.claims SET due_at = now() - interval '1 minute'")
            connection.execute("UPDATE penstock.scheduled SET due_at = now() - interval '1 minute'")
            assert connection.execute("SELECT count(*) FROM penstock.list_stages()").fetchall() == [(1,)]
            assert connection.execute("SELECT * FROM penstock.verify() WHERE violations > 0").fetchall() == []
        assert scheduled.partition == "ada"
        came = {group: _consume(client, group) for group in ("billing", "crowd")}
        assert came == {
            "billing": [b"good", b"later", b"open"],
            "crowd": [b"bad", b"good", b"later", b"open"],
        }


def _consume(client: Client, group: str) -> list[bytes]:
    found = []
    for batch in client.consume("orders", group, idle_timeout=1):
        with batch:
            found += [message.value or b"" for message in batch.messages]
    return sorted(found)
