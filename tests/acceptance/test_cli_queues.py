"""Queues and partitions from the command line."""

import pytest

from acceptance.commandline import CommandLine
from penstock import Client


def test_queues_are_listed(penstock: CommandLine, client: Client) -> None:
    assert penstock("queues").text == ""
    client.push("orders", [b"a", b"b"], partition="p")
    client.create("empty", description="nothing yet")
    assert [row[:4] for row in penstock("queues").rows] == [["empty", "0", "0", "0"], ["orders", "1", "2", "0"]]
    empty, orders = penstock("queues", "--json").objects
    assert (empty["description"], empty["newest_at"]) == ("nothing yet", None)
    assert (orders["messages"], orders["settings"]["lease_time"]) == (2, 300)


def test_partitions_are_listed(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b"], partition="eu")
    client.purge("orders")
    client.push("orders", b"c", partition="eu")
    assert penstock("partitions", "orders").rows[0][:5] == ["eu", "1", "2", "3", "0"]
    [info] = penstock("partitions", "orders", "--json").objects
    assert (info["name"], info["messages"], info["floor"], info["head"]) == ("eu", 1, 2, 3)
    assert "no queue" in penstock("partitions", "nope", code=3).stderr


def test_a_queue_is_created_described_and_configured(penstock: CommandLine) -> None:
    penstock(
        "create", "orders", "--set", "lease_time=7", "--set", "retention_rule=drop_and_count", "--description", "x"
    )
    [queue] = penstock("describe", "orders", "--json").objects
    assert queue["config"] == {"lease_time": 7, "retention_rule": "drop_and_count"}
    assert queue["description"] == "x"
    rows = penstock("describe", "orders").rows
    assert ["lease_time", "7", "set"] in rows
    assert ["max_attempts", "5", "default"] in rows
    [now] = penstock("configure", "orders", "--reset", "lease_time", "--set", "spread=4", "--json").objects
    assert (now["lease_time"], now["spread"]) == (300, 4)
    assert ["spread", "4"] in penstock("configure", "orders", "--description", "y").rows


def test_a_partition_is_created_and_configured(penstock: CommandLine, client: Client) -> None:
    client.create("orders")
    penstock("create", "orders", "--partition", "eu", "--priority", "5")
    assert client.partitions("orders", "eu")[0].priority == 5
    penstock("configure", "orders", "--partition", "eu", "--priority", "-2")
    assert client.partitions("orders", "eu")[0].priority == -2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "orders"), "exists already"),
        (("create", "new", "--set", "nonsense=1"), 'unknown setting "nonsense"'),
        (("create", "new", "--set", "lease_time"), "not of the form NAME=VALUE"),
        (("create", "new", "--set", "priority=1"), "not a setting"),
        (("create", "new", "--priority", "1"), "--priority requires --partition"),
        (("create", "orders", "--partition", "p", "--set", "spread=1"), "belongs to the queue"),
        (("configure", "orders"), "nothing to change"),
        (("configure", "orders", "--set", "lease_time=x"), "must be a number"),
        (("purge", "orders"), "give --yes"),
        (("delete", "orders"), "give --yes"),
        (("nonsense",), "No such command 'nonsense'"),
        (("queues", "--nonsense"), "--nonsense"),
        (("--timeout", "0", "queues"), "--timeout"),
    ],
)
def test_what_cannot_be_done_exits_with_2_and_one_line(
    penstock: CommandLine, client: Client, arguments: tuple[str, ...], complaint: str
) -> None:
    client.create("orders")
    result = penstock(*arguments, code=2)
    assert complaint in result.stderr
    assert result.stderr.startswith("penstock: ")
    assert result.stderr.count("\n") == 1
    assert result.text == ""
    assert [queue.name for queue in client.queues()] == ["orders"]


def test_messages_are_purged_and_offsets_go_on(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"a", b"b"], partition="p")
    client.push("q", [b"c"], partition="other")
    assert penstock("purge", "q", "--partition", "p", "--yes").text == "dropped 2 messages\n"
    assert client.partitions("q", "p")[0].head == 2
    assert client.partitions("q", "other")[0].messages == 1


def test_pushes_are_paused_and_resumed(penstock: CommandLine, client: Client) -> None:
    client.create("q")
    said = [penstock(what, "q").text for what in ("pause", "pause", "resume", "resume", "pause")]
    assert said == [
        "paused pushes to queue q\n",
        "pushes to queue q were paused\n",
        "resumed pushes to queue q\n",
        "pushes to queue q were not paused\n",
        "paused pushes to queue q\n",
    ]
    assert "are paused" in penstock("push", "q", "a", code=4).stderr
    assert "no queue" in penstock("pause", "nope", code=3).stderr
    assert client.describe("q").messages == 0


def test_queues_and_partitions_are_deleted(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"a", b"b"], partition="p")
    client.push("q", [b"c"], partition="other")
    assert (
        penstock("delete", "q", "--partition", "p", "--yes").text == "deleted partition p of queue q with 2 messages\n"
    )
    penstock("delete", "q", "--yes")
    assert client.queues() == []
    penstock("delete", "q", "--yes", code=3)


def test_a_person_is_asked_before_something_goes(penstock: CommandLine, client: Client) -> None:
    client.push("q", b"a")
    assert "nothing was changed" in penstock.on_terminal("delete", "q", typed=b"n\n", code=1)
    assert client.describe("q").messages == 1
    assert "Delete queue q with all its messages?" in penstock.on_terminal("delete", "q", typed=b"y\n")
    assert client.queues() == []


def test_a_terminal_gets_tables(penstock: CommandLine, client: Client) -> None:
    client.push("q[bold]", b"a")
    shown = penstock.on_terminal("queues")
    assert "newest_at" in shown
    assert "q[bold]" in shown
