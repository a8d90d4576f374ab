"""The command line as a user has it: a process with arguments, a pipe or a terminal, and an exit code."""

import atexit
import contextlib
import functools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptance.preloaded import Preloaded

LONGEST = 240.0


@functools.cache
def preloaded() -> Preloaded:
    """The process that forks for each command of this session."""
    process = Preloaded()
    atexit.register(process.close)
    return process


@dataclass(frozen=True)
class Result:
    """What came of a command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.lines]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class CommandLine:
    """Runs `penstock` on one database or home."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        scripts = os.path.dirname(sys.executable)
        self.environment = {**clean, "PATH": f"{scripts}:{clean['PATH']}", "COLUMNS": "200", **environment}
        self.folder = folder

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0, **environment: str) -> Result:
        """Run it to its end; its exit code must be `code`."""
        result = self._run(arguments, stdin, {**self.environment, **environment})
        assert result.code == code, result
        assert "Traceback" not in result.stderr
        return result

    def _run(self, arguments: tuple[str, ...], stdin: bytes, environment: dict[str, str]) -> Result:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            code = preloaded().run(arguments, environment, str(self.folder), (given, out, err), LONGEST)
            if code is None:
                code = subprocess.run(
                    self._program(arguments),
                    stdin=given,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    cwd=self.folder,
                    timeout=LONGEST,
                    check=False,
                ).returncode
            out.seek(0)
            err.seek(0)
            return Result(code, out.read(), err.read().decode())

    def shell(self, line: str) -> Result:
        """Run a line as it could be typed."""
        run = subprocess.run(
            ["/bin/sh", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment,
            cwd=self.folder,
            timeout=LONGEST,
            check=False,
        )
        return Result(run.returncode, run.stdout, run.stderr.decode())

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator["Running"]:
        """Run it beside the test."""
        process = subprocess.Popen(
            self._program(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # A command that says nothing must not hold up the tests for ever.
        guard = threading.Timer(LONGEST, process.kill)
        guard.start()
        try:
            yield Running(process)
        finally:
            guard.cancel()
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def on_terminal(self, *arguments: str, typed: bytes = b"", until: bytes | None = None, code: int = 0) -> str:
        """Run it on a terminal; interrupt it when it has shown `until`."""
        return self._on_terminal(self._program(arguments), typed, until, code)

    def in_bash(self, typed: bytes) -> str:
        """Type into an interactive bash until it exits; return what the terminal shows."""
        return self._on_terminal(["bash", "--norc", "--noprofile", "-i"], typed, None, 0)

    def _on_terminal(self, program: list[str], typed: bytes, until: bytes | None, code: int) -> str:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            program,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**self.environment, "TERM": "xterm"},
            cwd=self.folder,
        )
        os.close(follower)
        os.write(leader, typed)
        shown = b""
        deadline = time.monotonic() + LONGEST
        interrupted = False
        while time.monotonic() < deadline and select.select([leader], [], [], deadline - time.monotonic())[0]:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            shown += chunk
            if until is not None and until in shown and not interrupted:
                interrupted = True
                process.send_signal(signal.SIGINT)
        os.close(leader)
        assert process.wait(LONGEST) == code, shown
        return shown.decode()

    def _program(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "penstock.cli", *arguments]


class Running:
    """A command that runs beside the test."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        # What was read of its standard error.
        self.said = ""
        self.stdin = process.stdin
        self.stdout = process.stdout

    def line(self) -> str:
        """Wait for its next line."""
        return self.stdout.readline().decode().rstrip("\n")

    def remark(self, begin: str) -> str:
        """Wait for a line of its standard error that begins like this; return the rest of it."""
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, b""):
            text = line.decode()
            self.said += text
            if text.startswith(begin):
                return text.removeprefix(begin).rstrip("\n")
        raise AssertionError(f"it never said {begin!r}, but {self.said}")

    def end(self, number: signal.Signals) -> Result:
        """Send it a signal and wait for its end."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> Result:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=LONGEST)
        assert b"Traceback" not in err, err
        return Result(self.process.returncode, out, err.decode())
