"""Groups, positions, claims and dead letters from the command line."""

import re
from uuid import UUID, uuid4

import psycopg
import pytest

from acceptance.commandline import CommandLine
from penstock import Client


@pytest.fixture
def failed(client: Client) -> Client:
    """A queue with two dead letters of one group and one of another."""
    client.create("orders", max_attempts=1)
    client.push("orders", [b'{"id": 1}', b"\xff", b"c"], partition="p")
    for group, reasons in (("billing", ["ValueError", "OSError"]), ("mailer", ["ValueError"])):
        for reason in reasons:
            batch = client.pop("orders", group, max_messages=1)
            assert batch is not None
            batch.nack(reason=reason, error=f"{reason}: no")
    return client


def test_groups_are_listed(penstock: CommandLine, client: Client) -> None:
    assert penstock("groups").text == ""
    client.push("orders", [b"a", b"b", b"c"], partition="p")
    client.create_group("orders", "billing")
    client.create_group("other", "mailer", mode="shared", subscription="new")
    assert client.pop("orders", "billing", max_messages=2) is not None
    rows = penstock("groups").rows
    assert rows[0][:8] == ["orders", "billing", "ordered", "3", "1", "0", "1", "0"]
    assert rows[0][10:] == ["0", "no", "3", "no", "-", "-"]
    assert int(rows[0][9]) < 30
    assert rows[1] == ["other", "mailer", "shared", "0", "0", "0", "0", "0", "-", "-", "0", "no", "0", "no", "-", "-"]
    [info] = penstock("groups", "orders", "--json").objects
    assert (info["lag"], info["depth"], info["settings"]["lease_time"]) == (3, 1, 300)
    assert "no queue" in penstock("groups", "nope", code=3).stderr
    assert "oldest_since" in penstock.on_terminal("groups")


def test_the_lag_is_a_number_and_can_be_an_alert(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b"], partition="p")
    client.create_group("orders", "default")
    assert penstock("lag", "orders").text == "2\n"
    assert penstock("lag", "orders", "--max", "2").text == "2\n"
    alert = penstock("lag", "orders", "--max", "1", code=1)
    assert (alert.text, alert.stderr) == ("2\n", "penstock: the lag of group default is above 1\n")
    assert penstock("lag", "orders", "--json").objects == [{"queue": "orders", "group": "default", "lag": 2}]
    assert "no group" in penstock("lag", "orders", "--group", "nope", code=3).stderr


def test_a_group_is_created_configured_and_deleted(penstock: CommandLine, client: Client) -> None:
    created = penstock("group", "create", "orders", "mailer", "--mode", "shared", "--set", "max_attempts=10")
    assert created.text == "created group mailer of queue orders\n"
    [info] = client.groups("orders")
    assert (info.mode, info.subscription, info.config) == ("shared", "all", {"max_attempts": 10})
    assert "exists already" in penstock("group", "create", "orders", "mailer", code=2).stderr
    [now] = penstock(
        *("group", "configure", "orders", "mailer", "--set", "lease_time=60", "--reset", "max_attempts", "--json")
    ).objects
    assert (now["lease_time"], now["max_attempts"]) == (60, 5)
    assert ["lease_time", "30"] in penstock("group", "configure", "orders", "mailer", "--set", "lease_time=30").rows
    assert "nothing to change" in penstock("group", "configure", "orders", "mailer", code=2).stderr
    assert "give --yes" in penstock("group", "delete", "orders", "mailer", code=2).stderr
    assert penstock("group", "delete", "orders", "mailer", "--yes").text == "deleted group mailer of queue orders\n"
    assert client.groups() == []
    assert penstock("group", "delete", "orders", "mailer", "--yes", code=3).stderr.count("\n") == 1


def test_a_group_is_paused_and_resumed(penstock: CommandLine, client: Client) -> None:
    client.create_group("orders", "billing")
    client.push("orders", b"a")
    said = [penstock("group", what, "orders", "billing").text for what in ("pause", "pause", "resume", "resume")]
    assert said == [
        "paused group billing of queue orders\n",
        "group billing of queue orders was paused\n",
        "resumed group billing of queue orders\n",
        "group billing of queue orders was not paused\n",
    ]
    penstock("group", "pause", "orders", "billing")
    assert penstock("groups", "orders", "--json").objects[0]["paused"] is True
    assert client.pop("orders", "billing") is None
    assert "has no group" in penstock("group", "pause", "orders", "nope", code=3).stderr
    now = penstock("group", "configure", "orders", "billing", "--set", "rate_limit=5", "--set", "rate_by=key", "--json")
    assert (now.objects[0]["rate_limit"], now.objects[0]["rate_by"]) == (5, "key")


def test_what_is_no_setting_of_a_group_is_refused(penstock: CommandLine, client: Client) -> None:
    assert "not a setting" in penstock("group", "create", "q", "g", "--set", "mode=shared", code=2).stderr
    assert "spread" in penstock("group", "create", "q", "g", "--set", "spread=2", code=2).stderr
    assert "is not a time" in penstock("group", "create", "q", "g", "--subscription", "soon", code=2).stderr
    assert client.groups() == []


def test_the_command_for_groups_lists_its_commands(penstock: CommandLine) -> None:
    text = penstock("group", "--help").text
    assert re.search(r"configure +Override settings", text)
    for name in ("create", "configure", "delete"):
        assert f"Examples:\n    penstock group {name}" in penstock("group", name, "--help").text
    assert penstock("group", "nonsense", code=2).stderr.startswith("penstock: No such command 'nonsense'")


def test_a_seek_is_previewed_and_then_done(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b", b"c"], partition="p")
    client.pop("orders", "billing").ack()  # type: ignore[union-attr]
    seek = ("seek", "orders", "--group", "billing", "--to")
    [would] = penstock(*seek, "earliest", "--preview", "--json").objects
    assert would == {"visited": 1, "moved": 1, "redelivered": 3, "skipped": 0, "revoked": 0}
    assert client.lag("orders", "billing") == 0
    assert "give --yes" in penstock(*seek, "earliest", code=2).stderr
    assert penstock(*seek, "earliest", "--yes").rows == [["1", "1", "3", "0", "0"]]
    assert client.lag("orders", "billing") == 3
    penstock(*seek, "2", "--partition", "p", "--yes")
    assert client.lag("orders", "billing") == 1
    penstock(*seek, "1h", "--yes")
    assert client.lag("orders", "billing") == 3
    penstock(*seek, "latest", "--yes")
    assert client.lag("orders", "billing") == 0


def test_a_person_sees_what_a_seek_would_do_and_is_asked(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b"], partition="p")
    client.create_group("orders", "billing")
    seek = ("seek", "orders", "--group", "billing", "--to", "latest")
    shown = penstock.on_terminal(*seek, typed=b"n\n", code=1)
    assert "skipped" in shown
    assert "Move group billing of queue orders to latest?" in shown
    assert client.lag("orders", "billing") == 2
    penstock.on_terminal(*seek, typed=b"y\n")
    assert client.lag("orders", "billing") == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("seek", "orders", "--group", "nope", "--to", "latest", "--yes"), 3),
        (("seek", "orders", "--group", "g", "--to", "latest", "--partition", "nope", "--yes"), 3),
        (("seek", "orders", "--group", "g", "--to", "nowhere", "--yes"), 2),
        (("seek", "orders", "--to", "latest", "--yes"), 2),
        (("history", "orders", "p"), 2),
        (("history", "orders", "nope", "--group", "g"), 3),
        (("claims", "nope"), 3),
        (("claims", "orders", "--group", "nope"), 3),
        (("claims", "--release", "17", "--yes"), 2),
        (("claims", "--release", str(uuid4()), "--yes"), 3),
        (("dead-letters", "nope"), 3),
        (("dead-letters", "orders", "--group", "nope"), 3),
        (("dead-letters", "orders", "--id", "1"), 3),
        (("dead-letters", "orders", "--by-reason", "--id", "1"), 2),
        (("redrive", "orders"), 2),
        (("redrive", "orders", "--all", "--id", "1"), 2),
        (("redrive", "orders", "--id", "1"), 3),
        (("redrive", "orders", "--group", "nope"), 3),
        (("discard", "orders", "--all"), 2),
        (("discard", "orders", "--yes"), 2),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    penstock: CommandLine, client: Client, arguments: tuple[str, ...], code: int
) -> None:
    client.push("orders", b"a", partition="p")
    client.create_group("orders", "g")
    result = penstock(*arguments, code=code)
    assert (result.text, result.stderr.count("\n")) == ("", 1)
    assert result.stderr.startswith("penstock: ")


def test_claims_are_listed_and_released(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b"], partition="p")
    assert penstock("claims").text == ""
    assert client.pop("orders", "billing") is not None
    [row] = penstock("claims", "orders", "--group", "billing").rows
    assert row[:7] == ["orders", "billing", "p", "0", "2", "1", client.consumer_id]
    lease = UUID(row[9])
    [claim] = penstock("claims", "--json").objects
    assert (claim["lease_id"], claim["stop"]) == (str(lease), 2)
    assert "give --yes" in penstock("claims", "--release", str(lease), code=2).stderr
    assert penstock("claims", "--release", str(lease), "--yes").text == "released 2 messages of partition p\n"
    assert penstock("claims").text == ""
    batch = client.pop("orders", "billing")
    assert batch is not None
    assert batch.messages[0].attempt == 1


def test_a_shared_claim_is_released_with_all_its_pieces(penstock: CommandLine, client: Client) -> None:
    client.create_group("orders", "mailer", mode="shared")
    client.push("orders", [b"a", b"b", b"c"], partition="p")
    batch = client.pop("orders", "mailer")
    assert batch is not None
    batch.ack_message(batch.messages[1])
    lease = str(batch.claims[0].lease_id)
    assert [line["lease_id"] for line in penstock("claims", "--release", lease, "--yes", "--json").objects] == [
        lease
    ] * 2
    assert (client.claims(), client.lag("orders", "mailer")) == ([], 2)


def test_history_tells_what_happened(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a", partition="p")
    batch = client.pop("orders", "billing")
    assert batch is not None
    batch.nack(reason="no", delay=60)
    steps = penstock("history", "orders", "p", "--group", "billing", "--json").objects
    assert [step["state"] for step in steps[:2]] == ["timed", "claimed"]
    assert (steps[0]["error"], steps[1]["consumer"]) == ("no", client.consumer_id)
    assert len(penstock("history", "orders", "p", "--group", "billing", "--limit", "1").rows) == 1


def test_dead_letters_are_listed(penstock: CommandLine, failed: Client) -> None:
    rows = penstock("dead-letters", "orders").rows
    assert [row[1:6] for row in rows] == [
        ["billing", "p", "0", "ValueError", "1"],
        ["billing", "p", "1", "OSError", "1"],
        ["mailer", "p", "0", "ValueError", "1"],
    ]
    assert len(penstock("dead-letters", "orders", "--group", "billing").rows) == 2
    assert len(penstock("dead-letters", "orders", "--reason", "ValueError", "--limit", "1").rows) == 1
    first, second, _ = penstock("dead-letters", "orders", "--json").objects
    assert (first["value"], first["last_error"]) == ({"id": 1}, "ValueError: no")
    assert (second["value_base64"], "value" in second) == ("/w==", False)
    assert "last_error" in penstock.on_terminal("dead-letters", "orders")


def test_dead_letters_are_counted_by_reason(penstock: CommandLine, failed: Client) -> None:
    rows = penstock("dead-letters", "orders", "--by-reason").rows
    assert sorted(row[:3] for row in rows) == [
        ["billing", "OSError", "1"],
        ["billing", "ValueError", "1"],
        ["mailer", "ValueError", "1"],
    ]
    [counted] = penstock("dead-letters", "orders", "--by-reason", "--group", "mailer", "--json").objects
    assert (counted["reason"], counted["letters"]) == ("ValueError", 1)


def test_a_dead_letter_is_inspected(penstock: CommandLine, failed: Client) -> None:
    letter = failed.dead_letters("orders")[0]
    rows = penstock("dead-letters", "orders", "--id", str(letter.dead_letter_id)).rows
    assert ["value", '{"id": 1}'] in rows
    assert ["first_error", "ValueError: no"] in rows
    [found] = penstock("dead-letters", "orders", "--id", str(letter.dead_letter_id), "--json").objects
    assert (found["value"], found["message_id"]) == ({"id": 1}, str(letter.message_id))


def test_dead_letters_are_redriven(penstock: CommandLine, failed: Client) -> None:
    first = failed.dead_letters("orders")[0].dead_letter_id
    assert penstock("redrive", "orders", "--id", str(first)).text == "1 dead letter redriven\n"
    assert penstock("redrive", "orders", "--reason", "OSError", "--json").objects == [{"redriven": 1}]
    assert penstock("redrive", "orders", "--group", "mailer").text == "1 dead letter redriven\n"
    assert penstock("redrive", "orders", "--all").text == "0 dead letters redriven\n"
    batches = [failed.pop("orders", "mailer", wait=1) for _ in range(2)]
    headers = [message.headers or {} for batch in batches if batch for message in batch.messages]
    assert ["penstock-origin" in header for header in headers].count(True) == 1


def test_dead_letters_are_discarded_after_a_question(penstock: CommandLine, failed: Client) -> None:
    assert "give --yes" in penstock("discard", "orders", "--group", "mailer", code=2).stderr
    question = "Discard the dead letters of group mailer of queue orders?"
    assert question in penstock.on_terminal("discard", "orders", "--group", "mailer", typed=b"n\n", code=1)
    assert len(failed.dead_letters("orders")) == 3
    assert question in penstock.on_terminal("discard", "orders", "--group", "mailer", typed=b"y\n")
    assert penstock("discard", "orders", "--all", "--yes", "--json").objects == [{"discarded": 2}]
    assert failed.dead_letters("orders") == []


def test_verify_finds_nothing_where_nothing_is_wrong(penstock: CommandLine, failed: Client) -> None:
    rows = penstock("verify").rows
    assert {row[1] for row in rows} == {"0"}
    assert "gaps" in [row[0] for row in rows]
    assert all(check["meaning"] for check in penstock("verify", "--json").objects)


def test_verify_fails_and_resync_repairs(penstock: CommandLine, client: Client, dsn: str) -> None:
    client.push("orders", b"a", partition="p")
    client.create_group("orders", "billing")
    assert penstock("resync").text == "0 partitions repaired\n"
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM penstock.ready")
    wrong = {check["name"]: check["violations"] for check in penstock("verify", "--json", code=1).objects}
    assert wrong["ready_without_entry"] == 1
    assert penstock("resync", "--json").objects == [{"repaired": 1}]
    penstock("verify")
    assert penstock("pop", "orders", "--group", "billing").lines == ["a"]
