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
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import TimedOut

_CANCEL_SECONDS = 1.0


@dataclass(eq=False)
class _Watch:
    connection: psycopg.Connection[Any]
    due: float
    cancelled: bool = False


class Watchdog:
    """Ends calls of a synchronous client that pass their deadline. One daemon thread, started when first used."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[_Watch] = set()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @contextmanager
    def deadline(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
        """Let the body use the connection for so many seconds, then raise TimedOut in it."""
        watch = _Watch(connection, time.monotonic() + seconds)
        self._add(watch)
        try:
            yield
        except psycopg.Error as error:
            if watch.cancelled:
                raise _timed_out(seconds) from error
            raise
        finally:
            with self._changed:
                self._watches.discard(watch)

    def _add(self, watch: _Watch) -> None:
        with self._changed:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)
                self._thread.start()
            elif watch.due < self._wakes_at:
                self._changed.notify()

    def _watch(self) -> None:
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

    def _end(self, watch: _Watch) -> None:
        if watch.cancelled:
            _shut(watch.connection)
            watch.due = float("inf")
            return
        watch.cancelled = True
        watch.due = time.monotonic() + 2 * _CANCEL_SECONDS
        with contextlib.suppress(psycopg.Error, OSError):
            watch.connection.cancel_safe(timeout=_CANCEL_SECONDS)


@asynccontextmanager
async def async_deadline(connection: psycopg.AsyncConnection[Any], seconds: float) -> AsyncIterator[None]:
    """Let the body use the connection for so many seconds, then raise TimedOut in it."""
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await connection.cancel_safe(timeout=_CANCEL_SECONDS)
        await asyncio.sleep(_CANCEL_SECONDS)
        _shut(connection)

    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, lambda: ending.append(loop.create_task(end())))
    try:
        yield
    except psycopg.Error as error:
        if ending:
            raise _timed_out(seconds) from error
        raise
    finally:
        timer.cancel()
        for task in ending:
            task.cancel()


def _shut(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def _timed_out(seconds: float) -> TimedOut:
    return TimedOut(
        f"no answer within {seconds:g} s; whether the call took effect is unknown. Look at the server with "
        "`penstock doctor`, or raise PENSTOCK_TIMEOUT."
    )
