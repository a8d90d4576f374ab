"""Help texts: every command has one with examples, and the examples work."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from acceptance.commandline import CommandLine
from penstock import Client, __version__
from penstock.cli.options import Command
from penstock.cli.root import root

EXAMPLES = [
    example for command in root.commands.values() if isinstance(command, Command) for example in command.examples
]
# What a shell has to do; all the others are run by the tests of their commands.
PIPES = [example for example in EXAMPLES if re.search(r"[|<>$]", example) and " up " not in example]


@pytest.mark.parametrize("name", list(root.commands))
def test_every_command_has_help(command: Callable[..., CommandLine], name: str) -> None:
    text = command()(name, "--help").text
    assert text.startswith(f"Usage: penstock {name}")
    if name != "bench":
        assert re.search(rf"Examples:\n.*penstock.* {name}", text)


def test_the_help_says_what_exit_codes_mean(command: Callable[..., CommandLine]) -> None:
    text = command()("--help").text
    assert "130  interrupted by Ctrl-C" in text
    for name in root.commands:
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE)


def test_every_line_of_help_is_a_short_sentence_that_says_what_to_do() -> None:
    lines = [command.get_short_help_str(80) for command in root.commands.values()]
    lines += [
        str(option.help)
        for command in root.commands.values()
        for option in command.params
        if isinstance(option, click.Option)
    ]
    assert [line for line in lines if not re.fullmatch(r"[A-Z].*\.", line) or line.endswith("...")] == []
    noun_first = re.compile(r"(A|An|The|What|Where|How|Who|Whether|Only|At most)\b")
    assert [line for line in lines if noun_first.match(line)] == []


def test_without_a_command_the_help_is_shown_and_the_code_is_2(command: Callable[..., CommandLine]) -> None:
    result = command()(code=2)
    assert (result.text, "Usage: penstock" in result.stderr) == ("", True)


def test_the_version_is_printed(command: Callable[..., CommandLine]) -> None:
    assert command()("--version").text == f"penstock {__version__}\n"


def test_help_loads_neither_driver_nor_engine() -> None:
    program = "import penstock.cli, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert {"psycopg", "rich", "msgspec", "penstock.client", "penstock.postgres"}.isdisjoint(run.stdout.split())


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_commands_with_options_that_exist(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flows.py").touch()
    monkeypatch.chdir(tmp_path)
    for part in re.split(r" [|<>] |[()]", example):
        words = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
        if words and words[0] == "penstock":
            name = next(word for word in words if word in root.commands)
            words.remove(name)
            root.commands[name].make_context(name, words[1:])


@pytest.mark.parametrize("example", PIPES)
def test_the_examples_with_pipes_work(
    penstock: CommandLine, client: Client, example: str, request: pytest.FixtureRequest
) -> None:
    for tool in ("jq", "psql"):
        if f"{tool} " in example and shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    client.push("orders", [b'{"id": 1}', b"text"], partition="0")
    (penstock.folder / "events.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    penstock.environment["ID"] = str(client.read("orders", "0")[0].id)
    penstock.environment["DATABASE_URL"] = request.getfixturevalue("empty_dsn" if " sql " in example else "dsn")
    if "grant" in example:
        example = example.replace("reports", request.getfixturevalue("user"))
    result = penstock.shell(example)
    assert result.code == 0, result
    assert result.stdout or " > " in example, result
    assert "ERROR" not in result.stderr
