"""Pools of connections as penstock uses them, and what to raise when one has none to give."""

import asyncio
import os
import select
from typing import Any

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus

from penstock.errors import PenstockError, Unavailable
from penstock.settings import Settings

# How often a task that does not heed its cancellation is cancelled.
_CANCEL_EVERY = 0.1


class Pool(psycopg_pool.ConnectionPool[Any]):
    """A pool whose threads are told to end by the process that started them, and by no child of it."""

    _process = 0

    def open(self, wait: bool = False, timeout: float = 30.0) -> None:
        """Open it."""
        self._process = os.getpid()
        super().open(wait, timeout)

    def __del__(self) -> None:
        if self._process == os.getpid():
            super().__del__()


class AsyncPool(psycopg_pool.AsyncConnectionPool[Any]):
    """A pool whose tasks end when they are cancelled."""

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Do what comes, until it is told to end."""
        # What it is at may swallow a cancellation, and then it would go on, and `asyncio.run` wait for it for ever.
        working = asyncio.ensure_future(super().worker(q))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                working.cancel()
                await asyncio.wait({working}, timeout=_CANCEL_EVERY)
            raise


def pool_options(settings: Settings) -> dict[str, Any]:
    """Return the options that both kinds of pool share."""
    return {
        "min_size": 1,
        "max_size": settings.pool_size,
        "timeout": settings.connect_timeout,
        "reconnect_timeout": settings.connect_timeout,
        "num_workers": 1,
        "name": "penstock",
    }


def is_clean(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Say whether a connection that somebody gives back can be used as it is."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def is_good(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Say whether a connection that was left alone can be used: the server has said nothing since.

    What it says on an idle connection can only be goodbye.
    """
    return not connection.closed and not _is_stale(connection.fileno())


def _is_stale(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def exhausted(settings: Settings) -> Unavailable:
    """Return what to raise when all connections are in use."""
    return Unavailable(
        f"all {settings.pool_size} connections were in use for {settings.connect_timeout:g} s; raise "
        "PENSTOCK_POOL_SIZE, or do less in each transaction"
    )


def came_back() -> Unavailable:
    """Return what to raise when a database can be reached again, too late for this call."""
    return Unavailable("the database could not be reached and has just come back; try again")


def closed() -> PenstockError:
    """Return what to raise when a closed client is used."""
    return PenstockError("this client is closed; make a new one")
