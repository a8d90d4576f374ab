"""The server: what the owner of a database asks of it, as of one moment."""

from datetime import datetime
from typing import NamedTuple

import msgspec


class QueueSize(msgspec.Struct, frozen=True):
    """How much disk a queue takes, with indexes, as far as can be told."""

    queue: str
    bytes: int


class TableInfo(msgspec.Struct, frozen=True):
    """A table of the schema, with its indexes and long values, as PostgreSQL's statistics have it.

    One that somebody has locked has no size: whoever asks for it would have to wait.
    """

    name: str
    bytes: int | None
    live_tuples: int
    dead_tuples: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is open for more than five seconds; a prepared one has a name and no process."""

    pid: int | None
    prepared: str | None
    user: str | None
    application: str | None
    state: str | None
    since: datetime


class LockWait(msgspec.Struct, frozen=True):
    """A session that waits for a lock, and the processes that hold it up."""

    pid: int | None
    kind: str
    mode: str | None
    table: str | None
    blocked_by: list[int]
    since: datetime | None


class ServerInfo(msgspec.Struct, frozen=True):
    """A server and its database; `estimated` says that the sizes of queues come from a part of the log."""

    now: datetime
    server_version: str
    schema_version: int
    database: str
    started_at: datetime
    standby: bool
    database_bytes: int
    queues: list[QueueSize]
    estimated: bool
    tables: list[TableInfo]
    max_connections: int
    connections: dict[str, int]
    transactions: list[OpenTransaction]
    lock_waits: list[LockWait]
    waiting_for_locks: int
    maintained_at: datetime | None
    sampled_at: datetime | None
    failing_timers: dict[str, int]


class Difference(NamedTuple):
    """What a check of `verify` found when it was last run for monitoring."""

    check: str
    violations: int
    checked_at: datetime
