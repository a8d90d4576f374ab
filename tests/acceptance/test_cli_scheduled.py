"""Messages that come later or count once, from the command line."""

import signal
from datetime import UTC, datetime, timedelta

import pytest

from acceptance.commandline import CommandLine
from penstock import Client


def test_a_delayed_message_is_listed_and_comes_when_it_is_due(penstock: CommandLine, client: Client) -> None:
    [[partition, due_at, count, ids]] = penstock("push", "orders", "later", "--partition", "eu", "--delay", "2h").rows
    assert (partition, count) == ("eu", "1")
    assert timedelta(minutes=119) < datetime.fromisoformat(due_at) - datetime.now(UTC) < timedelta(minutes=121)
    [listed] = penstock("scheduled", "orders", "--json").objects
    assert f"[{listed['scheduled_id']}]" == ids
    assert (listed["queue"], listed["partition"], listed["count"], listed["preview"]) == ("orders", "eu", 1, "later")
    assert penstock("scheduled").rows[0][:3] == [str(listed["scheduled_id"]), "orders", "eu"]
    assert client.read("orders", "eu") == []


def test_a_time_may_be_given_and_json_has_it(penstock: CommandLine) -> None:
    [pushed] = penstock("push", "orders", "a", "b", "--at", "2090-01-31T12:00:00Z", "--json").objects
    assert pushed["due_at"] == "2090-01-31T12:00:00Z"
    assert (pushed["count"], len(pushed["scheduled_ids"]), pushed["duplicates"]) == (2, 1, 0)


def test_what_is_scheduled_is_cancelled_or_it_is_too_late(penstock: CommandLine, client: Client) -> None:
    first, second = (client.push("orders", n, delay=3600).scheduled for n in range(2))
    assert first is not None
    assert second is not None
    one, other = str(first.ids[0]), str(second.ids[0])
    assert penstock("scheduled", "--cancel", one, "--yes").rows == [[one, "yes"]]
    result = penstock("scheduled", "--cancel", one, "--cancel", other, "--yes", "--json", code=3)
    assert result.objects == [
        {"scheduled_id": int(one), "cancelled": False},
        {"scheduled_id": int(other), "cancelled": True},
    ]
    assert f"not found: {one}" in result.stderr
    assert penstock("scheduled", "orders").text == ""
    assert "--yes" in penstock("scheduled", "--cancel", one, code=2).stderr


def test_a_long_list_is_fetched_page_by_page_and_limited(penstock: CommandLine, client: Client) -> None:
    with client.transaction() as tx:
        for number in range(1005):
            tx.push("orders", number, delay=3600 + number)
    assert len(penstock("scheduled", "orders", "--limit", "2000").rows) == 1005
    assert [row[7] for row in penstock("scheduled", "orders", "--limit", "3").rows] == ["0", "1", "2"]
    assert penstock("scheduled", "orders", "--partition", "0", "--limit", "1").rows[0][2] == "0"


def test_a_message_with_a_unique_key_is_stored_while_none_counts(penstock: CommandLine, client: Client) -> None:
    push = ("push", "orders", "a", "--unique-key", "k", "--unique-until", "done")
    assert penstock(*push).rows[0][:3] == ["0", "0", "1"]
    again = penstock(*push, "--unique-for", "1h")
    assert (again.rows, again.stderr.splitlines()[-1]) == ([["0", "1", "0", "-"]], "1 duplicate not stored again")
    client.create_group("orders", "g")
    replaced = penstock("push", "orders", "b", "--unique-key", "k", "--unique-until", "taken", "--replace")
    assert (replaced.rows[0][:3], replaced.stderr) == (["0", "1", "1"], "1 earlier message replaced\n")
    lines = b'{"value": 1, "unique_key": "k"}\n{"value": 2, "unique_key": "2"}\n{"value": 3}\n'
    envelopes = ("push", "orders", "--format", "envelope", "--unique-until", "done", "--json")
    [pushed] = penstock(*envelopes, stdin=lines).objects
    assert (pushed["count"], pushed["duplicates"], pushed["replaced"]) == (2, 1, 0)
    for wrong in (("--replace",), ("--unique-key", "k"), ("--unique-key", "k", "--unique-for", "0")):
        penstock("push", "orders", "x", *wrong, code=2)
    penstock("push", "orders", "x", "y", "--unique-key", "k", "--unique-until", "done", code=2)


def test_a_message_with_a_dedupe_id_is_stored_once(penstock: CommandLine, client: Client) -> None:
    client.create("orders", dedupe_window=3600)
    assert penstock("push", "orders", "a", "--dedupe-id", "1").rows[0][:3] == ["0", "0", "1"]
    again = penstock("push", "orders", "a", "--dedupe-id", "1")
    assert (again.rows, again.stderr.splitlines()[-1]) == ([["0", "1", "0", "-"]], "1 duplicate not stored again")
    lines = b'{"value": 1, "dedupe_id": "1"}\n{"value": 2, "dedupe_id": "2"}\n'
    [pushed] = penstock("push", "orders", "--format", "envelope", "--json", stdin=lines).objects
    assert (pushed["count"], pushed["duplicates"]) == (1, 1)
    assert [message.value for message in client.read("orders", "0")] == [b"a", b"2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push", "orders", "a", "b", "--dedupe-id", "1"], "needs exactly one message"),
        (["push", "orders", "-", "--dedupe-id", "1"], "needs exactly one message"),
        (["push", "orders", "a", "--dedupe-id", "1"], "dedupe_window is 0"),
        (["push", "orders", "a", "--delay", "1", "--at", "2090-01-01"], "give --delay or --at, not both"),
        (["push", "orders", "a", "--delay", "soon"], "is not a duration"),
        (["push", "orders", "a", "--delay", "-1"], "from 0 to"),
        (["push", "orders", "a", "--at", "10m"], "or --delay for a time from now"),
        (["scheduled", "--partition", "p"], "--partition requires a queue"),
        (["scheduled", "orders", "--cancel", "1", "--yes"], "--cancel takes ids only"),
    ],
)
def test_what_cannot_be_meant_is_refused(penstock: CommandLine, arguments: list[str], says: str) -> None:
    assert says in penstock(*arguments, code=2).stderr
    assert penstock("scheduled").text == penstock("queues").text == ""


def test_maintain_publishes_what_is_due_where_nobody_consumes(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a", partition="p", delay=0.2)
    with penstock.running("maintain", "--every", "3600") as running:
        assert running.line()
        message = next(client.tail("orders", idle_timeout=30))
        assert message.value == b"a"
        assert running.end(signal.SIGTERM).code == 0


def test_up_publishes_what_is_due(embedded_penstock: CommandLine) -> None:
    with embedded_penstock.running("up", "--show-password") as running:
        with Client(running.line()) as client:
            client.push("reminders", b"a", partition="p", delay=0.2)
            assert next(client.tail("reminders", idle_timeout=30)).value == b"a"
        assert running.end(signal.SIGTERM).code == 0
