"""No call waits for ever.

The server's own timeouts cannot help when the server is frozen or the network is gone, and a pooler may refuse to set
them. So each call has a deadline on this side: when it passes, the statement is cancelled, and if that does not help
the socket is shut, which ends the wait whatever the server does.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from types import TracebackType
from typing import Any

import psycopg

from penstock.errors import PenstockError, TimedOut, Unavailable
from penstock.postgres.failures import translate

_CANCEL_SECONDS = 1.0


class Watch:
    """A call that is under way; `ended` when its deadline has passed and it was told to end."""

    __slots__ = ("connection", "due", "ended")

    def __init__(self, connection: psycopg.Connection[Any], due: float) -> None:
        self.connection = connection
        self.due = due
        self.ended = False


class Watchdog:
    """Ends calls of a synchronous client that pass their deadline. One daemon thread, started when first used."""

    def __init__(self) -> None:
        # The lock of the condition by itself: every call takes it twice, and going through the condition costs as much.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watches: set[Watch] = set()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def watch(self, connection: psycopg.Connection[Any], seconds: float) -> Watch:
        """Let a call use the connection for so many seconds. Forget the watch when the call is over."""
        watch = Watch(connection, time.monotonic() + seconds)
        with self._lock:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="penstock-watchdog", daemon=True)
                self._thread.start()
            elif watch.due < self._wakes_at:
                self._changed.notify()
        return watch

    def forget(self, watch: Watch) -> None:
        """End no call any more."""
        with self._lock:
            self._watches.discard(watch)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed and not self._watches:
                    return
                now = time.monotonic()
                due = [watch for watch in self._watches if watch.due <= now]
                if not due:
                    # Asleep for at most an hour: a new watch that is due earlier wakes us.
                    self._wakes_at = min([now + 3600, *(w.due for w in self._watches)])
                    self._changed.wait(self._wakes_at - now)
                    continue
            for watch in due:
                self._end(watch)

    def _end(self, watch: Watch) -> None:
        if watch.ended:
            _shut(watch.connection)
            watch.due = float("inf")
            return
        watch.ended = True
        watch.due = time.monotonic() + 2 * _CANCEL_SECONDS
        with contextlib.suppress(psycopg.Error, OSError):
            watch.connection.cancel_safe(timeout=_CANCEL_SECONDS)


class AsyncWatchdog:
    """Ends calls of an asynchronous client that pass their deadline: the event loop has a timer for each."""

    def close(self) -> None:
        """Do nothing: there is no thread to end."""

    def watch(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> "AsyncWatch":
        """Let a call use the connection for so many seconds. Forget the watch when the call is over."""
        return AsyncWatch(connection, seconds)

    def forget(self, watch: "AsyncWatch") -> None:
        """End no call any more."""
        watch.forget()


class AsyncWatch:
    """A call of an asynchronous client that is under way."""

    __slots__ = ("_connection", "_ending", "_loop", "_timer")

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._end)
        self._ending: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether its deadline has passed and it was told to end."""
        return self._ending is not None

    def forget(self) -> None:
        """End the call no more."""
        self._timer.cancel()
        if self._ending is not None:
            self._ending.cancel()

    def _end(self) -> None:
        self._ending = self._loop.create_task(self._cancel_then_shut())

    async def _cancel_then_shut(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        await asyncio.sleep(_CANCEL_SECONDS)
        _shut(self._connection)


def _shut(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def timed_out(seconds: float) -> TimedOut:
    """Return what to raise for a call that was ended."""
    return TimedOut(
        f"no answer within {seconds:g} s; whether the call took effect is unknown. Look at the server with "
        "`penstock doctor`, or raise PENSTOCK_TIMEOUT."
    )


class Limited:
    """Surrounds one call: it has a deadline, and what it raises says what to do.

    A class, as every call makes one: the decorator would cost more than all the rest of it.
    """

    __slots__ = ("_connection", "_seconds", "_watch", "_watchdog")

    def __init__(self, watchdog: Watchdog | AsyncWatchdog, connection: Any, seconds: float) -> None:
        self._watchdog: Any = watchdog
        self._connection = connection
        self._seconds = seconds

    def __enter__(self) -> None:
        self._watch = self._watchdog.watch(self._connection, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.forget(self._watch)
        if error is not None:
            self._raise_known(error)

    def _raise_known(self, error: BaseException) -> None:
        """Say it clearly when the call was ended, when the connection broke, and whatever the server answered."""
        if isinstance(error, psycopg.Error) and self._watch.ended:
            raise timed_out(self._seconds) from error
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and self._connection.broken:
            raise Unavailable(
                f"the connection broke during the call, and whether it took effect is unknown: {str(error).strip()}"
            ) from error
        if isinstance(error, Exception) and not isinstance(error, PenstockError) and (known := translate(error)):
            raise known from error
