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
from typing import Any

import psycopg

from penstock.errors import TimedOut

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


class AsyncWatch:
    """The same for one call of an asynchronous client, whose loop is its own watchdog."""

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
