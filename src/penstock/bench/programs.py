"""Worker programs of a benchmark, started with the interpreter of any checkout, and controlled by lines of JSON.

A worker that is forked or spawned would be of the same penstock as the benchmark; these may be of another.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from penstock.errors import PenstockError

_PATIENCE = 10.0


def interpreter(checkout: Path | None) -> str:
    """Return the Python of a checkout with a `.venv` of its own; of None, the one that runs this."""
    if checkout is None:
        return sys.executable
    for name in (".venv/bin/python", ".venv/Scripts/python.exe"):
        if (checkout / name).exists():
            # Not resolved: a virtual environment is found by the name by which its Python is called.
            return str((checkout / name).absolute())
    raise PenstockError(f"{checkout} has no .venv with a Python; make one and install penstock there")


class Program:
    """One worker process."""

    def __init__(self, python: str, file: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # It inherits the mask: Ctrl-C is for the benchmark, which ends its workers, also those that are still starting.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # -P: modules beside the file must not hide others of the same name.
            self._process = subprocess.Popen(
                [python, "-P", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have it do something, and wait for the answer."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        """Have it do something; its answer has to be read before the next one."""
        with suppress(BrokenPipeError):
            self._input.write(json.dumps({"do": command, **arguments}) + "\n")
            self._input.flush()

    def answer(self) -> Any:
        """Return its answer; what went wrong there is raised here."""
        line = self._output.readline()
        if not line:
            raise PenstockError("a worker process of the benchmark ended; its output says why")
        answer = json.loads(line)
        if "error" in answer:
            raise PenstockError(f"a worker process of the benchmark failed: {answer['error']}")
        return answer["done"]

    def end(self) -> None:
        """Let it end, or end it."""
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None  # noqa: S101
        return self._process.stdin

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None  # noqa: S101
        return self._process.stdout


class Programs:
    """Worker processes of one checkout, started when they are needed."""

    def __init__(self, checkout: Path | None, file: Path) -> None:
        self._python = interpreter(checkout)
        self._file = file
        self._started: list[Program] = []

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.end()

    def first(self, count: int) -> Sequence[Program]:
        """Return so many of them."""
        while len(self._started) < count:
            self._started.append(Program(self._python, self._file))
        return self._started[:count]


def ask_all(programs: Iterable[Program], command: str, **arguments: Any) -> list[Any]:
    """Have several do the same at the same time; all answers are read, also where one went wrong."""
    asked = list(programs)
    for program in asked:
        program.send(command, **arguments)
    answers: list[Any] = []
    failed: PenstockError | None = None
    for program in asked:
        try:
            answers.append(program.answer())
        except PenstockError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return answers
