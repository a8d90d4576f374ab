"""Runs calls on a pool of connections: the one place that opens them.

Connections that died while they lay in the pool are noticed before they are used, so a restart of the database costs
a reconnect and not an error. A connection that breaks during a call is another matter: the call is tried again only if
running it twice does no harm.
"""

import asyncio
import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
import psycopg_pool

from penstock import forks
from penstock.broker.retries import Attempts
from penstock.errors import PenstockError, Retryable, Unavailable
from penstock.postgres.address import Address, open_address, redact
from penstock.postgres.deadlines import AsyncWatch, Watchdog, timed_out
from penstock.postgres.failures import translate
from penstock.postgres.statements.calls import Call
from penstock.postgres.wire import AsyncConnection, Connection
from penstock.settings import Settings

log = logging.getLogger("penstock.database")

T = TypeVar("T")
# How long to wait for the pool before looking whether an embedded server has to be started again.
_PATIENCE = 2.0


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


class Database:
    """A pool of connections to one address. A process that is forked from this one has its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.address = open_address(settings)
        self._closed = False
        # All connections that live, those of pools that were closed too.
        self._opened: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._begin()
        self._open_pool()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process; the pool is opened when it is first needed."""
        for connection in list(self._opened):
            forks.let_go(connection)
        self._opened.clear()
        self._watchdog = Watchdog()
        self._reopening = threading.Lock()
        self._lent: set[psycopg.Connection[Any]] = set()
        self._pool: Pool | None = None

    def run(self, call: Call[T], within: float | None = None) -> T:
        """Run one call in a transaction of its own; a connection is waited for `within` seconds at most."""
        began = time.monotonic()
        attempts: Attempts | None = None
        while True:
            sent = False
            try:
                pool, connection = self._take(within)
                sent = True
                try:
                    return call.parse(self.execute(connection, call))
                finally:
                    self._give_back(pool, connection)
            except (Unavailable, Retryable) as error:
                level = logging.WARNING if attempts is None else logging.DEBUG
                attempts = attempts or Attempts(began, self.settings.timeout, call.repeatable, call.stamped)
                pause = attempts.pause(error, sent)
                log.log(level, "%s. The call is tried again", error)
                time.sleep(pause)

    def execute(self, connection: psycopg.Connection[Any], call: Call[Any]) -> list[Any]:
        """Run one call on a connection, in whatever transaction that is in."""
        with self._limited(connection):
            if call.hot and isinstance(connection, Connection) and connection.wire.fits:
                with connection.lock:
                    return connection.wait(connection.wire.run(call.sql, call.parameters))
            return connection.execute(call.sql.encode(), call.parameters, binary=True).fetchall()

    @contextmanager
    def transaction(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
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
        if self._pool is not None:
            self._pool.close()
        self._watchdog.close()
        self.address.close()

    def _limited(self, connection: psycopg.Connection[Any]) -> "_Limited":
        return _Limited(self._watchdog, connection, self.settings.timeout)

    def _take(self, within: float | None = None) -> tuple[Pool, psycopg.Connection[Any]]:
        patience = self.settings.connect_timeout
        deadline = time.monotonic() + (patience if within is None else min(patience, within))
        while True:
            left = deadline - time.monotonic()
            pool = self._pool or self._open_pool()
            try:
                connection = pool.getconn(timeout=max(0.01, min(_PATIENCE, left)))
            except psycopg_pool.PoolClosed:
                if pool is self._pool:
                    raise closed() from None
            except psycopg_pool.PoolTimeout:
                self._reopen(pool)
                if left <= _PATIENCE and (pool is self._pool or left <= 0):
                    raise self._why_not() or came_back() from None
            else:
                self._lent.add(connection)
                return pool, connection

    def _open_pool(self) -> Pool:
        with self._reopening:
            if self._closed:
                raise closed()
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool

    def _give_back(self, pool: Pool, connection: psycopg.Connection[Any]) -> None:
        if connection not in self._lent:
            # Lent before a fork: it is the parent's.
            return
        self._lent.discard(connection)
        # A pool that was closed meanwhile has closed its connections.
        with contextlib.suppress(psycopg_pool.PoolClosed):
            pool.putconn(connection)

    def _reopen(self, old: Pool) -> None:
        """Start an embedded server that is gone and follow it to a new address, or find a server that is back.

        A pool that could not connect waits ever longer before it tries again. So we try, too, one of us at a time.
        """
        if not self._reopening.acquire(blocking=False):
            return
        try:
            if self._pool is not old:
                return
            if self.address.ensure() or (self._why_not() is None and not old.get_stats().get("pool_available")):
                log.warning("connecting anew to %s", redact(self.address.dsn))
                self._pool = self._new_pool()
                old.close(timeout=0)
        finally:
            self._reopening.release()

    def _why_not(self) -> PenstockError | None:
        """Say why there is no connection to be had; None when there is no reason any more."""
        if len(self._lent) >= self.settings.pool_size:
            return pool_exhausted(self.settings)
        try:
            self.address.connect().close()
        except PenstockError as error:
            return error
        return None

    def _new_pool(self) -> Pool:
        pool = Pool(
            self.address.dsn,
            connection_class=Connection,
            kwargs=self.address.connect_options(),
            configure=self._opened.add,
            check=refuse_stale,
            reconnect_timeout=self.settings.connect_timeout,
            open=True,
            **pool_options(self.settings),
        )
        # A call that comes before the first connection has it open a second one, and the two then take turns for ever.
        with contextlib.suppress(psycopg_pool.PoolTimeout):
            pool.wait(_PATIENCE)
        return pool


class AsyncDatabase:
    """The asynchronous twin of `Database`; it opens itself when first used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._address: Address | None = None
        self._closed = False
        self._opened: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()
        self._pool: psycopg_pool.AsyncConnectionPool[Any] | None = None
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process; the pool is opened when it is first needed."""
        for connection in list(self._opened):
            forks.let_go(connection)
        self._opened.clear()
        # Its tasks are those of a loop that does not run here; collected, each of them would complain.
        self._left_behind = self._pool
        self._changing = asyncio.Lock()
        self._lent: set[psycopg.AsyncConnection[Any]] = set()
        self._pool = None

    @property
    def address(self) -> Address:
        """The address in use, once there is one."""
        if self._address is None:
            raise PenstockError("the client is not open yet; use `async with` or await client.open()")
        return self._address

    @property
    def opened(self) -> bool:
        """Whether there is an address."""
        return self._address is not None

    async def open(self) -> None:
        """Find the database and see that it is ready. Calls do this by themselves."""
        async with self._changing:
            if self._closed:
                raise closed()
            if self._address is None:
                # Starting servers and migrating happen once and block; they get a thread.
                self._address = await asyncio.to_thread(open_address, self.settings)
            if self._pool is None:
                self._pool = await self._new_pool(self._address)

    async def run(self, call: Call[T], within: float | None = None) -> T:
        """Run one call in a transaction of its own; a connection is waited for `within` seconds at most."""
        began = time.monotonic()
        attempts: Attempts | None = None
        while True:
            sent = False
            try:
                async with self.connection(within) as connection:
                    sent = True
                    return call.parse(await self.execute(connection, call))
            except (Unavailable, Retryable) as error:
                level = logging.WARNING if attempts is None else logging.DEBUG
                attempts = attempts or Attempts(began, self.settings.timeout, call.repeatable, call.stamped)
                pause = attempts.pause(error, sent)
                log.log(level, "%s. The call is tried again", error)
                await asyncio.sleep(pause)

    async def execute(self, connection: psycopg.AsyncConnection[Any], call: Call[Any]) -> list[Any]:
        """Run one call on a connection, in whatever transaction that is in."""
        with self._limited(connection):
            if call.hot and isinstance(connection, AsyncConnection) and connection.wire.fits:
                async with connection.lock:
                    return await connection.wait(connection.wire.run(call.sql, call.parameters))
            cursor = await connection.execute(call.sql.encode(), call.parameters, binary=True)
            return await cursor.fetchall()

    @asynccontextmanager
    async def transaction(self, connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
        """Make the body one transaction. Beginning and ending it are calls too, with a deadline each."""
        block = connection.transaction()
        with self._limited(connection):
            await block.__aenter__()
        try:
            yield
        except BaseException as error:
            with self._limited(connection):
                handled = await block.__aexit__(type(error), error, error.__traceback__)
            if not handled:
                raise
        else:
            with self._limited(connection):
                await block.__aexit__(None, None, None)

    @asynccontextmanager
    async def connection(self, within: float | None = None) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection."""
        pool, connection = await self._take(within)
        try:
            yield connection
        finally:
            # One that was lent before a fork is the parent's.
            if connection in self._lent:
                self._lent.discard(connection)
                with contextlib.suppress(psycopg_pool.PoolClosed):
                    await pool.putconn(connection)

    async def close(self) -> None:
        """Close all connections and let go of an embedded server."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()
        if self._address is not None:
            self._address.close()

    def _limited(self, connection: psycopg.AsyncConnection[Any]) -> "_AsyncLimited":
        return _AsyncLimited(connection, self.settings.timeout)

    async def _take(
        self, within: float | None = None
    ) -> tuple[psycopg_pool.AsyncConnectionPool[Any], psycopg.AsyncConnection[Any]]:
        patience = self.settings.connect_timeout if within is None else min(self.settings.connect_timeout, within)
        deadline = time.monotonic() + patience
        while True:
            if self._pool is None or self._closed:
                await self.open()
                deadline = time.monotonic() + patience
            left = deadline - time.monotonic()
            pool = self._pool
            assert pool is not None  # noqa: S101
            try:
                connection = await pool.getconn(timeout=max(0.01, min(_PATIENCE, left)))
            except psycopg_pool.PoolClosed:
                if pool is self._pool:
                    raise closed() from None
            except psycopg_pool.PoolTimeout:
                await self._reopen(pool)
                if left <= _PATIENCE and (pool is self._pool or left <= 0):
                    raise await self._why_not() or came_back() from None
            else:
                self._lent.add(connection)
                return pool, connection

    async def _reopen(self, old: psycopg_pool.AsyncConnectionPool[Any]) -> None:
        """Start an embedded server that is gone and follow it to a new address, or find a server that is back."""
        if self._changing.locked():
            return
        async with self._changing:
            if self._pool is not old:
                return
            moved = await asyncio.to_thread(self.address.ensure)
            if moved or (await self._why_not() is None and not old.get_stats().get("pool_available")):
                log.warning("connecting anew to %s", redact(self.address.dsn))
                self._pool = await self._new_pool(self.address)
                await old.close(timeout=0)

    async def _why_not(self) -> PenstockError | None:
        """Say why there is no connection to be had; None when there is no reason any more."""
        if len(self._lent) >= self.settings.pool_size:
            return pool_exhausted(self.settings)
        try:
            (await asyncio.to_thread(self.address.connect)).close()
        except PenstockError as error:
            return error
        return None

    async def _new_pool(self, address: Address) -> psycopg_pool.AsyncConnectionPool[Any]:
        pool = psycopg_pool.AsyncConnectionPool(
            address.dsn,
            connection_class=AsyncConnection,
            kwargs=address.connect_options(),
            configure=self._note,
            check=refuse_stale_async,
            reconnect_timeout=self.settings.connect_timeout,
            open=False,
            **pool_options(self.settings),
        )
        await pool.open()
        with contextlib.suppress(psycopg_pool.PoolTimeout):
            await pool.wait(_PATIENCE)
        return pool

    async def _note(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._opened.add(connection)


def pool_options(settings: Settings) -> dict[str, Any]:
    """Return the options that both kinds of pool share."""
    return {
        "min_size": 1,
        "max_size": settings.pool_size,
        "timeout": settings.connect_timeout,
        "num_workers": 1,
        "name": "penstock",
    }


def refuse_stale(connection: psycopg.Connection[Any]) -> None:
    """Refuse an idle connection on which the server said something: it can only have been goodbye."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        connection.close()
        raise psycopg.OperationalError("the server closed this idle connection")


async def refuse_stale_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """Do the same for an asynchronous pool."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await connection.close()
        raise psycopg.OperationalError("the server closed this idle connection")


class _Limited:
    """Surrounds one call: it has a deadline, and what it raises says what to do.

    A class, as every call makes one: the decorator would cost more than all the rest of it.
    """

    __slots__ = ("_connection", "_seconds", "_watch", "_watchdog")

    def __init__(self, watchdog: Watchdog, connection: psycopg.Connection[Any], seconds: float) -> None:
        self._watchdog = watchdog
        self._connection = connection
        self._seconds = seconds

    def __enter__(self) -> None:
        self._watch = self._watchdog.watch(self._connection, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.forget(self._watch)
        if error is not None:
            _raise_known(error, self._connection, self._watch.ended, self._seconds)


class _AsyncLimited:
    """The same for an asynchronous call."""

    __slots__ = ("_connection", "_seconds", "_watch")

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds

    def __enter__(self) -> None:
        self._watch = AsyncWatch(self._connection, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.forget()
        if error is not None:
            _raise_known(error, self._connection, self._watch.ended, self._seconds)


def _raise_known(
    error: BaseException,
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    ended: bool,
    seconds: float,
) -> None:
    """Say it clearly when a call was ended, when the connection broke during it, and whatever the server answered."""
    if isinstance(error, psycopg.Error) and ended:
        raise timed_out(seconds) from error
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and connection.broken:
        raise Unavailable(
            f"the connection broke during the call, and whether it took effect is unknown: {str(error).strip()}"
        ) from error
    if isinstance(error, Exception) and not isinstance(error, PenstockError) and (known := translate(error)):
        raise known from error


def pool_exhausted(settings: Settings) -> Unavailable:
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
