"""Runs a command anew whenever a Python file beside an app changes: for development.

The command ends with whoever runs it, also if that is killed and can tell it nothing: they share a pipe.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

# How often files are looked at.
_EVERY = 0.3
# Where the command finds its end of the pipe.
_PIPE = "PENSTOCK_RELOADER"
_NOT_LOOKED_INTO = {".venv", "venv", "node_modules", "__pycache__", ".git"}


def run_and_reload(command: Sequence[str], folder: Path, echo: Callable[[str], object]) -> int:
    """Run a command until it is interrupted, and again after each change below a folder; return its exit code."""
    ending = threading.Event()
    process: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()
        if process is not None and process.poll() is None:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    # Nothing is ever written. The end of it, which closes with this process, is what the command hears.
    heard, _kept = os.pipe()
    environment = {**os.environ, _PIPE: str(heard)}
    while True:
        seen = _times(folder)
        # A group of its own: Ctrl-C must reach it once, from here.
        process = subprocess.Popen(command, start_new_session=True, pass_fds=[heard], env=environment)
        while process.poll() is None and not (changed := _changed(seen, folder)):
            time.sleep(_EVERY)
        if ending.is_set() or (process.poll() is not None and not changed and process.returncode == 0):
            return process.wait()
        if process.poll() is not None:
            echo("the worker ended; waiting for a change")
            while not ending.is_set() and not (changed := _changed(seen, folder)):
                time.sleep(_EVERY)
            if ending.is_set():
                return process.returncode
        echo(f"reloading: {changed} has changed")
        process.terminate()
        process.wait()


def end_with_reloader() -> None:
    """Let this process stop when the one that reloads it is gone; without one, do nothing."""
    given = os.environ.pop(_PIPE, "")
    if not given.isdecimal():
        return
    heard = int(given)
    # What this process starts must not keep it open, nor wait for it.
    os.set_inheritable(heard, False)

    def wait() -> None:
        with suppress(OSError):
            os.read(heard, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="penstock-reloader").start()


def _changed(seen: dict[Path, int], folder: Path) -> Path | None:
    now = _times(folder)
    return next((path for path in {**seen, **now} if seen.get(path) != now.get(path)), None)


def _times(folder: Path) -> dict[Path, int]:
    found = {}
    for path in _python_files(folder):
        with suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and path.name not in _NOT_LOOKED_INTO:
                yield from _python_files(path)
            elif path.suffix == ".py":
                yield path
