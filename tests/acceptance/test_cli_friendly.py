"""What a person at the keyboard needs: tables that fit, headers, completed names, typing errors that make nothing."""

import re

import psycopg
import pytest

from acceptance.commandline import CommandLine
from penstock import Client


@pytest.fixture
def shop(client: Client) -> Client:
    client.push("shop-orders", [b"a", b"b"], partition="p")
    client.create_group("shop-orders", "billing")
    client.create_group("shop-orders", "mailer", mode="shared")
    return client


def test_groups_can_be_read_in_80_columns(penstock: CommandLine, shop: Client) -> None:
    penstock.environment["COLUMNS"] = "80"
    shown = re.sub(r"\x1b\[[0-9;]*m", "", penstock.on_terminal("groups"))
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["queue", "name", "mode", "lag", "ready", "claimed", "waiting", "age", "dead"]
    billing = next(line for line in lines if "billing" in line)
    assert re.search(r"shop-orders\s+billing\s+ordered\s+2\s+1\s+0\s+0\s+\d+s\s+0$", billing)


def test_a_list_in_a_pipe_has_a_header_when_asked_for(penstock: CommandLine, shop: Client) -> None:
    rows = penstock("queues", "--titles").rows
    assert rows[0][:2] == ["name", "partitions"]
    assert len(rows[0]) == len(rows[1])
    assert len(penstock("queues").rows) == 1


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("penstock push shop", ["shop-orders"]),
        ("penstock pop shop-orders --group ", ["billing", "mailer"]),
        ("penstock group delete shop-orders b", ["billing"]),
        ("penstock push other", []),
    ],
)
def test_names_of_queues_and_groups_are_completed(
    penstock: CommandLine, shop: Client, typed: str, names: list[str]
) -> None:
    words = typed.split(" ")
    found = penstock(_PENSTOCK_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert found.text.strip().split("\n") == ([f"plain,{name}" for name in names] or [""])
    assert found.stderr == ""


# Each begins with another letter, so that bash has one name to insert.
NAMES_THAT_SHELLS_EVALUATE = [
    "a$(touch$IFS'HARM')",
    "b`touch HARM`",
    "c;touch HARM;",
    "d|touch HARM",
    "e>HARM",
    "f&touch HARM&",
    "g${HOME}",
    "h*",
    "i?",
    "j[a-z]",
    "k{1,2}",
    "l m",
    "m'",
    'n"',
    "o\\",
    "p!!",
    "q#r",
    "r,s",
    "s\u00a0t",
    "t(u)",
    "u^v",
    "v=w",
    "-w",
    "%1",
    "x<y",
]
NAMES_THAT_MEAN_THEMSELVES = ["bestellungen-ä", "y.eu/2026", "z:a@b%c+d_e"]


def test_only_names_that_mean_themselves_in_a_shell_are_completed(penstock: CommandLine, client: Client) -> None:
    for name in NAMES_THAT_SHELLS_EVALUATE + NAMES_THAT_MEAN_THEMSELVES:
        client.create(name)
    for shell, word in (("bash", "2"), ("zsh", "2"), ("fish", "")):
        found = penstock(_PENSTOCK_COMPLETE=f"{shell}_complete", COMP_WORDS="penstock lag ", COMP_CWORD=word)
        offered = [line.removeprefix("plain,") for line in found.lines if line not in ("plain", "_", "")]
        assert sorted(offered) == NAMES_THAT_MEAN_THEMSELVES


def test_bash_runs_nothing_that_a_queues_name_says(penstock: CommandLine, client: Client) -> None:
    for name in [*NAMES_THAT_SHELLS_EVALUATE[:4], "zulu-orders"]:
        client.create(name)
    # Ctrl-A and Ctrl-E: what stands on the line after the completion is printed, word by word.
    typed = "".join(f"penstock lag {letter}\t\x01printf '<%s>' \x05\n" for letter in "abcdz")
    script = f'eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"\n{typed}exit\n'
    shown = penstock.in_bash(script.encode())
    assert re.findall(r"<penstock><lag><(.*?)>", shown) == ["a", "b", "c", "d", "zulu-orders"]
    assert not (penstock.folder / "HARM").exists()


def test_completion_is_silent_where_there_is_no_database(penstock: CommandLine) -> None:
    found = penstock(
        PENSTOCK_URL="postgresql://127.0.0.1:1/nowhere",
        _PENSTOCK_COMPLETE="bash_complete",
        COMP_WORDS="penstock push o",
        COMP_CWORD="2",
    )
    assert (found.text.strip(), found.stderr) == ("", "")


def test_a_pop_of_a_queue_that_does_not_exist_asks_for_create(penstock: CommandLine, client: Client) -> None:
    assert "--create creates it" in penstock("pop", "ordres", code=3).stderr
    assert client.queues() == []
    penstock("pop", "ordres", "--create")
    assert [queue.name for queue in client.queues()] == ["ordres"]


def test_a_database_can_be_told_to_make_nothing_on_first_use(penstock: CommandLine, client: Client) -> None:
    assert penstock("database").rows == [["create_on_first_use", "yes"]]
    assert penstock("database", "--create-on-first-use", "off").rows == [["create_on_first_use", "no"]]
    assert "creates none on first use" in penstock("push", "ordres", "x", code=3).stderr
    said = penstock("pop", "ordres", code=3).stderr
    assert "--create" not in said
    assert "`penstock create ordres` creates it (create_on_first_use is off)" in said
    assert "creates none on first use" in penstock("pop", "ordres", "--create", code=3).stderr
    penstock("database", "--create-on-first-use", "on")
    penstock("push", "orders", "x")


def test_the_doctor_fails_with_a_flow_that_is_lost(penstock: CommandLine, client: Client, dsn: str) -> None:
    assert {check["check"]: check["outcome"] for check in penstock("doctor", "--json").objects}["flows"] == "ok"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT penstock.register_flow('f', 'TRANSFORM', '{}', '{}', 's', 'c', '{}', '{}', '{}')")
        connection.execute(
            "INSERT INTO penstock.flow_states (flow_name, supervisor, state, heartbeat_at)"
            " VALUES ('f', 'gone', 'running', now() - interval '1 hour')"
        )
    checks = {check["check"]: check for check in penstock("doctor", "--json", code=5).objects}
    assert checks["flows"]["outcome"] == "fail"
    assert "f is lost" in checks["flows"]["found"]


def test_the_doctor_looks_at_the_servers_disk(penstock: CommandLine, client: Client, dsn: str) -> None:
    checks = {check["check"]: check for check in penstock("doctor", "--json").objects}
    assert re.search(r"GB free|cannot be seen", checks["disk"]["found"])


@pytest.mark.parametrize("command", ["queues", "doctor"])
def test_no_command_shows_the_password_of_an_address(penstock: CommandLine, command: str) -> None:
    for url in ("postgresql+psycopg://ann:S3CRET@127.0.0.1:1/x", "postgresql://ann:a#S3CRET@127.0.0.1:1/x"):
        found = penstock(command, "--url", url, code=4)
        assert "S3CRET" not in found.text + found.stderr
