"""Looking after groups: the doctor's view of them, and sweeps where no consumer runs."""

import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from acceptance.commandline import CommandLine
from penstock import Client


def checks(penstock: CommandLine) -> dict[str, dict[str, Any]]:
    return {check["check"]: check for check in penstock("doctor", "--json").objects}


def made_older(dsn: str) -> None:
    """Let what is there have happened an hour ago."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE penstock.journal SET at = at - interval '1 hour'")


def test_the_doctor_is_content_with_groups_at_work(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.push_many("orders", [("p", b"a"), ("q", b"b")])
    client.pop("orders", "billing")
    made_older(dsn)
    client.push("fresh", b"a")
    client.create_group("fresh", "new")
    seen = checks(penstock)
    assert [seen[name]["outcome"] for name in ("stuck groups", "expired claims", "dead letters")] == ["ok"] * 3


def test_the_doctor_names_a_group_that_nobody_consumes(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.push("orders", [b"a", b"b"], partition="p")
    client.create_group("orders", "billing")
    made_older(dsn)
    [info] = client.groups("orders")
    stuck = checks(penstock)["stuck groups"]
    assert stuck["outcome"] == "warn"
    assert stuck["found"] == f"group billing of queue orders since {info.oldest_since:%Y-%m-%d %H:%M:%S%z}, lag 2"
    assert "no consumer is running" in stuck["advice"]


def test_what_waits_for_its_time_is_not_stuck(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.create("orders", delay=7200)
    client.push("orders", b"a", partition="p")
    client.create_group("orders", "billing")
    assert client.pop("orders", "billing") is None
    made_older(dsn)
    assert checks(penstock)["stuck groups"]["outcome"] == "ok"


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_the_doctor_sees_claims_that_nobody_sweeps(penstock: CommandLine, client: Client, dsn: str, mode: str) -> None:
    client.push("orders", b"a", partition="p")
    client.pop("orders", "billing", mode=mode)
    assert checks(penstock)["expired claims"]["outcome"] == "ok"
    with psycopg.connect(dsn) as connection:
        table = "journal" if mode == "ordered" else "claims"
        connection.execute(f"UPDATE penstock.{table} SET due_at = now() - interval '1 minute' WHERE due_at > now()")
    expired = checks(penstock)["expired claims"]
    assert (expired["outcome"], expired["found"][:39]) == ("warn", "p of group billing of queue orders, the")
    client.sweep()
    assert checks(penstock)["expired claims"]["outcome"] == "ok"


def test_the_doctor_tells_of_dead_letters(penstock: CommandLine, client: Client) -> None:
    client.create("orders", max_attempts=1)
    client.push("orders", b"a", partition="p")
    client.pop("orders", "billing").nack()  # type: ignore[union-attr]
    dead = checks(penstock)["dead letters"]
    assert (dead["outcome"], dead["found"]) == ("info", "1 in group billing of queue orders")
    assert dead["advice"] == "see `penstock dead-letters orders --by-reason`"


def test_the_doctor_tells_what_spark_jobs_left_behind(penstock: CommandLine, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT penstock.begin_stage('my-query', 'run', 0)")
        assert checks(penstock)["abandoned stages"]["outcome"] == "info"
        connection.execute("UPDATE penstock.stages SET created_at = created_at - interval '2 hours'")
        left = checks(penstock)["abandoned stages"]
        assert left["outcome"] == "warn"
        assert left["found"].startswith("1 with 0 messages, 1 not written to for 1:00:00, the first of my-query")
        connection.execute("UPDATE penstock.stages SET created_at = created_at - interval '1 day'")
    penstock("maintain", "--once")
    assert checks(penstock)["abandoned stages"]["outcome"] == "ok"


def test_the_doctor_shows_groups_only_to_those_who_may_see_them(
    command: Callable[..., CommandLine], penstock_dsn: str, user: str
) -> None:
    owner = command(PENSTOCK_URL=penstock_dsn)
    owner("grant", "producer", user)
    theirs = command(PENSTOCK_URL=make_conninfo(penstock_dsn, user=user, password="secret"))
    assert checks(theirs)["stuck groups"]["outcome"] == "info"
    owner("grant", "consumer", user)
    assert checks(theirs)["stuck groups"]["outcome"] == "ok"


def test_doctor_finds_messages_that_nobody_publishes(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.push("orders", b"a", partition="p", delay=3600)
    assert checks(penstock)["overdue messages"]["outcome"] == "ok"
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE penstock.scheduled SET due_at = due_at - interval '1 day'")
    overdue = checks(penstock)["overdue messages"]
    assert (overdue["outcome"], overdue["found"][:49]) == ("warn", "scheduled for partition p of queue orders, due si")
    penstock("maintain", "--once")
    assert checks(penstock)["overdue messages"]["outcome"] == "ok"
    assert [message.value for message in client.read("orders", "p")] == [b"a"]


def wait_until_free(client: Client) -> None:
    """Look at the group without being its consumer, because a consumer sweeps."""
    while client.claims("orders", "billing"):
        assert client.lag("orders", "billing") == 1


def test_maintain_frees_expired_leases_between_its_passes(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a", partition="p")
    assert client.pop("orders", "billing", lease=0.5) is not None
    with penstock.running("maintain", "--every", "3600") as running:
        assert running.line()
        wait_until_free(client)
        assert running.end(signal.SIGTERM).code == 0
    [info] = client.groups("orders")
    assert (info.ready, info.claimed) == (1, 0)


def test_up_frees_expired_leases(embedded_penstock: CommandLine) -> None:
    with embedded_penstock.running("up", "--show-password") as running:
        with Client(running.line()) as client:
            client.push("orders", b"a", partition="p")
            assert client.pop("orders", "billing", lease=0.5) is not None
            wait_until_free(client)
            client.delete("orders")
        assert running.end(signal.SIGINT).code == 0
