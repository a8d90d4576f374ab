"""Pushing and reading from the command line."""

import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

from acceptance.commandline import CommandLine
from penstock import Client, InvalidInput, Message
from penstock.operations import envelopes

AWKWARD = [b"", b"plain text", b'{"a":  1.10, "b": [1e400]}', b'"quoted"', b"\xff\x00\xfe", "grüße\t✓".encode(), b"12"]
AWKWARD_TOO = [*AWKWARD, None, b"null", b" null"]


def test_messages_are_pushed_from_arguments(penstock: CommandLine, client: Client) -> None:
    result = penstock("push", "orders", "hello", "world", "--partition", "eu", "--key", "k", "--header", "a=b=c")
    assert result.rows == [["eu", "0", "2", "-"]]
    [first, second] = client.read("orders", "eu")
    assert (first.value, first.key, first.headers) == (b"hello", "k", {"a": "b=c"})
    assert second.value == b"world"


def test_a_single_message_is_pushed_with_its_id(penstock: CommandLine, client: Client) -> None:
    [pushed] = penstock("push", "orders", "hello", "--json").objects
    assert pushed == {
        "queue": "orders",
        "partition": "0",
        "first_offset": 0,
        "count": 1,
        "id": pushed["id"],
        "duplicates": 0,
        "replaced": 0,
    }
    assert client.get(pushed["id"]).value == b"hello"


def test_lines_are_pushed_as_their_bytes(penstock: CommandLine, client: Client) -> None:
    penstock("push", "orders", "--partition", "p", stdin=b"one\r\n\n\xff\xfe\nlast without end")
    assert [m.value for m in client.read("orders", "p")] == [b"one\r", b"", b"\xff\xfe", b"last without end"]


def test_a_dash_reads_standard_input(penstock: CommandLine, client: Client) -> None:
    penstock("push", "orders", "-", "--partition", "p", stdin=b"a\nb\n")
    assert [m.value for m in client.read("orders", "p")] == [b"a", b"b"]


def test_nothing_to_push_is_no_error(penstock: CommandLine) -> None:
    result = penstock("push", "orders", stdin=b"")
    assert (result.text, result.stderr) == ("", "pushed 0 messages to 0 partitions of orders\n")


def test_many_lines_go_in_batches_and_are_summed_up(penstock: CommandLine, client: Client) -> None:
    numbers = b"".join(b"%d\n" % number for number in range(2500))
    [pushed] = penstock("push", "orders", "--partition", "p", "--batch", "1000", "--json", stdin=numbers).objects
    assert (pushed["count"], pushed["first_offset"], pushed["id"]) == (2500, 0, None)
    assert [m.json() for m in client.read("orders", "p")] == list(range(2500))
    assert len({m.timestamp for m in client.read("orders", "p")}) == 3


def test_a_slow_pipe_is_not_held_back(penstock: CommandLine, client: Client) -> None:
    client.create("orders")
    with penstock.running("push", "orders", "--partition", "p") as running:
        running.stdin.write(b"first\n")
        running.stdin.flush()
        message = next(client.tail("orders", idle_timeout=30))
        assert message.value == b"first"
        running.stdin.close()
        assert running.process.wait(30) == 0


def test_json_is_checked_and_the_line_is_named(penstock: CommandLine, client: Client) -> None:
    result = penstock("push", "orders", "--format", "json", stdin=b'{"a": 1}\n\n{"b": }\n', code=2)
    assert result.stderr.startswith("penstock: line 3: not JSON")
    assert client.queues() == []


def test_an_error_says_how_much_was_pushed_before(penstock: CommandLine, client: Client) -> None:
    result = penstock(
        "push", "q", "--format", "json", "--partition", "p", "--batch", "2", stdin=b"1\n2\n3\nx\n5\n", code=2
    )
    assert "line 4: not JSON" in result.stderr
    assert result.stderr.endswith("2 messages of earlier batches pushed\n")
    assert [m.value for m in client.read("q", "p")] == [b"1", b"2"]


def test_json_is_stored_as_it_is_written(penstock: CommandLine, client: Client) -> None:
    penstock("push", "q", "--format", "json", "--partition", "p", stdin=b' {"a":  1.10} \r\n')
    assert client.read("q", "p")[0].value == b'{"a":  1.10}'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{}", "one of value, value_text and value_base64"),
        (b'{"value": 1, "value_text": "x"}', "one of value, value_text and value_base64"),
        (b'{"value": 1, "key": 5}', "$.key"),
        (b'{"value_base64": "%%%"}', "$.value_base64"),
        (b'{"value": 1, "headers": {"a": 1}}', "$.headers"),
        (b"[1]", "Expected `object`"),
        (b"nonsense", "not an envelope"),
    ],
)
def test_a_wrong_envelope_says_what_is_wrong(line: bytes, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        envelopes.read(line)


def test_a_wrong_envelope_is_refused(penstock: CommandLine, client: Client) -> None:
    result = penstock("push", "q", "--format", "envelope", stdin=b'{"value": 1}\n{}\n', code=2)
    assert result.stderr.startswith("penstock: line 2: an envelope needs exactly one of value")
    assert client.queues() == []


def test_what_was_read_can_be_pushed_again(penstock: CommandLine, client: Client) -> None:
    client.push_many(
        "orders",
        [Message(value, key=f"k{n}", headers={"n": str(n)}, partition="p") for n, value in enumerate(AWKWARD_TOO)],
    )
    lines = penstock("read", "orders", "p", "--json").stdout
    penstock("push", "copy", "--format", "envelope", stdin=lines)
    assert [(m.value, m.key, m.headers, m.offset) for m in client.read("copy", "p")] == [
        (m.value, m.key, m.headers, m.offset) for m in client.read("orders", "p")
    ]


def test_options_come_before_what_an_envelope_says(penstock: CommandLine, client: Client) -> None:
    line = b'{"value": 1, "partition": "old", "key": "old", "headers": {"a": "old", "b": "kept"}}'
    penstock(
        *("push", "q", "--format", "envelope", "--partition", "new", "--key", "new", "--header", "a=new"), stdin=line
    )
    [message] = client.read("q", "new")
    assert (message.key, message.headers) == ("new", {"a": "new", "b": "kept"})


def test_an_envelope_tells_json_text_and_bytes_apart(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b'{"a":\n1.10}', b"text", b"\xff"], partition="p")
    result = penstock("read", "q", "p", "--json")
    json_value, text, other = result.objects
    assert json_value["value"] == {"a": 1.1}
    assert b'"value":{"a": 1.10}' in result.stdout
    assert text["value_text"] == "text"
    assert other["value_base64"] == "/w=="
    [stored, *_] = client.read("q", "p")
    assert json_value == {
        "queue": "q",
        "partition": "p",
        "offset": 0,
        "id": str(stored.id),
        "timestamp": stored.timestamp.isoformat().replace("+00:00", "Z"),
        "key": None,
        "headers": None,
        "value": {"a": 1.1},
    }


def test_a_null_value_is_pushed_and_told_from_others(penstock: CommandLine, client: Client) -> None:
    penstock("push", "q", "--null", "--key", "k", "--partition", "p", "--header", "a=b")
    penstock("push", "q", "null", "", "--partition", "p")
    first, *rest = client.read("q", "p")
    assert (first.value, first.key, first.headers) == (None, "k", {"a": "b"})
    assert [message.value for message in rest] == [b"null", b""]
    shown = penstock("read", "q", "p", "--json")
    assert [{name: one[name] for name in one if name.startswith("value")} for one in shown.objects] == [
        {"value": None},
        {"value_text": "null"},
        {"value_text": ""},
    ]
    assert penstock("read", "q", "p").lines == ["null", "null", ""]
    assert penstock("read", "q", "p", "--raw").stdout == b"null"


@pytest.mark.parametrize("more", [("message",), ("--format", "json")])
def test_a_null_value_is_a_message_by_itself(penstock: CommandLine, more: tuple[str, ...]) -> None:
    assert "--null cannot be combined" in penstock("push", "q", "--null", *more, code=2).stderr


def test_a_range_is_read_by_offset(penstock: CommandLine, client: Client) -> None:
    client.push("q", [str(n).encode() for n in range(10)], partition="p")
    assert penstock("read", "q", "p", "--start", "2", "--stop", "5").lines == ["2", "3", "4"]
    assert penstock("read", "q", "p", "--start", "2", "--limit", "1").lines == ["2"]


def test_a_limit_counts_messages_that_are_still_there(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"old"] * 10, partition="p")
    client.purge("q")
    client.push("q", [b"a", b"b", b"c"], partition="p")
    assert penstock("read", "q", "p", "--limit", "2").lines == ["a", "b"]


def test_a_range_is_read_by_time(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"a"], partition="p")
    moment = client.push("q", [b"b"], partition="p").timestamp
    assert penstock("read", "q", "p", "--since", moment.isoformat()).lines == ["b"]
    assert penstock("read", "q", "p", "--until", moment.isoformat()).lines == ["a"]
    assert penstock("read", "q", "p", "--since", "1h").lines == ["a", "b"]


def test_a_time_without_a_zone_is_local_time(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"a"], partition="p")
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).replace(tzinfo=None).isoformat()
    assert penstock("read", "q", "p", "--since", hour_ago, TZ="UTC").lines == ["a"]
    assert penstock("read", "q", "p", "--since", hour_ago, TZ="EST5").lines == []


def test_a_time_that_is_none_is_refused(penstock: CommandLine) -> None:
    assert "is not a time" in penstock("read", "q", "p", "--since", "yesterday", code=2).stderr


def test_raw_bytes_have_nothing_between(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"\xff\n", b"b"], partition="p")
    assert penstock("read", "q", "p", "--raw").stdout == b"\xff\nb"
    assert penstock("read", "q", "p").stdout == "\N{REPLACEMENT CHARACTER}\n\nb\n".encode()


def test_reading_what_is_not_there_exits_with_3(penstock: CommandLine, client: Client) -> None:
    client.push("q", b"a", partition="p")
    assert "no partition" in penstock("read", "q", "nope", code=3).stderr
    assert "no queue" in penstock("tail", "nope", code=3).stderr


def test_a_message_is_found_by_its_id(penstock: CommandLine, client: Client) -> None:
    [known] = client.push("q", b"found", partition="p").ids
    assert penstock("get", str(known), "--json").objects[0]["value_text"] == "found"
    client.purge("q")
    assert penstock("get", str(known), code=3).stderr.startswith("penstock: there is no message")
    assert penstock("get", "17", code=2).stderr == "penstock: '17' is not a message id: ids are UUIDs\n"


def test_tail_shows_the_last_messages(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"a", b"b", b"c"], partition="p")
    assert penstock("tail", "q", "--last", "2", "--no-follow").lines == ["b", "c"]
    assert penstock("tail", "q", "--partition", "p", "--last", "1", "--idle-timeout", "0.1").lines == ["c"]


def test_tail_follows_until_interrupted(penstock: CommandLine, client: Client) -> None:
    client.push("q", b"before", partition="p")
    with penstock.running("tail", "q", "--json") as running:
        assert '"before"' in running.line()
        client.push("q", b"after", partition="p2")
        assert '"after"' in running.line()
        result = running.end(signal.SIGINT)
    assert (result.code, result.stderr) == (130, "penstock: interrupted\n")


def test_a_reader_that_left_is_no_error_to_talk_about(penstock: CommandLine, client: Client) -> None:
    client.push("q", [b"x" * 1000] * 5000, partition="p")
    with penstock.running("read", "q", "p") as running:
        assert running.line() == "x" * 1000
        running.stdout.close()
        assert running.process.wait(30) == 141
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""


def test_a_terminal_gets_no_control_characters(penstock: CommandLine, client: Client) -> None:
    client.push("q", b"a\x1b]0;owned\x07b", partition="p")
    assert penstock.on_terminal("read", "q", "p") == "a\\x1b]0;owned\\x07b\r\n"


def test_a_terminal_gets_a_summary_and_a_table(penstock: CommandLine) -> None:
    shown = penstock.on_terminal("push", "orders", "hello", "--partition", "eu")
    assert "pushed 1 message to 1 partition of orders" in shown
    assert "first_offset" in shown


def test_push_on_a_terminal_needs_a_message(penstock: CommandLine) -> None:
    assert "give a message" in penstock.on_terminal("push", "orders", code=2)
