"""Locks between processes that cannot go stale: the kernel frees them when the last holder dies."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from penstock.errors import EmbeddedError

STEP = 0.01


class Lock:
    """An `flock` on a file, free until one of the `try_` methods has returned True.

    A forked child shares what its parent held at the fork; a program that is executed does not,
    unless the file descriptor is passed on.
    """

    def __init__(self, path: Path) -> None:
        _fcntl()
        self.path = path
        try:
            self.descriptor = open_private(path, os.O_RDWR)
        except OSError as error:
            raise EmbeddedError(
                f"{path} cannot be opened: {error.strerror}. "
                "Run as the user who made this home, or set PENSTOCK_HOME to another folder."
            ) from None

    def try_shared(self) -> bool:
        """Take the lock beside other sharers; False when someone holds it alone."""
        return self._flock("LOCK_SH")

    def try_alone(self) -> bool:
        """Take the lock for this holder only; False when anyone else has it."""
        return self._flock("LOCK_EX")

    def take(self, *, shared: bool, deadline: float, purpose: str) -> None:
        """Take the lock, waiting for it until the deadline."""
        while not (self.try_shared() if shared else self.try_alone()):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Gave up waiting to {purpose}: another process holds {self.path}. "
                    "Try again, or with a longer timeout."
                )
            time.sleep(STEP)

    def release(self) -> None:
        """Free the lock for this holder and every process that inherited it."""
        self._flock("LOCK_UN")

    def close(self) -> None:
        """Let go of the file; the lock is free once all who inherited it have done so too."""
        os.close(self.descriptor)

    def _flock(self, operation: str) -> bool:
        fcntl = _fcntl()
        try:
            fcntl.flock(self.descriptor, getattr(fcntl, operation) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _fcntl() -> ModuleType:
    # Not at the top, so that importing penstock works where there is no fcntl.
    try:
        import fcntl
    except ImportError:
        raise EmbeddedError(
            "The embedded PostgreSQL runs on Linux and macOS only. Set PENSTOCK_URL to a PostgreSQL server instead."
        ) from None
    return fcntl


def is_owned(path: Path) -> bool:
    """Return whether someone holds the lock alone."""
    return _probe(path, lambda lock: not lock.try_shared())


def is_shared(path: Path) -> bool:
    """Return whether someone holds the lock without owning it."""
    return _probe(path, lambda lock: lock.try_shared() and not lock.try_alone())


def _probe(path: Path, question: Callable[[Lock], bool]) -> bool:
    # Looking must not make the file.
    if not path.exists():
        return False
    lock = Lock(path)
    try:
        answer = question(lock)
        # Not left to the closing: another thread may have forked meanwhile.
        lock.release()
        return answer
    finally:
        lock.close()


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read; root gives it to the owner of the folder.

    Links are refused: root would follow one that the folder's owner had put there.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.fchown(descriptor, folder.st_uid, folder.st_gid)
    return descriptor
