"""What the tables hold of a group is bounded by what waits and is held, not by how long the group has lived."""

from typing import Any

import psycopg
import pytest

from penstock import Batch, Client

ROUNDS = 60
# The newest state, and a few that its timers lead the sweep to.
MOST_ROWS = 16


def popped(client: Client, **options: Any) -> Batch:
    batch = client.pop("q", "g", **options)
    assert batch is not None
    return batch


def rows(sql: psycopg.Connection[Any], table: str) -> int:
    statements = {
        "journal": "SELECT count(*) FROM penstock.journal",
        "ready": "SELECT count(*) FROM penstock.ready",
        "claims": "SELECT count(*) FROM penstock.claims",
    }
    row = sql.execute(statements[table].encode()).fetchone()
    assert row is not None
    return int(row[0])


def let_time_pass(client: Client, sql: psycopg.Connection[Any]) -> None:
    for table in ("journal", "claims"):
        move = {
            "journal": "UPDATE penstock.journal SET due_at = due_at - interval '1 day' WHERE due_at > now()",
            "claims": "UPDATE penstock.claims SET due_at = due_at - interval '1 day' WHERE due_at > now()",
        }
        sql.execute(move[table].encode())
    assert client.sweep() is not None


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("auto_ack", [False, True])
def test_rounds_of_push_and_ack_leave_no_rows(
    client: Client, sql: psycopg.Connection[Any], mode: str, auto_ack: bool
) -> None:
    client.create_group("q", "g", mode=mode)
    for _ in range(ROUNDS):
        client.push("q", [b"x"] * 3, partition="p")
        batch = popped(client, auto_ack=auto_ack)
        if not auto_ack:
            batch.ack()
        let_time_pass(client, sql)
    assert rows(sql, "journal") <= MOST_ROWS
    assert (rows(sql, "ready"), rows(sql, "claims")) <= (1, 0)
    assert [check for check in client.verify() if check.violations] == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_claims_that_expire_leave_as_many_rows_as_claims(
    client: Client, sql: psycopg.Connection[Any], mode: str
) -> None:
    client.create_group("q", "g", mode=mode, max_attempts=30)
    client.push("q", [b"x"] * 1000, partition="p")
    for _ in range(4):
        popped(client, max_messages=1000)
        let_time_pass(client, sql)
    # Each takes one message off the range that failed, and that message fails by itself.
    assert rows(sql, "ready") <= 1 + 4
    assert [check for check in client.verify() if check.violations] == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_messages_that_fail_leave_as_many_rows_as_failed(
    client: Client, sql: psycopg.Connection[Any], mode: str
) -> None:
    client.create("q", backoff_initial=0)
    client.create_group("q", "g", mode=mode, max_attempts=30)
    client.push("q", [b"x"] * 1000, partition="p")
    for _ in range(4):
        batch = popped(client, max_messages=1000)
        batch.nack(batch.messages[0].offset, reason="this one")
    assert rows(sql, "ready") + rows(sql, "claims") <= 1 + 4
