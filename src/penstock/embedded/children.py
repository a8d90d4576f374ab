"""What the servers of a home have in common as children of its keeper."""

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Callable

from penstock.errors import EmbeddedError


def extra_settings(variable: str) -> dict[str, str]:
    """Return the settings that the variable of the environment adds to ours."""
    text = os.environ.get(variable, "")
    try:
        pairs = [option.partition("=") for option in shlex.split(text)]
    except ValueError as error:
        raise EmbeddedError(f"{variable} cannot be read: {error}.") from None
    for name, equals, _ in pairs:
        if not (name and equals):
            raise EmbeddedError(f"{variable}={text!r} cannot be used: write name=value name=value.")
    return {name: value for name, _, value in pairs}


def memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def environment() -> dict[str, str]:
    """Return no more than the server needs: ours may hold secrets that are not for its account."""
    kept = ("PATH", "TZ", "LD_LIBRARY_PATH")
    return {"LC_ALL": "C", **{name: os.environ[name] for name in kept if name in os.environ}}


def die_with_keeper(number: signal.Signals) -> Callable[[], None] | None:
    """Return what makes a child get the signal when the keeper is killed, where that is possible.

    It runs after the change of user, which would undo it, and is safe as the keeper has one thread.
    """
    if sys.platform != "linux":
        return None
    prctl, keeper, set_death_signal = ctypes.CDLL(None).prctl, os.getpid(), 1

    def tie() -> None:
        prctl(set_death_signal, int(number))
        if os.getppid() != keeper:
            os._exit(1)

    return tie
