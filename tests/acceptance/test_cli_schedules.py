"""Schedules from the command line: `penstock schedule`, and who fires them."""

import signal
import time
from datetime import UTC, datetime

import psycopg

from acceptance.commandline import CommandLine
from penstock import Client


def test_a_schedule_is_added_listed_paused_run_and_deleted(penstock: CommandLine, client: Client) -> None:
    add = (
        "schedule",
        "add",
        "report",
        "reports",
        '{"daily": true}',
        "--cron",
        "0 9 * * MON-FRI",
        "--tz",
        "Europe/Berlin",
    )
    [made] = penstock(*add, "--header", "a=1", "--key", "k", "--missed", "skip", "--json").objects
    assert (made["name"], made["queue"], made["value"], made["spec"]) == (
        *("report", "reports", '{"daily": true}', "0 9 * * MON-FRI"),
    )
    assert (made["headers"], made["key"], made["missed"], made["source"]) == ({"a": "1"}, "k", "skip", "command")
    assert datetime.fromisoformat(made["next_at"]) > datetime.now(UTC)
    [row] = penstock("schedule", "list").rows
    assert row[:4] == ["report", "at 09:00 on Monday through Friday (Europe/Berlin)", "reports", "active"]
    assert (row[4], row[6]) == ("-", datetime.fromisoformat(made["next_at"]).isoformat())
    assert penstock("schedule", "pause", "report").text == "paused schedule report\n"
    assert penstock("schedule", "list", "--json").objects[0]["state"] == "paused"
    assert penstock("schedule", "resume", "report").text.startswith("resumed schedule report; next: 20")
    [[queue, partition, offset, identity]] = penstock("schedule", "run-now", "report").rows
    assert (queue, partition, offset) == ("reports", "0", "0")
    message = client.get(identity)
    assert (message.json(), message.key) == ({"daily": True}, "k")
    assert penstock("schedule", "list", "--json").objects[0]["last_id"] == identity
    assert "--yes" in penstock("schedule", "delete", "report", code=2).stderr
    assert penstock("schedule", "delete", "report", "--yes").text == "deleted schedule report\n"
    assert penstock("schedule", "list").text == ""
    assert "there is no schedule" in penstock("schedule", "pause", "report", code=3).stderr


def test_bad_schedules_are_refused(penstock: CommandLine) -> None:
    for options, says in (
        ((), "give --every or --cron"),
        (("--every", "5 minutes", "--cron", "* * * * *"), "give --every or --cron"),
        (("--every", "a while"), "is not an interval"),
        (("--cron", "61 * * * *"), "bad minute"),
        (("--cron", "* * * * *", "--tz", "Nowhere"), "there is no time zone"),
    ):
        assert says in penstock("schedule", "add", "s", "q", "x", *options, code=2).stderr
    assert "control characters" in penstock("schedule", "add", "a\x1bb", "q", "--every", "5m", code=2).stderr
    assert penstock("schedule", "list").text == ""


def test_one_that_cannot_be_read_is_listed_with_the_others(penstock: CommandLine, client: Client) -> None:
    for name in ("bad", "good"):
        client.schedule(name, "q", every="1 hour")
    with psycopg.connect(client.dsn, autocommit=True) as sql:
        sql.execute("UPDATE penstock.schedules SET spec = 'every other moon' WHERE name = 'bad'")
    bad, good = penstock("schedule", "list").rows
    assert (bad[1], bad[3], good[1], good[3]) == (
        "every every other moon (UTC)",
        "unreadable",
        "every 1 hour",
        "active",
    )
    assert "every other moon" in penstock("schedule", "list", "--json").objects[0]["error"]


def test_maintenance_fires_schedules(penstock: CommandLine, client: Client) -> None:
    penstock("schedule", "add", "tick", "ticks", "x", "--every", "1 second")
    with penstock.running("maintain") as maintaining:
        deadline = time.monotonic() + 30
        while not client.queues() or client.describe("ticks").messages < 2:
            assert time.monotonic() < deadline, "nothing was pushed"
            time.sleep(0.05)
        assert maintaining.end(signal.SIGTERM).code == 0
    slots = [message.headers["penstock-slot"] for message in client.read("ticks", "0") if message.headers]
    assert len(slots) >= 2
    assert slots == sorted(set(slots))
    client.schedule("tick", "ticks", "x", every="1 hour")
    penstock("maintain", "--once")
