"""Run a shell command for one message: `pop --exec`.

The command gets the value on standard input (nothing for a null value) and the rest in its environment. It runs in its
own process group, so that whatever it started ends with it when penstock is interrupted.
"""

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.messages import StoredMessage

# Seconds between SIGTERM and SIGKILL.
_STOP_TIMEOUT = 5.0


def run(command: str, group: str, message: "StoredMessage") -> int:
    """Run a command for a message and return its exit code, as a shell reports it."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, env=_environment(group, message), process_group=0
    )
    try:
        # A command need not read its whole input.
        process.communicate(message.value)
    except BaseException:
        _stop(process)
        raise
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _environment(group: str, message: "StoredMessage") -> dict[str, str]:
    known = {
        "QUEUE": message.queue,
        "GROUP": group,
        "PARTITION": message.partition,
        "OFFSET": str(message.offset),
        "ID": str(message.id),
        "KEY": message.key,
        "ATTEMPT": str(message.attempt),
        "NULL": "1" if message.value is None else None,
    }
    inherited = {name: text for name, text in os.environ.items() if name not in ("PENSTOCK_KEY", "PENSTOCK_NULL")}
    return {**inherited, **{f"PENSTOCK_{name}": text for name, text in known.items() if text is not None}}


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a command and everything it started."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
