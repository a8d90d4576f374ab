"""A push does not depend on notifications: not even where the server has no room for them."""

from pathlib import Path

import psycopg
import pytest

from penstock import Client
from penstock.embedded import attach
from penstock.postgres import hints


def test_a_push_succeeds_although_the_queue_of_notifications_is_full(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_POSTGRES_OPTIONS", "max_notify_queue_pages=64")
    # Every push that wakes a group takes its hint along.
    monkeypatch.setattr(hints, "_LONGEST_PAUSE", 0.0)
    with attach(home) as instance, Client(instance.dsn, valkey_url="none") as client:
        client.create_group("full", "g")
        client.push("full", 0, partition="first")
        with (
            psycopg.connect(instance.dsn, autocommit=True) as listening,
            psycopg.connect(instance.dsn, autocommit=True) as telling,
        ):
            # What it has not read is kept, and it reads nothing as long as its transaction is open.
            listening.execute("LISTEN anything")
            with listening.transaction():
                listening.execute("SELECT 1")
                telling.execute("SELECT pg_notify('anything', n || repeat('x', 7000)) FROM generate_series(1, 60) n")
                with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                    telling.execute(
                        "SELECT pg_notify('anything', n || repeat('y', 7000)) FROM generate_series(1, 60) n"
                    )
                client.push("full", 1, partition="second")
        assert [message.json() for message in client.read("full", "second")] == [1]
        client.delete("full")
