"""One of the two processes of `penstock bench latency`: it sends at a steady rate, or receives.

Both are on one machine, whose monotonic clock they share. A message is the time at which it was sent.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from penstock import Client
from penstock.bench.consume.worker import serve

_THERE = "penstock_bench_there"
_BACK = "penstock_bench_back"
_TABLE = (
    "CREATE TABLE IF NOT EXISTS penstock_bench_latency (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sent text)"
)
_NOTIFY = "SELECT pg_notify(%s, %s)"
_STORE = (
    "WITH stored AS (INSERT INTO penstock_bench_latency (sent) VALUES (%(sent)s) RETURNING sent)"
    " SELECT pg_notify(%(to)s, '') FROM stored"
)
_TAKE = (
    "DELETE FROM penstock_bench_latency WHERE id ="
    " (SELECT id FROM penstock_bench_latency ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING sent"
)
# How long what was sent last may take.
_GRACE = 15.0
_NOTICE = 0.1


class Worker:
    """What this process has under way."""

    def __init__(self) -> None:
        self._turn = ExitStack()
        self._stop = threading.Event()
        self._times: list[int] = []
        self._thread: threading.Thread | None = None
        self._send: Callable[[], object] | None = None
        self._answers: list[int] | None = None

    def receive(self, way: str, url: str, valkey_url: str, queue: str, notify: bool | None) -> None:
        """Begin to receive, in a thread, and be ready when this returns."""
        self._stop, self._times = threading.Event(), []
        if way == "penstock":
            client = self._turn.enter_context(_client(url, valkey_url, notify))
            # Made before the first push, as a consumer that waits does.
            client.pop(queue, "g")
            self._begin(lambda: client.process(queue, self._took, group="g", stop=self._stop, handle_signals=False))
            return
        listening = self._turn.enter_context(_listening(url, _THERE))
        if way == "one way":
            self._begin(lambda: self._listen(listening, None))
            return
        other = self._turn.enter_context(psycopg.connect(url, autocommit=True))
        if way == "plain":
            other.execute(_TABLE)
            self._begin(lambda: self._take(listening, other))
        else:
            self._begin(lambda: self._listen(listening, other))

    def received(self, count: int) -> list[float]:
        """Return how many milliseconds each took, once so many are there, and stop."""
        self._wait_for(self._times, count)
        self._end()
        return [each / 1e6 for each in self._times]

    def prepare(self, way: str, url: str, valkey_url: str, queue: str, notify: bool | None) -> None:
        """Get ready to send."""
        self._stop, self._times, self._answers = threading.Event(), [], None
        if way == "penstock":
            client = self._turn.enter_context(_client(url, valkey_url, notify))
            self._send = lambda: client.push(queue, str(time.monotonic_ns()).encode(), partition="p")
            return
        connection = self._turn.enter_context(psycopg.connect(url, autocommit=True))
        self._send = lambda: connection.execute(_NOTIFY, (_THERE, str(time.monotonic_ns())))
        if way == "plain":
            self._send = lambda: connection.execute(_STORE, {"to": _THERE, "sent": str(time.monotonic_ns())})
        if way == "round trip":
            back = self._turn.enter_context(_listening(url, _BACK))
            self._answers = self._times
            self._begin(lambda: self._listen(back, None))

    def send(self, rate: float, count: int) -> None:
        """Send so many, at so many a second."""
        send = self._send
        if send is None:
            raise RuntimeError("send before prepare")
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            send()

    def sent(self, count: int) -> list[float]:
        """Return how many milliseconds each took to come back, where they do, and stop."""
        if self._answers is not None:
            self._wait_for(self._answers, count)
        self._end()
        return [each / 1e6 for each in self._times]

    def close(self) -> None:
        """Stop what is under way."""
        self._end()

    def _took(self, message: Any) -> None:
        self._times.append(time.monotonic_ns() - int(message.value))

    def _listen(self, connection: psycopg.Connection[Any], answering: psycopg.Connection[Any] | None) -> None:
        while not self._stop.is_set():
            for notice in connection.notifies(timeout=_NOTICE):
                self._times.append(time.monotonic_ns() - int(notice.payload))
                if answering is not None:
                    answering.execute(_NOTIFY, (_BACK, notice.payload))

    def _take(self, listening: psycopg.Connection[Any], taking: psycopg.Connection[Any]) -> None:
        while not self._stop.is_set():
            for _ in listening.notifies(timeout=_NOTICE):
                # One notice may stand for several rows, and several may come for one.
                while (row := taking.execute(_TAKE).fetchone()) is not None:
                    self._times.append(time.monotonic_ns() - int(row[0]))

    def _begin(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _wait_for(self, times: list[int], count: int) -> None:
        until = time.monotonic() + _GRACE
        while len(times) < count and time.monotonic() < until:
            time.sleep(0.01)

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_GRACE)
            self._thread = None
        self._turn.close()


def _client(url: str, valkey_url: str, notify: bool | None) -> Client:
    return Client(url, valkey_url=valkey_url, notify=notify)


def _listening(url: str, channel: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(f"LISTEN {channel}".encode())
    return connection


if __name__ == "__main__":
    serve(Worker())
