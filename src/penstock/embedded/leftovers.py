"""Ending a server, whoever started it: its keeper's orderly stop, and what a killed keeper left."""

import os
import signal
import sys
import time
from pathlib import Path

from penstock.embedded.home import Home
from penstock.embedded.locks import STEP, Lock
from penstock.errors import EmbeddedError


def evict(home: Home, leader: int | None = None) -> Lock:
    """Return the lock of the data folder, taken, after ending each process that still has it."""
    lock = Lock(home.server_lock)
    for number, patience in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        if lock.try_alone():
            return lock
        processes = _processes(home)
        if number == signal.SIGINT:
            # A clean stop is for the first process to lead. Where that has died, the others go by
            # themselves, unless they are busy.
            processes = processes & _leader(home) if leader is None else {leader}
            patience = patience if processes else 1.0
        for process in processes:
            _kill(process, number)
        deadline = time.monotonic() + patience
        while not lock.try_alone():
            if time.monotonic() > deadline:
                break
            time.sleep(STEP)
        else:
            return lock
    lock.close()
    raise EmbeddedError(
        f"An earlier server over {home.data} does not end. Find its processes with "
        f"`ps aux | grep postgres`, end them, and try again."
    )


def postmaster_lines(home: Home) -> list[str]:
    """Return what the server says of itself in its data folder: nothing where there is none."""
    try:
        text = (home.data / "postmaster.pid").read_text()
    except OSError:
        return []
    return [line.strip() for line in text.splitlines()]


def _leader(home: Home) -> set[int]:
    """Return the server's first process, as far as it is known."""
    return {int(line) for line in postmaster_lines(home)[:1] if line.isdigit()}


def _processes(home: Home) -> set[int]:
    """Return the processes in the data folder, or the first one where the system cannot tell."""
    if sys.platform != "linux":
        return _leader(home)
    data = os.path.realpath(home.data)
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == data:
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def _kill(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise EmbeddedError(
            f"The server's process {process} is another user's. Stop it as that user or as root."
        ) from None
