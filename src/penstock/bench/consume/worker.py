"""A process that fills queues and consumes them, controlled by lines of JSON on its standard input.

It is run by the interpreter of this checkout and by that of an earlier one. So it imports nothing of the benchmark, and
of penstock only what applications use.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from inspect import signature
from itertools import islice
from typing import Any

import psycopg
import psycopg_pool

import penstock
from penstock import Client
from penstock.errors import InvalidInput, PenstockError

MESSAGE = b'{"order": 1234567, "customer": "c-1029", "amount": 19.99, "items": ["a", "b", "c"], "state": "paid"}'
# psycopg prepares a statement when it sees it for the sixth time, and PostgreSQL settles on a plan after five more.
WARM_UP = 12
# Whoever got nothing for so many seconds has emptied the queue.
_DRY = 2.0
# How many batches a consumer claims ahead that does so.
_AHEAD = 8
# As many as a push takes at once.
_BATCH = 1000

_PLAIN_TAKE = b"SELECT id, body FROM plain ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
_PLAIN_DONE = b"DELETE FROM plain WHERE id = ANY (%s)"
_PLAIN_PUSH = b"INSERT INTO pushed (body) VALUES (%s) RETURNING id"
_APPEND = b"SELECT append(%s::integer, %s)"

# Does one step and says how many messages that were; 0 when there are none left.
Step = Callable[[], int]


class Worker:
    """What this process has open."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._turn = ExitStack()
        self._step: Step | None = None

    def about(self) -> dict[str, str]:
        """Say which penstock this is."""
        return {"version": penstock.__version__, "file": penstock.__file__}

    def migrate(self, url: str) -> None:
        """Make the schema in a new database."""
        self._client(url)

    def fill(self, url: str, queue: str, partitions: int, stored: int, messages: int) -> None:
        """Push so many messages, in segments of `stored` messages, to all partitions in turn."""
        with Client(url) as client:
            names = [f"p{number}" for number in range(partitions)]
            if stored == 1:
                for begin in range(0, messages, partitions):
                    count = min(partitions, messages - begin)
                    for first in range(0, count, _BATCH):
                        client.push_many(queue, [(name, MESSAGE) for name in names[first : min(first + _BATCH, count)]])
                return
            batch = [MESSAGE] * stored
            for number in range(messages // stored):
                client.push(queue, batch, partition=names[number % partitions])

    def can(self, option: str) -> bool:
        """Say whether `consume` has an option."""
        return option in signature(Client.consume).parameters

    def begin_group(self, url: str, queue: str, group: str, mode: str, settings: Mapping[str, Any]) -> str | None:
        """Create a group that has everything to consume yet; says what is wrong with its settings."""
        client = self._client(url)
        try:
            client.create_group(queue, group, mode=mode, **settings)
        except (InvalidInput, TypeError) as error:
            if not settings:
                raise
            return str(error)
        while any(found.enrolling for found in client.groups(queue) if found.name == group):
            client.sweep()
        return None

    def end_group(self, url: str, queue: str, group: str) -> None:
        """Delete a group, and with it the timers that others would serve."""
        self._client(url).delete_group(queue, group)

    def delete(self, url: str, queue: str) -> None:
        """Delete a queue."""
        self._client(url).delete(queue)

    def open(self, way: str, **job: Any) -> None:
        """Get ready for a turn, with some steps that do not count."""
        self._step = self._turn.enter_context(contextmanager(getattr(self, f"_{way}"))(**job))
        for _ in range(WARM_UP):
            self._step()

    def run(self, seconds: float, most: int) -> dict[str, Any]:
        """Take steps for so many seconds, but not more than `most`; then close what was opened."""
        step = self._step
        if step is None:
            raise RuntimeError("run before open")
        messages = steps = 0
        begun = last = time.perf_counter()
        found = 1
        while found and steps < most and last - begun < seconds:
            found = step()
            if found:
                messages += found
                steps += 1
                last = time.perf_counter()
        self._step = None
        # Closed before the clock is stopped, so that nothing is still to be acknowledged.
        self._turn.close()
        if found:
            last = time.perf_counter()
        return {"messages": messages, "steps": steps, "seconds": last - begun, "dry": not found}

    def close(self) -> None:
        """Close all connections: the databases are about to be dropped."""
        self._turn.close()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _consume(self, url: str, queue: str, group: str, take: int) -> Iterator[Step]:
        """Consume as applications do, acks with the next request: `for batch in client.consume(…): with batch: …`."""
        client = self._client(url)
        options: dict[str, Any] = {"defer_acks": True} if "defer_acks" in signature(client.consume).parameters else {}
        with closing(client.consume(queue, group, max_messages=take, idle_timeout=_DRY, **options)) as batches:

            def step() -> int:
                for batch in islice(batches, 1):
                    with batch:
                        return len(batch)
                return 0

            yield step

    def _prefetch(self, url: str, queue: str, group: str, take: int) -> Iterator[Step]:
        """Consume while others are claimed ahead, acks in the background."""
        client = self._client(url)
        options: dict[str, Any] = {"max_messages": take, "idle_timeout": _DRY, "prefetch": _AHEAD * take}
        with closing(client.consume(queue, group, **options)) as batches:

            def step() -> int:
                for batch in islice(batches, 1):
                    with batch:
                        return len(batch)
                return 0

            yield step

    def _pop(self, url: str, queue: str, group: str, take: int) -> Iterator[Step]:
        """Pop and ack, one call after the other."""
        client = self._client(url)

        def step() -> int:
            batch = client.pop(queue, group, max_messages=take, wait=_DRY)
            if batch is None:
                return 0
            batch.ack()
            return len(batch)

        yield step

    def _plain(self, url: str, take: int) -> Iterator[Step]:
        """Lock rows, delete them, commit."""
        with psycopg.connect(url) as connection:

            def step() -> int:
                rows = connection.execute(_PLAIN_TAKE, (take,), binary=True).fetchall()
                connection.execute(_PLAIN_DONE, ([row[0] for row in rows],))
                connection.commit()
                return len(rows)

            yield step

    def _push(self, url: str, queue: str, partition: str) -> Iterator[Step]:
        """Push one message."""
        client = self._client(url)

        def step() -> int:
            client.push(queue, MESSAGE, partition=partition)
            return 1

        yield step

    def _insert(self, url: str) -> Iterator[Step]:
        """Insert one row."""
        return _stored(url, _PLAIN_PUSH, (MESSAGE,))

    def _append(self, url: str, lane: int) -> Iterator[Step]:
        """Do the least that a log without gaps does: lock, look for the newest, insert the next."""
        return _stored(url, _APPEND, (lane, MESSAGE))

    def _client(self, url: str) -> Client:
        if url not in self._clients:
            self._clients[url] = Client(url)
        return self._clients[url]


def _stored(url: str, statement: bytes, values: tuple[Any, ...]) -> Iterator[Step]:
    """Store one message by a statement, on a connection of a pool like penstock's."""
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=8, kwargs={"autocommit": True}, open=True) as pool:
        pool.wait()

        def step() -> int:
            with pool.connection() as connection:
                connection.execute(statement, values, binary=True).fetchall()
            return 1

        yield step


def serve(worker: Any) -> None:
    """Do what the lines say, until there are no more."""
    answers = sys.stdout
    # What anything else prints must not be taken for an answer.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"done": getattr(worker, request.pop("do"))(**request)}
        except (PenstockError, psycopg.Error, psycopg_pool.PoolTimeout, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            break
    worker.close()


if __name__ == "__main__":
    serve(Worker())
