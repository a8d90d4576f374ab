"""What idle consumers write: nothing, or it would be seen here.

PostgreSQL 18 counts the WAL of each connection; earlier servers only that of all together, which is then compared with
a span in which nobody polled.
"""

import asyncio
import multiprocessing as mp
import time
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from penstock import AsyncClient, Client

_NAME = "penstock-idle-bench"
# A session reports what it has written a second later: what it wrote to begin with must not count as that of its polls.
_REPORTED = 2.0


class Idle(msgspec.Struct, frozen=True):
    """WAL records while consumers polled in vain."""

    consumers: int
    seconds: float
    polls: int
    records_of_pollers: int | None
    records_of_server: int
    records_without_pollers: int


def measure(url: str, consumers: int, seconds: float) -> Idle:
    """Let consumers poll an empty group, in four processes."""
    with Client(url) as client:
        client.pop("idle", "g")
    processes = mp.get_context("spawn")
    ready = processes.Semaphore(0)
    ending = processes.Event()
    polls = processes.Value("q", 0)
    with psycopg.connect(url, autocommit=True) as connection:
        before = _server_records(connection)
        time.sleep(seconds)
        without = _server_records(connection) - before
        workers = [processes.Process(target=_poll, args=(url, consumers // 4, ready, ending, polls)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for _ in workers:
            ready.acquire()
        time.sleep(_REPORTED)
        before, own = _server_records(connection), _pollers_records(connection)
        time.sleep(seconds)
        after, own_after = _server_records(connection), _pollers_records(connection)
        ending.set()
        for worker in workers:
            worker.join(30)
            worker.kill()
    pollers = None if own is None or own_after is None else own_after - own
    return Idle(consumers, seconds, polls.value, pollers, after - before, without)


def _server_records(connection: psycopg.Connection[Any]) -> int:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute("SELECT wal_records FROM pg_stat_wal").fetchone()
    return int(row[0]) if row else 0


def _pollers_records(connection: psycopg.Connection[Any]) -> int | None:
    if connection.info.server_version < 180000:
        return None
    row = connection.execute(
        "SELECT coalesce(sum(w.wal_records), 0) FROM pg_stat_activity a, pg_stat_get_backend_wal(a.pid) w "
        "WHERE a.application_name = %s",
        (_NAME,),
    ).fetchone()
    return int(row[0]) if row else None


def _poll(url: str, consumers: int, ready: Any, ending: Any, polls: Any) -> None:
    asyncio.run(_poll_all(url, consumers, ready, ending, polls))


async def _poll_all(url: str, consumers: int, ready: Any, ending: Any, polls: Any) -> None:
    async with AsyncClient(make_conninfo(url, application_name=_NAME)) as client:

        async def consume() -> None:
            while not ending.is_set():
                await client.pop("idle", "g")
                with polls.get_lock():
                    polls.value += 1
                await asyncio.sleep(0.1)

        await client.pop("idle", "g")
        ready.release()
        await asyncio.gather(*(consume() for _ in range(consumers)))
