"""Runs the blocks of one page, in order, as a reader would: one Python session, one database, one shell's folder.

What a block says it prints is checked. In Python that is a comment after a `print(…)`, in SQL a line `-- → a | b`, on
the console whatever follows the command. `…` stands for anything.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from gateways import gateway

from .pages import ROOT, Block

_PRINT = re.compile(r"^\s*print\(.*\)  # (.*)$")
_ROW = re.compile(r"^-- → (.*)$")
_SECONDS = 180
# What a page calls its gateway; another port may be free here.
_GATEWAY = "localhost:8080"


class Session:
    """One reader with a database and a folder."""

    def __init__(self, dsn: str, server: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_URL": dsn,
            "PENSTOCK_HOME": str(folder / "home"),
            "PENSTOCK_TEST_URL": server,
            "COLUMNS": "100",
        }
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._made: dict[int, Any] = {}
        self._tests: str | None = None
        self._open = contextlib.ExitStack()
        self._gateway: str | None = None

    def run(self, block: Block) -> None:
        """Run a block and check what it says it prints."""
        if block.marker[0] == "file":
            assert block.text == (ROOT / block.marker[1]).read_text("utf-8"), f"{block.place}: not {block.marker[1]}"
            # A reader has it in a file of this name, too.
            (self._folder / Path(block.marker[1]).name).write_text(block.text, "utf-8")
        match block.marker[0], block.language:
            case "pytest", "python":
                self._pytest(block)
            case _, "python":
                self._python(block)
            case _, "sql":
                self._sql(block)
            case _, "console":
                self._console(block)
            case _, "shell":
                self._shell(block.text, block.place)
            case _:
                raise AssertionError(f"{block.place}: nobody knows how to run {block.language}")

    def finish(self) -> None:
        """Run the tests that the page shows, all at once: starting pytest takes seconds."""
        if self._tests is not None:
            self._shell(f"{sys.executable} -m pytest -q -p no:cacheprovider", self._tests)

    def close(self) -> None:
        """End what the blocks left open, as the end of their program would."""
        for value in self._made.values():
            if hasattr(value, "dispose"):
                value.dispose()
            else:
                with contextlib.suppress(Exception):
                    value.close()
        self._made.clear()
        self._namespace.clear()
        self._open.close()

    def _with_gateway(self, text: str) -> str:
        """Return a text with the address of a gateway of the page's database, which is started when it is needed."""
        if _GATEWAY not in text:
            return text
        if self._gateway is None:
            if shutil.which("curl") is None:
                pytest.skip("this page needs curl: apt-get install curl")
            self._gateway = urlsplit(self._open.enter_context(gateway(self._dsn)).url).netloc
        return text.replace(_GATEWAY, self._gateway)

    def _python(self, block: Block) -> None:
        # Empty lines before the code make the lines of a traceback those of the page.
        text = self._with_gateway(block.text)
        code = compile("\n" * block.line + text, str(block.page), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            try:
                exec(code, self._namespace)
            finally:
                # A later block may use a name again, and what it named before must be closed, too.
                self._made |= {
                    id(value): value
                    for value in self._namespace.values()
                    if type(value).__name__ in ("Client", "Engine", "Connection")
                }
        expected = [match[1] for line in block.text.splitlines() if (match := _PRINT.match(line))]
        require_in_order(expected, printed.getvalue().splitlines(), block.place)

    def _pytest(self, block: Block) -> None:
        (self._folder / f"test_line_{block.line}.py").write_text(block.text)
        self._tests = block.place

    def _sql(self, block: Block) -> None:
        rows: list[str] = []
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for statement in statements(block.text):
                cursor = connection.execute(statement.encode())
                if cursor.description:
                    rows += [" | ".join(map(shown, row)) for row in cursor.fetchall()]
        expected = [match[1] for line in block.text.splitlines() if (match := _ROW.match(line))]
        require_in_order(expected, rows, block.place)

    def _console(self, block: Block) -> None:
        for command, expected in commands(block.text):
            printed = self._shell(command, block.place)
            require_in_order(expected, printed.splitlines(), f"{block.place}: {command}")

    def _shell(self, script: str, place: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", self._with_gateway(script)],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{place}: exit {done.returncode}\n{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


def statements(text: str) -> Iterator[str]:
    """Split SQL where a line ends a statement."""
    held: list[str] = []
    for line in text.splitlines():
        held.append(line)
        if line.partition("--")[0].rstrip().endswith(";") and "\n".join(held).count("$$") % 2 == 0:
            yield "\n".join(held)
            held = []
    left = "\n".join(line for line in held if not line.startswith("--")).strip()
    assert not left, f"a statement without an end: {left}"


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Split a console's text into commands and what each prints."""
    command: list[str] = []
    expected: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), expected
            command, expected = [line[2:]], []
        elif line.startswith("> ") and not expected:
            command.append(line[2:])
        elif line.strip():
            expected.append(line)
    assert command, f"no command in:\n{text}"
    yield "\n".join(command), expected


def require_in_order(expected: Sequence[str], printed: Sequence[str], place: str) -> None:
    """Refuse unless every expected line is among those printed, in this order."""
    rest = iter(printed)
    for line in expected:
        pattern = re.compile(".*".join(map(re.escape, " ".join(line.split()).split("…"))))
        assert any(pattern.fullmatch(" ".join(found.split())) for found in rest), (
            f"{place}: expected {line!r}, in this order, in:\n" + "\n".join(printed)
        )


def shown(value: object) -> str:
    """Write a value of a row as psql does."""
    match value:
        case None:
            return ""
        case bool():
            return "t" if value else "f"
        case bytes():
            return value.decode()
        case _:
            return str(value)
