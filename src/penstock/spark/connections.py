"""Connections of a Spark process: one small pool per database, kept for as long as the process lives.

Spark's Python processes serve one task after another, and there may be many of them. A database that is away for a
while, for a restart, is waited for: an error here would end the query. Where nothing has begun yet, somebody waits for
an answer, and an address that is wrong shall say so soon.
"""

import os
import time
from typing import TypeVar

from penstock.broker.operations.operation import Operation
from penstock.broker.operations.staging import GetLimits
from penstock.broker.retries import pauses
from penstock.errors import Retryable, TimedOut, Unavailable
from penstock.postgres.database import Database
from penstock.settings import resolve
from penstock.spark.options import Target

# How long a database may be away.
PATIENCE = 120.0
START_PATIENCE = 10.0
_CALL_TIMEOUT = 300.0

T = TypeVar("T")
_open: dict[tuple[int, Target], Database] = {}


def run(target: Target, operation: Operation[T], patience: float = PATIENCE) -> T:
    """Run an operation that may be repeated, through restarts of the database."""
    waits = pauses(patience)
    while True:
        try:
            return _database(target).run(operation)
        except (Unavailable, Retryable) as error:
            pause = next(waits, None)
            if isinstance(error, TimedOut) or pause is None or not operation.repeatable:
                raise
            time.sleep(pause)


def require_database(target: Target) -> None:
    """Refuse a database that cannot be reached, before tasks wait for it."""
    run(target, GetLimits([]), START_PATIENCE)


def close() -> None:
    """Close the connections of this process; another call opens them again."""
    while _open:
        _open.popitem()[1].close()


def _database(target: Target) -> Database:
    # The process id: a forked child must not use the sockets of its parent.
    key = os.getpid(), target
    if key not in _open:
        _open[key] = Database(
            resolve({"url": target.url, "home": target.home, "timeout": _CALL_TIMEOUT, "pool_size": 2})
        )
    return _open[key]
