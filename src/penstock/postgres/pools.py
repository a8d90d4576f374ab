"""Pools of connections as penstock uses them, and what to raise when one has none to give."""

import os
import select
from typing import Any

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus

from penstock.errors import PenstockError, Unavailable
from penstock.settings import Settings


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


AsyncPool = psycopg_pool.AsyncConnectionPool[Any]


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


def refuse_stale(connection: psycopg.Connection[Any]) -> None:
    """Refuse an idle connection on which the server said something: it can only have been goodbye."""
    if _is_stale(connection.fileno()):
        connection.close()
        raise _gone()


async def async_refuse_stale(connection: psycopg.AsyncConnection[Any]) -> None:
    """Do the same for an asynchronous pool."""
    if _is_stale(connection.fileno()):
        await connection.close()
        raise _gone()


def is_clean(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Say whether a connection that somebody gives back can be used as it is."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def is_good(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Say whether a connection that was left alone can be used: the server has said nothing since."""
    return not connection.closed and not _is_stale(connection.fileno())


def _is_stale(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _gone() -> psycopg.OperationalError:
    return psycopg.OperationalError("the server closed this idle connection")


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
