"""The command line: any argument and any standard input ends with a documented exit code and without a traceback."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.root import root

from .corpus import BYTES, JSON_TEXTS, MIB, NUMBERS, TEXTS, TIME_TEXTS
from .ways import Penstock, Told

# 1 is for errors that have no number of their own.
EXIT_CODES = range(6)
COMMANDS: dict[str, list[str]] = {
    "a message": ["push", "q", "--", "{}"],
    "a queue": ["push", "--partition", "p", "--", "{}", "x"],
    "a partition": ["push", "q", "x", "--partition={}"],
    "a key": ["push", "q", "x", "--partition", "p", "--key={}"],
    "a header": ["push", "q", "x", "--partition", "p", "--header={}"],
    "a header's value": ["push", "q", "x", "--partition", "p", "--header=h={}"],
    "a dedupe id": ["push", "q", "x", "--partition", "p", "--dedupe-id={}"],
    "a group": ["pop", "q", "--group={}", "--max-messages", "1", "--json"],
    "a subscription": ["pop", "q", "--group", "new", "--subscription={}"],
    "a partition to read": ["read", "q", "--", "{}"],
    "an id": ["get", "--", "{}"],
    "a queue to describe": ["describe", "--", "{}"],
    "a queue to make": ["create", "--", "{}"],
    "a group to make": ["group", "create", "q", "--", "{}"],
    "a group to ask": ["lag", "q", "--", "{}"],
    "a reason": ["dead-letters", "q", "--reason={}"],
    "a history": ["history", "q", "out", "--", "{}"],
    "a file of flows": ["run", "--once", "--", "{}"],
}
TIMES = {
    "at": ["push", "q", "x", "--partition", "p", "--at={}"],
    "delay": ["push", "q", "x", "--partition", "p", "--delay={}"],
    "seek": ["seek", "q", "out", "--to={}"],
    "subscription": ["pop", "q", "--group", "t", "--subscription={}"],
}
COUNTS = {
    "messages": ["pop", "q", "--group", "out", "--max-messages={}", "--auto-ack"],
    "lease": ["pop", "q", "--group", "out", "--lease={}", "--auto-ack"],
    "delay": ["push", "q", "x", "--partition", "p", "--delay={}"],
    "start": ["read", "q", "p", "--start={}"],
    "limit": ["read", "q", "p", "--limit={}"],
}


def can_be_typed(text: str) -> bool:
    """Tell whether an operating system can hand such an argument over."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True)
class Result:
    """What came of a command."""

    code: int
    stdout: bytes
    stderr: str


class Line:
    """Runs commands in this process, since hundreds of others would take minutes, and keeps what went wrong."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.problems: list[str] = []

    def __call__(self, what: str, arguments: list[str], stdin: bytes = b"") -> Result:
        said, out, err = (self._folder / name for name in ("in", "out", "err"))
        said.write_bytes(stdin)
        with (
            self._patch.context() as patch,
            said.open() as given,
            out.open("w") as printed,
            err.open("w", errors="backslashreplace") as told,
        ):
            for name, stream in (("stdin", given), ("stdout", printed), ("stderr", told)):
                patch.setattr(sys, name, stream)
            code = self._run(what, arguments)
        result = Result(code, out.read_bytes(), err.read_text(errors="replace"))
        if result.code not in EXIT_CODES or "Traceback" in result.stderr:
            self.problems.append(f"{what}: exit code {result.code}: {result.stderr:.200}")
        return result

    def _run(self, what: str, arguments: list[str]) -> int:
        try:
            root.main(arguments, "penstock")
        except SystemExit as end:
            return int(end.code or 0)
        except Exception as error:
            self.problems.append(f"{what}: {type(error).__name__}: {error!s:.200}")
        return 1


@pytest.fixture
def line(penstock: Penstock, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setenv("PENSTOCK_URL", dsn)
    return Line(tmp_path, monkeypatch)


def filled(arguments: list[str], value: object) -> list[str]:
    return [argument.replace("{}", str(value)) for argument in arguments]


def test_any_argument_ends_with_an_exit_code(line: Line, penstock: Penstock) -> None:
    kinds: list[tuple[dict[str, list[str]], dict[str, Any]]] = [
        (COMMANDS, {name: text for name, text in TEXTS.items() if can_be_typed(text)}),
        (TIMES, TIME_TEXTS),
        (COUNTS, NUMBERS),
    ]
    for commands, values in kinds:
        for turn, ((place, arguments), (name, value)) in enumerate(product(commands.items(), values.items())):
            # A command takes as long as a connection does, so each place gets some values, each time others.
            if turn % 7 == 0:
                line(f"{name} as {place}", filled(arguments, value))
    assert not line.problems, "\n".join(line.problems)
    penstock.sound()


def test_any_standard_input_is_taken_or_refused(line: Line, penstock: Penstock) -> None:
    one_line = [given for given in BYTES.values() if len(given) < MIB and not set(b"\r\n") & set(given)]
    pushed = line("lines", ["push", "lines", "--partition", "p"], b"\n".join(one_line) + b"\n")
    assert pushed.code == 0, pushed.stderr
    assert [message.value for message in penstock.client.read("lines", "p")] == one_line
    for form in ("json", "envelope"):
        for name, given in {**JSON_TEXTS, "all bytes": BYTES["all bytes"]}.items():
            before = penstock.everything()
            result = line(f"{name} as {form}", ["push", "q", "--partition", "p", "--format", form], given)
            if result.code:
                assert penstock.everything() == before, f"{name} as {form}: refused, and something has changed"
            else:
                penstock.comes_back(name, "q", "p", Told(None, given, ()))
    assert not line.problems, "\n".join(line.problems)
    penstock.sound()


# One place after the other: what the first one refuses does not hide what the others do.
ENVELOPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "value": lambda text: {"value": text},
    "text": lambda text: {"value_text": text},
    "key": lambda text: {"value": 1, "key": text},
    "headers": lambda text: {"value": 1, "headers": {text: text}},
    "partition": lambda text: {"value": 1, "partition": text},
    "unknown": lambda text: {"value": 1, text: 1},
}


def test_any_envelope_is_taken_or_refused_and_read_again(line: Line, penstock: Penstock) -> None:
    chosen = [name for turn, name in enumerate(TEXTS) if turn % 4 == 0]
    for place, envelope in ENVELOPES.items():
        for name in chosen:
            given = json.dumps(envelope(TEXTS[name])).encode()
            line(f"{name} as {place}", ["push", "q", "--format", "envelope"], given)
    for partition in penstock.client.partitions("q"):
        read = line(partition.name, ["read", "q", "--json", "--", partition.name])
        again = line(partition.name, ["push", "copy", "--format", "envelope"], read.stdout)
        assert (read.code, again.code) == (0, 0), again.stderr
        copied = penstock.client.read("copy", partition.name)
        assert [(one.key, one.value, one.headers) for one in copied] == [
            (one.key, one.value, one.headers) for one in penstock.client.read("q", partition.name)
        ]
    assert not line.problems, "\n".join(line.problems)
    penstock.sound()
