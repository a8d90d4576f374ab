"""Consuming from the command line: print and acknowledge, hold, or hand over to a command."""

import json
import re
import signal
from datetime import datetime
from pathlib import Path

import pytest

from acceptance.commandline import CommandLine
from penstock import Client, Message


def processes_of(mark: str) -> list[str]:
    """Return the command lines of processes that mention something."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def test_messages_are_printed_and_acknowledged(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b", b"c"], partition="p")
    assert penstock("pop", "orders", "--group", "g", "--max-messages", "2").lines == ["a", "b"]
    assert client.lag("orders", "g") == 1
    assert penstock("pop", "orders", "--group", "g").lines == ["c"]
    assert client.lag("orders", "g") == 0
    assert client.claims() == []


def test_nothing_to_pop_is_no_error_unless_asked(penstock: CommandLine, client: Client) -> None:
    client.create("orders")
    assert penstock("pop", "orders").text == ""
    assert penstock("pop", "orders", "--fail-empty", "--wait", "0.1", code=3).text == ""
    assert penstock("pop", "orders", "--fail-empty", "--exec", "cat", code=3).text == ""
    client.push("orders", b"a")
    assert penstock("pop", "orders", "--fail-empty").lines == ["a"]


def test_json_has_envelopes_with_the_attempt(penstock: CommandLine, client: Client) -> None:
    client.push_many("orders", [Message({"id": 1}, key="k", headers={"h": "1"}, partition="p")])
    result = penstock("pop", "orders", "--json")
    [envelope] = result.objects
    assert (envelope["value"], envelope["key"], envelope["headers"]) == ({"id": 1}, "k", {"h": "1"})
    assert (envelope["attempt"], "lease_id" in envelope) == (1, False)
    penstock("push", "copy", "--format", "envelope", stdin=result.stdout)
    assert client.read("copy", "p")[0].json() == {"id": 1}


def test_raw_bytes_have_nothing_between(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"\xff\n", b"b"], partition="p")
    assert penstock("pop", "orders", "--raw").stdout == b"\xff\nb"


def test_what_is_not_acknowledged_is_held_with_its_lease(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"a", b"b"], partition="p")
    held = penstock("pop", "orders", "--no-ack", "--lease", "60", "--json").objects
    [claim] = client.claims("orders")
    assert [line["value_text"] for line in held] == ["a", "b"]
    assert {line["lease_id"] for line in held} == {str(claim.lease_id)}
    assert {datetime.fromisoformat(line["lease_until"]) for line in held} == {claim.expires_at}
    assert {line["attempt"] for line in held} == {1}
    assert penstock("pop", "orders").text == ""
    client.release_claim(claim)
    text = penstock("pop", "orders", "--no-ack")
    assert text.lines == ["a", "b"]
    assert re.fullmatch(r"lease [0-9a-f-]{36} until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+\d{4}\n", text.stderr)


def test_auto_ack_leaves_no_claim(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a")
    assert penstock("pop", "orders", "--auto-ack").lines == ["a"]
    assert (client.lag("orders"), client.claims()) == (0, [])


def test_a_named_partition_is_popped(penstock: CommandLine, client: Client) -> None:
    client.push_many("orders", [("p", b"a"), ("q", b"b")])
    assert penstock("pop", "orders", "--partition", "q").lines == ["b"]
    assert penstock("pop", "orders", "--partition", "nope").text == ""


def test_mode_and_subscription_hold_for_a_new_group(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"old", partition="p")
    assert penstock("pop", "orders", "--group", "g", "--mode", "shared", "--subscription", "new").text == ""
    [group] = client.groups("orders")
    assert (group.mode, group.subscription) == ("shared", "new")
    moment = client.push("orders", b"new", partition="p").timestamp
    assert penstock("pop", "orders", "--group", "g").lines == ["new"]
    assert penstock("pop", "orders", "--group", "h", "--subscription", moment.isoformat()).lines == ["new"]
    assert "is not a time" in penstock("pop", "orders", "--subscription", "soon", code=2).stderr


def test_pop_waits_for_messages(penstock: CommandLine, client: Client) -> None:
    client.create("orders")
    with penstock.running("pop", "orders", "--wait", "30") as running:
        client.push("orders", b"a")
        assert running.line() == "a"
        assert running.wait().code == 0


def test_follow_goes_on_until_interrupted(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a", partition="p")
    with penstock.running("pop", "orders", "--follow") as running:
        assert running.line() == "a"
        client.push("orders", b"b", partition="q")
        assert running.line() == "b"
        result = running.end(signal.SIGINT)
    assert (result.code, result.stderr) == (130, "penstock: interrupted\n")
    assert (client.lag("orders"), client.claims()) == (0, [])


def test_follow_ends_when_nothing_comes(penstock: CommandLine, client: Client) -> None:
    client.push_many("orders", [("p", b"a"), ("q", b"b")])
    assert sorted(penstock("pop", "orders", "--follow", "--idle-timeout", "0.1").lines) == ["a", "b"]


def test_what_nobody_reads_is_given_back(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"x" * 100_000] * 50, partition="p")
    with penstock.running("pop", "orders") as running:
        assert running.line() == "x" * 100_000
        running.stdout.close()
        assert running.process.wait(30) == 141
    assert (client.claims(), client.lag("orders")) == ([], 50)
    [message] = client.pop("orders", max_messages=1).messages  # type: ignore[union-attr]
    assert message.attempt == 1


def test_an_interruption_while_writing_gives_the_batch_back(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b"x" * 100_000] * 50, partition="p")
    with penstock.running("pop", "orders", "--follow") as running:
        # It is stuck in the middle of the batch, because we read no more.
        assert running.stdout.read(1) == b"x"
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 130
    assert (client.claims(), client.lag("orders")) == ([], 50)


def test_a_command_gets_the_value_and_the_rest_in_its_environment(penstock: CommandLine, client: Client) -> None:
    client.push_many("orders", [Message(b"hello\n", key="k", partition="p"), Message(b"bye\n", partition="p")])
    [first, _] = client.read("orders", "p")
    show = 'cat; echo "$PENSTOCK_QUEUE $PENSTOCK_GROUP $PENSTOCK_PARTITION $PENSTOCK_OFFSET ${PENSTOCK_KEY-none}"'
    result = penstock("pop", "orders", "--group", "g", "--exec", f"{show}; echo $PENSTOCK_ATTEMPT $PENSTOCK_ID")
    assert result.lines[:3] == ["hello", "orders g p 0 k", f"1 {first.id}"]
    assert result.lines[3:5] == ["bye", "orders g p 1 none"]
    assert client.lag("orders", "g") == 0


def test_a_command_can_tell_a_null_value_from_an_empty_one(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [None, b""], partition="p")
    result = penstock("pop", "orders", "--exec", "cat; echo ${PENSTOCK_NULL-none}", PENSTOCK_NULL="inherited")
    assert result.lines == ["1", "none"]


def test_a_command_that_fails_is_retried_and_then_dead(penstock: CommandLine, client: Client) -> None:
    client.create("orders", max_attempts=2, backoff_initial=0)
    client.push("orders", [b"good", b"bad", b"better"], partition="p")
    command = 'read -r word || :; echo "$word"; test "$word" != bad || exit 7'
    result = penstock("pop", "orders", "--exec", command, "--follow", "--idle-timeout", "0.5")
    assert result.lines == ["good", "bad", "bad", "better"]
    assert result.stderr.splitlines() == [
        "penstock: message 1 of p: exit 7; it will be retried",
        "penstock: message 1 of p: exit 7; it is now a dead letter",
    ]
    [letter] = client.dead_letters("orders")
    assert (letter.value, letter.reason, letter.last_error, letter.attempts) == (b"bad", "exit 7", "exit 7", 2)
    assert client.lag("orders") == 0


def test_a_command_that_is_killed_fails_like_in_a_shell(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a")
    assert "exit 137; it will be retried" in penstock("pop", "orders", "--exec", "kill -9 $$").stderr


def test_a_command_need_not_read_its_input(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"x" * 1_000_000)
    assert penstock("pop", "orders", "--exec", "echo done").lines == ["done"]
    assert client.lag("orders") == 0


def test_the_lease_lasts_while_a_command_works(penstock: CommandLine, client: Client) -> None:
    client.push("orders", b"a", partition="p")
    result = penstock("pop", "orders", "--lease", "1", "--exec", "sleep 3; echo done")
    assert (result.lines, client.lag("orders")) == (["done"], 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_worker_keeps_what_is_done_and_gives_back_the_rest(
    penstock: CommandLine, client: Client, number: signal.Signals
) -> None:
    client.push("orders", [b"one", b"two", b"three"], partition="p")
    # The mark finds the command, and what it started, among all processes.
    mark = f"{number.value}4321"
    command = f'echo "$(cat)"; test $PENSTOCK_OFFSET = 0 || sleep {mark}'
    with penstock.running("pop", "orders", "--follow", "--exec", command) as running:
        assert [running.line(), running.line()] == ["one", "two"]
        result = running.end(number)
    assert (result.code, result.stderr) == (130, "penstock: interrupted\n")
    assert processes_of(f"sleep {mark}") == []
    assert (client.claims(), client.lag("orders")) == ([], 2)
    batch = client.pop("orders")
    assert batch is not None
    assert [(message.value, message.attempt) for message in batch.messages] == [(b"two", 1), (b"three", 1)]


def test_workers_share_the_work(penstock: CommandLine, client: Client) -> None:
    client.create_group("orders", "g", mode="shared")
    client.push("orders", [b"%d\n" % number for number in range(40)], partition="p")
    worker = ("pop", "orders", "--group", "g", "--max-messages", "5", "--exec", "cat", "--follow", "--idle-timeout")
    with penstock.running(*worker, "0.5") as one, penstock.running(*worker, "0.5") as other:
        results = [one.wait(), other.wait()]
    assert sorted(int(line) for result in results for line in result.lines) == list(range(40))
    assert client.lag("orders", "g") == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--exec", "cat", "--no-ack"), "--exec acknowledges by exit code"),
        (("--exec", "cat", "--auto-ack"), "--exec acknowledges by exit code"),
        (("--exec", "cat", "--json"), "--exec prints what the command prints"),
        (("--follow", "--no-ack"), "leases would pile up"),
        (("--follow", "--wait", "1"), "--follow cannot be combined with --wait"),
        (("--idle-timeout", "1"), "needs --follow"),
        (("--lease", "0"), "--lease"),
        (("--max-messages", "0"), "--max-messages"),
        (("--mode", "other"), "--mode"),
    ],
)
def test_what_makes_no_sense_is_refused(
    penstock: CommandLine, client: Client, options: tuple[str, ...], complaint: str
) -> None:
    client.push("orders", b"a")
    result = penstock("pop", "orders", *options, code=2)
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert client.groups() == []


def test_popped_json_is_one_object_per_line(penstock: CommandLine, client: Client) -> None:
    client.push("orders", [b'{"a":\n1}', b"\xff"], partition="p")
    lines = penstock("pop", "orders", "--json").stdout.splitlines()
    assert [set(json.loads(line)) & {"value", "value_text", "value_base64"} for line in lines] == [
        {"value"},
        {"value_base64"},
    ]
