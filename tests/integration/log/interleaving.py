"""Two transactions, step by step.

A statement runs in a thread of its own; a test goes on when the statement has finished, or when PostgreSQL itself says
that it waits for somebody's lock. Nothing depends on how long anything takes.
"""

import threading
import time
from typing import Any

from databases import Connection
from penstock import sql as schema

_SECONDS = 20.0
_BLOCKED = (
    "SELECT EXISTS (SELECT 1 FROM unnest(pg_blocking_pids(%s)) b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid"
    " WHERE a.backend_type IS DISTINCT FROM 'autovacuum worker')"
)

# The two ways of pushing one message "x" to a partition of queue q.
PUSH_ONE = "SELECT first_offset, created_at FROM penstock.push_segment('q', %s, 1, 'x'::bytea, '\\x01000000'::bytea)"
PUSH_MANY = (
    "SELECT first_offset, created_at FROM penstock.push_segments("
    "ARRAY['q'], ARRAY[%s], ARRAY[1], ARRAY['x'::bytea], ARRAY['\\x01000000'::bytea])"
)
PUSHES = [PUSH_ONE, PUSH_MANY]
# One message to each of two partitions, in the order given.
PUSH_BOTH = (
    "SELECT first_offset FROM penstock.push_segments(ARRAY['q', 'q'], ARRAY[%s, %s], ARRAY[1, 1],"
    " ARRAY['x'::bytea, 'x'::bytea], ARRAY['\\x01000000'::bytea, '\\x01000000'::bytea])"
)


class Running:
    """A statement that runs in a thread."""

    def __init__(self, connection: Connection, query: str, *parameters: Any) -> None:
        self._connection = connection
        self._pid = connection.info.backend_pid
        self._ended = threading.Event()
        self._rows: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(query, parameters), daemon=True)
        self._thread.start()

    def _run(self, query: str, parameters: tuple[Any, ...]) -> None:
        try:
            self._rows = self._connection.execute(query.encode(), parameters or None).fetchall()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def waits(self, observer: Connection) -> bool:
        """Return True when PostgreSQL says that somebody blocks the statement, and False when it has ended.

        Autovacuum is nobody: it comes when it likes, and is gone in a moment.
        """
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if self._ended.wait(0.005):
                return False
            if observer.execute(_BLOCKED, (self._pid,)).fetchall() == [(True,)]:
                return True
        raise AssertionError("the statement neither ended nor waited for a lock")

    def rows(self) -> list[Any]:
        """Return what came of it, or raise."""
        assert self._ended.wait(_SECONDS), "the statement did not end"
        if self._error is not None:
            raise self._error
        return self._rows

    def value(self) -> Any:
        """Return the first column of its one row."""
        ((value, *_),) = self.rows()
        return value


def push(connection: Connection, partition: str = "p", statement: str = PUSH_ONE) -> int:
    """Push one message and return its offset."""
    offset: int = connection.execute(statement.encode(), (partition,)).fetchall()[0][0]
    return offset


def offsets(connection: Connection, partition: str = "p") -> list[int]:
    """Return the offsets that a reader sees."""
    query = "SELECT message_offset FROM penstock.read('q', %s)"
    return [offset for (offset,) in connection.execute(query, (partition,)).fetchall()]


def gapless(connection: Connection) -> bool:
    """Say whether the segments of every partition follow one another, with times that never go back."""
    broken = connection.execute(
        "SELECT 1 FROM (SELECT partition_id, base_offset, created_at,"
        " lag(base_offset + count) OVER log AS due, lag(created_at) OVER log AS earlier"
        " FROM penstock.segments WINDOW log AS (PARTITION BY partition_id ORDER BY base_offset)) s"
        " WHERE base_offset <> due OR created_at < earlier LIMIT 1"
    ).fetchall()
    return not broken


def source(function: str) -> str:
    """Return the SQL of a function."""
    return schema.functions()[function].text


def mutate(connection: Connection, function: str, *changes: tuple[str, str]) -> None:
    """Install a function with some of its text replaced."""
    text = source(function)
    for old, new in changes:
        assert old in text, f"{function} no longer has {old!r}: adapt the mutation"
        text = text.replace(old, new)
    connection.execute(text.encode())


def without_shared_lock(connection: Connection, function: str) -> None:
    """Install a function that does not take the queue's shared lock."""
    if function == "push_segment":
        taken = "pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)"
        mutate(connection, function, (taken, "true"))
    else:
        mutate(connection, function, ("pg_advisory_xact_lock_shared", "coalesce"))
