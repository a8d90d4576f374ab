"""Consumers, breakers, status, metrics, checks and rules from the command line."""

import signal

from acceptance.commandline import CommandLine
from penstock import Client


def fail(message: object) -> None:
    raise OSError("no disk")


def break_billing(client: Client, dsn: str, messages: int = 3) -> None:
    """Let the breaker of a group open, with something left to do."""
    client.create_group("orders", "billing", max_attempts=1, breaker_errors=messages)
    client.push("orders", list(range(messages)), partition="p")
    with Client(dsn) as worker:
        worker.process("orders", fail, group="billing", idle_timeout=0, handle_signals=False)
    client.push("orders", b"left", partition="p")


def test_consumers_are_listed_and_reset(penstock: CommandLine, client: Client, dsn: str) -> None:
    break_billing(client, dsn)
    [row] = penstock("consumers").rows
    assert row[1:2] + row[3:6] == ["gone", "0", "3", "3"]
    [record] = penstock("consumers", "--json").objects
    assert (record["last_error"], record["metadata"]["groups"]) == ("OSError: no disk", ["orders/billing"])
    assert penstock("consumers", "reset", row[0]).text == f"deleted consumer {row[0]}\n"
    assert "no consumer" in penstock("consumers", "reset", row[0], code=3).stderr


def test_breakers_are_listed_and_reset(penstock: CommandLine, client: Client, dsn: str) -> None:
    assert penstock("breakers").text == ""
    break_billing(client, dsn)
    [row] = penstock("breakers").rows
    assert row[:3] == ["orders", "billing", "open"]
    assert penstock("breakers", "--json").objects[0]["reason"] == "3 errors in a row"
    assert (
        penstock("breakers", "reset", "orders", "billing").text
        == "closed the breaker of group billing of queue orders\n"
    )
    assert penstock("breakers", "reset", "orders", "billing").text == "the breaker was not open\n"
    assert penstock("pop", "orders", "--group", "billing").text == "left\n"


def test_status_says_what_is_stuck_and_exits_with_1(penstock: CommandLine, client: Client, dsn: str) -> None:
    assert penstock("status").text == ""
    break_billing(client, dsn)
    rows = penstock("status", code=1).rows
    assert [row[:2] for row in rows] == [
        ["breaker_open", "group billing of queue orders"],
        ["dead_letters_waiting", "group billing of queue orders"],
    ]
    assert (rows[1][3], "penstock dead-letters" in rows[1][4]) == ("3 dead letters wait", True)
    assert "3 errors in a row; last error: OSError: no disk" in rows[0][3]
    assert "penstock breakers reset" in rows[0][4]
    [record] = penstock("status", "--json", code=1).objects
    assert (record["healthy"], record["problems"][0]["group"]) == (False, "billing")
    assert [(work["queue"], work["lag"]) for work in record["work"]] == [("orders", 1)]


def test_status_fits_a_terminal(penstock: CommandLine, client: Client, dsn: str) -> None:
    break_billing(client, dsn)
    text = penstock.on_terminal("status", code=1)
    assert "2 problems" in text
    assert "group billing of queue orders" in text
    assert "→ fix what fails" in text
    assert "recent lag" in text


def test_status_is_repeated_until_it_is_interrupted(penstock: CommandLine, client: Client) -> None:
    client.push("orders", 1)
    with penstock.running("status", "--watch", "--every", "0.1", "--json") as command:
        lines = [command.line() for _ in range(3)]
        assert command.end(signal.SIGINT).code == 130
    assert all('"healthy":true' in line for line in lines)
    assert "waiting" in penstock.on_terminal("status", "--watch", until=b"all is well", code=130)


def test_checks_are_listed_and_configured(penstock: CommandLine, client: Client) -> None:
    names = [row[0] for row in penstock("checks").rows]
    assert {"queue_growing", "cold_growing", "cold_high", "oldest_too_old", "orphan_queue"} <= set(names)
    client.push("nobody", 1)
    assert penstock("status").text == ""
    penstock("checks", "configure", "orphan_queue", "--set", "duration=0", "--set", "advice=tell Ada")
    [row] = penstock("status", code=1).rows
    assert (row[1], row[4]) == ("queue nobody", "tell Ada")
    penstock("checks", "configure", "orphan_queue", "--set", "enabled=false")
    assert penstock("status").text == ""
    penstock("checks", "configure", "orphan_queue", "--reset", "enabled", "--reset", "duration", "--reset", "advice")
    assert [check["configured"] for check in penstock("checks", "--json").objects] == [False] * len(names)
    assert "nothing to change" in penstock("checks", "configure", "orphan_queue", code=2).stderr
    assert 'no check "nonsense"' in penstock("checks", "configure", "nonsense", "--set", "threshold=1", code=3).stderr


def test_metrics_of_a_queue_are_printed_newest_first(penstock: CommandLine, client: Client) -> None:
    client.create_group("orders", "billing")
    penstock("push", "orders", "a", "b")
    client.sample()
    names = [row[1] for row in penstock("metrics", "orders").rows]
    assert {"pushed", "lag", "depth", "oldest_age"} <= set(names)
    [row] = penstock("metrics", "orders", "--metric", "lag").rows
    assert row[1:] == ["lag", "2", '{"group":"billing"}']
    assert (
        penstock("metrics", "orders", "--metric", "pushed", "--since", "1h", "--json").objects[0]["metric_value"] == 2
    )
    assert penstock("metrics", "orders", "--resolution", "day").text == ""
    penstock("metrics", "nothing", code=3)


def test_rules_are_added_tested_listed_and_deleted(penstock: CommandLine, client: Client, dsn: str) -> None:
    break_billing(client, dsn)
    conditions = ["--queue", "orders", "--reason", "OSError", "--error", "NO DISK", "--backoff", "2h"]
    assert [row[7] for row in penstock("rule", "add", "again", *conditions, "--dry-run").rows] == ["wait"] * 3
    assert penstock("rule", "list").text == ""
    assert (
        penstock("rule", "add", "again", *conditions, "--max-redrives", "5", "--factor", "3").text
        == "added rule again\n"
    )
    [rule] = penstock("rule", "list", "--json").objects
    assert (rule["backoff"], rule["backoff_factor"], rule["max_redrives"], rule["error"]) == (7200, 3, 5, "NO DISK")
    assert len(penstock("rule", "test", "again", "--limit", "2").rows) == 2
    assert penstock("rule", "delete", "again").text == "deleted rule again\n"
    penstock("rule", "delete", "again", code=3)


def test_maintenance_applies_rules_and_samples(penstock: CommandLine, client: Client, dsn: str) -> None:
    break_billing(client, dsn)
    client.reset_breaker("orders", "billing")
    client.add_rule("again", backoff=0)
    penstock("maintain", "--once")
    assert client.dead_letters("orders") == []
    assert [work.lag for work in client.work("orders")] == [1]
