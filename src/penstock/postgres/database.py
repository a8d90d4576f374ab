# Generated from async_database.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The transport of PostgreSQL: it runs operations on a pool of connections, the one place that opens them.

Connections that died while they lay in the pool are noticed before they are used, so a restart of the database costs
a reconnect and not an error. A connection that breaks during a call is another matter: the operation is tried again
only if running it twice does no harm.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import psycopg
import psycopg_pool

from penstock import forks
from penstock.broker.hints import HintListener
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.retries import Attempts
from penstock.errors import MessageTooLarge, PenstockError, Retryable, Unavailable
from penstock.postgres import hints, pools, savepoints, user_connections
from penstock.postgres.address import Address, open_address, redact
from penstock.postgres.deadlines import Limited, Watchdog
from penstock.postgres.pools import Pool
from penstock.postgres.scopes import Scope
from penstock.postgres.statements.call import Call, call_for
from penstock.postgres.wire import Connection
from penstock.settings import Settings

log = logging.getLogger("penstock.database")

R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741
# How long to wait for the pool before looking whether an embedded server has to be started again.
_PATIENCE = 2.0
# How long the connection that is kept for the next call may pass the pool by, which replaces those that are old.
_KEPT_FOR = 10.0


class Database:
    """A pool of connections to one address. A process that is forked from this one has its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._server: Address | None = None
        self._closed = False
        self._pool: Pool | None = None
        self._begin()
        forks.renew_in_children(self._begin)
        self.open()

    def _begin(self) -> None:
        """Make all that belongs to one process; the pool is opened when it is first needed."""
        self._watchdog = Watchdog()
        self._changing = threading.Lock()
        self._lent: set[psycopg.Connection[Any]] = set()
        # The connection of the last call, for the next one: to ask the pool costs as much as all else that a call does.
        self._kept: deque[tuple[Pool, psycopg.Connection[Any]]] = deque()
        self._kept_since = 0.0
        # Those who ask the pool just now, and would wait for a connection that is kept. A set, which threads may share.
        self._asking: set[object] = set()
        self._pool = None

    def __repr__(self) -> str:
        return repr(redact(self.settings.url or "") or str(self.settings.home))

    @property
    def server(self) -> Address:
        """The server in use, once there is one."""
        if self._server is None:
            raise PenstockError("the client is not open yet; use `with`, or call open() first")
        return self._server

    @property
    def address(self) -> str:
        """The address in use, with its password."""
        return self.server.dsn

    def open(self) -> None:
        """Find the database and see that it is ready. Operations do this by themselves."""
        if self._pool is None or self._closed:
            self._open_pool()

    def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,
        *,
        retry: bool = True,
    ) -> R:
        """Run one operation in a transaction of its own; a connection is waited for `timeout` seconds at most."""
        call = call_for(operation)
        began = time.monotonic()
        attempts: Attempts | None = None
        while True:
            sent = False
            try:
                pool, connection = self._take(timeout)
                sent = True
                try:
                    return call.parse(self.execute(connection, call))
                finally:
                    self._give_back(pool, connection)
            except MessageTooLarge:
                hinted, operation = operation, _without_hint(operation)
                if operation is hinted:
                    raise
                # It may be the server's queue of notifications that is full, and a push does not fail for that.
                call = call_for(operation)
            except (Unavailable, Retryable) as error:
                if not retry:
                    raise
                level = logging.WARNING if attempts is None else logging.DEBUG
                attempts = attempts or Attempts(
                    began, self.settings.timeout, operation.repeatable or operation.stamped, operation.stamped
                )
                pause = attempts.pause(error, sent)
                log.log(level, "%s. The call is tried again", error)
                time.sleep(pause)

    def execute(self, connection: psycopg.Connection[Any], call: Call[Any]) -> list[Any]:
        """Run one call on a connection, in whatever transaction that is in."""
        with self._limited(connection):
            if call.hot and isinstance(connection, Connection) and connection.wire.fits:
                with connection.lock:
                    return connection.wait(connection.wire.run(call.sql, call.parameters))
            cursor = connection.execute(call.sql.encode(), call.parameters, binary=True)
            return cursor.fetchall()

    @contextmanager
    def transaction(self, connection: Any = None) -> Iterator[Scope]:
        """Begin a transaction, on a connection of the pool or in that of the caller's own connection."""
        if connection is not None:
            scope = Scope(connection)
            with scope.outcome(), user_connections.transaction_on(connection, scope.effects) as execute:
                yield scope.begin(execute)
            return
        with self.connection() as own:
            scope = Scope(own)
            scope.effects.begin_later()
            with scope.outcome(), self._committed(own), savepoints.watch_psycopg(own, scope.effects):
                yield scope.begin(partial(self.execute, own))

    def pool_use(self) -> dict[str, int]:
        """Return how many connections are in use, open and allowed, and how many calls wait for one."""
        stats = {} if self._pool is None else self._pool.get_stats()
        return {
            "used": len(self._lent),
            "size": stats.get("pool_size", 0),
            "limit": self.settings.pool_size,
            "waiting": stats.get("requests_waiting", 0),
        }

    @property
    def can_listen(self) -> bool:
        """Whether hints arrive: a pooler would give those of PostgreSQL to whoever has the connection then."""
        return self._server is not None and (self._server.has_valkey or not self._server.pooled)

    def listen(self, listener: HintListener) -> hints.Hints:
        """Exchange hints with other processes, until they are closed."""
        return hints.join(self.server, listener)

    @contextmanager
    def _committed(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Make the body one transaction. Beginning and ending it are calls too, with a deadline each."""
        block = connection.transaction()
        with self._limited(connection):
            block.__enter__()
        try:
            yield
        except BaseException as error:
            with self._limited(connection):
                handled = block.__exit__(type(error), error, error.__traceback__)
            if not handled:
                raise
        else:
            with self._limited(connection):
                block.__exit__(None, None, None)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection."""
        pool, connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(pool, connection)

    def close(self) -> None:
        """Close all connections and let go of an embedded server."""
        self._closed = True
        self._let_go_of_kept()
        if self._pool is not None:
            self._pool.close()
        self._watchdog.close()
        if self._server is not None:
            self._server.close()

    def _limited(self, connection: psycopg.Connection[Any]) -> Limited:
        return Limited(self._watchdog, connection, self.settings.timeout)

    def _take(self, within: float | None = None) -> tuple[Pool, psycopg.Connection[Any]]:
        kept = self._take_kept()
        if kept is not None:
            return kept
        patience = self.settings.connect_timeout if within is None else min(self.settings.connect_timeout, within)
        deadline = time.monotonic() + patience
        while True:
            pool = self._pool
            if pool is None or self._closed:
                pool = self._open_pool()
                deadline = time.monotonic() + patience
            left = deadline - time.monotonic()
            asking = object()
            self._asking.add(asking)
            try:
                # After this, nobody keeps one: whoever has just done so finds that somebody asks.
                self._let_go_of_kept()
                connection = pool.getconn(timeout=max(0.01, min(_PATIENCE, left)))
                if pools.is_good(connection) or left <= 0:
                    self._lent.add(connection)
                    return pool, connection
                # Not as a check of the pool, which waits ever longer after each connection that the server has closed.
                connection.close()
                self._return(pool, connection)
            except psycopg_pool.PoolClosed:
                if pool is self._pool:
                    raise pools.closed() from None
            except psycopg_pool.PoolTimeout:
                self._reopen(pool)
                if left <= _PATIENCE and (pool is self._pool or left <= 0):
                    raise self._why_not() or pools.came_back() from None
            finally:
                self._asking.discard(asking)

    def _take_kept(self) -> tuple[Pool, psycopg.Connection[Any]] | None:
        """Take the connection of the last call, if it is still good."""
        try:
            pool, connection = self._kept.pop()
        except IndexError:
            return None
        if pool is self._pool and not self._closed and pools.is_good(connection):
            self._lent.add(connection)
            return pool, connection
        self._return(pool, connection)
        return None

    def _let_go_of_kept(self) -> None:
        while self._kept:
            with contextlib.suppress(IndexError):
                self._return(*self._kept.pop())

    def _give_back(self, pool: Pool, connection: psycopg.Connection[Any]) -> None:
        if connection not in self._lent:
            # Lent before a fork: it is the parent's.
            return
        self._lent.discard(connection)
        now = time.monotonic()
        if self._asking or self._kept or now > self._kept_since + _KEPT_FOR or not pools.is_clean(connection):
            self._kept_since = now
            self._return(pool, connection)
            return
        self._kept.append((pool, connection))
        if self._asking or self._closed or pool is not self._pool:
            self._let_go_of_kept()

    def _return(self, pool: Pool, connection: psycopg.Connection[Any]) -> None:
        # A pool that was closed meanwhile has closed its connections.
        with contextlib.suppress(psycopg_pool.PoolClosed):
            pool.putconn(connection)

    def _open_pool(self) -> Pool:
        with self._changing:
            if self._closed:
                raise pools.closed()
            if self._server is None:
                # It may start a server and migrate, which takes a while.
                self._server = open_address(self.settings)
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool

    def _reopen(self, old: Pool) -> None:
        """Start an embedded server that is gone and follow it to a new address, or find a server that is back.

        A pool that could not connect waits ever longer before it tries again. So we try, too, one of us at a time.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            if self._pool is not old:
                return
            moved = self.server.ensure()
            if moved or (self._why_not() is None and not old.get_stats().get("pool_available")):
                log.warning("connecting anew to %s", redact(self.server.dsn))
                self._pool = self._new_pool()
                old.close(timeout=0)
        finally:
            self._changing.release()

    def _why_not(self) -> PenstockError | None:
        """Say why there is no connection to be had; None when there is no reason any more."""
        if len(self._lent) >= self.settings.pool_size:
            return pools.exhausted(self.settings)
        try:
            connection = self.server.connect()
            connection.close()
        except PenstockError as error:
            return error
        return None

    def _new_pool(self) -> Pool:
        pool = self._opened_pool()
        # A call that comes before the first connection has it open a second one, and the two then take turns for ever.
        try:
            pool.wait(_PATIENCE)
        except psycopg_pool.PoolTimeout:
            # That has closed it. Another one goes on trying, while calls wait for it as long as they may.
            pool = self._opened_pool()
        return pool

    def _opened_pool(self) -> Pool:
        pool = Pool(
            self.server.dsn,
            connection_class=Connection,
            kwargs=self.server.connect_options(),
            open=False,
            **pools.pool_options(self.settings),
        )
        pool.open()
        return pool


def _without_hint(operation: O) -> O:
    """Return a push without the hint that it takes along, and any other operation as it is."""
    if not isinstance(operation, Push) or operation.hint is None:
        return operation
    return msgspec.structs.replace(operation, hint=None)
