"""Connections to Valkey for the warm tier, in both kinds. They call functions, load the library where it is missing,
and raise `PenstockError`s: `Refused` for what a function refuses, by its code, and `Unavailable` for the rest.

After a failure a link says so once and is not tried again for a moment: callers go on without Valkey at no cost.

A call has a connection of its own for as long as it takes, and closes no other: valkey-py's pool asks the system before
each command whether its connection is still good, which takes a third of the time of a call.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import forks
from penstock.errors import PenstockError, ValkeyUnavailable
from penstock.valkey.address import Address
from penstock.valkey.connecting import connect_async, connect_running, connect_running_async, failures, load_driver
from penstock.warm.library import Library, library

if TYPE_CHECKING:
    import valkey
    import valkey.asyncio
    from valkey.asyncio.connection import AbstractConnection as AsyncConnection
    from valkey.connection import AbstractConnection as Connection

log = logging.getLogger("penstock.warm")

GONE = "WARMGONE"
HALTED = "WARMHALT"
STALE = "WARMSTALE"
LATE = "WARMLATE"
FULL = "WARMFULL"
MOVED = "WARMMOVED"
OUT_OF_MEMORY = "OOM"
_CODES = (GONE, HALTED, STALE, LATE, FULL, MOVED, "WARMBAD", OUT_OF_MEMORY)
_PAUSE = 1.0
# The limit of a call in seconds: takes that wait for longer than that are better served by PostgreSQL. That of a
# dispatcher is longer, because it would lose its window.
_CALL_TIMEOUT = 1.0
_DISPATCHER_TIMEOUT = 5.0
_BLOCKING_TIMEOUT = 10.0
# Whoever tries whether a Valkey that has failed can be used again waits so long for an answer.
_PROBE_TIMEOUT = 0.5
# A connection that was not used for so many seconds may have been closed by whatever lies between, and is opened anew.
_FRESH = 5.0


class Refused(PenstockError):
    """A function of the warm tier has refused a call; nothing was changed."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _State:
    """Whether Valkey can be used, as far as is known."""

    def __init__(self, address: Address, functions: Library | None) -> None:
        self.address = address
        self.functions = functions or library()
        self._failed_at = float("-inf")
        self._said = False

    @property
    def usable(self) -> bool:
        """Whether it is worth a try."""
        return time.monotonic() >= self._failed_at + _PAUSE

    @property
    def has_failed(self) -> bool:
        """Whether the last call failed, and nobody has got an answer since."""
        return self._said

    @cached_property
    def response_error(self) -> type[Exception]:
        """What the driver raises when a command is refused; imported only where it is used."""
        load_driver()
        from valkey.exceptions import ResponseError

        return ResponseError

    @cached_property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a call may raise."""
        load_driver()
        from valkey.exceptions import ValkeyError

        return ValkeyError, OSError, PenstockError

    def worked(self) -> None:
        """Take note of an answer."""
        if self._said:
            self._said = False
            log.warning("%s can be used again", self.address.shown)

    def not_running(self) -> ValkeyUnavailable:
        """Return the error for an embedded Valkey that nobody has started."""
        self._failed_at = time.monotonic()
        return ValkeyUnavailable(f"{self.address.shown} does not run")

    def refusal(self, error: Exception) -> Refused | None:
        """Return what a function has refused, if it was one of ours that did."""
        from valkey.exceptions import OutOfMemoryError

        if isinstance(error, OutOfMemoryError):
            return Refused(OUT_OF_MEMORY, f"the memory of {self.address.shown} is full: {error}")
        code, _, text = str(error).partition(" ")
        return Refused(code, text) if code in _CODES else None

    def failed(self, error: Exception) -> PenstockError:
        """Take note that Valkey cannot be used, and return the error that says so."""
        ours = _translated(self.address, error)
        self._failed_at = time.monotonic()
        if not self._said:
            self._said = True
            log.warning("%s Until it can be used, PostgreSQL serves alone", ours)
        return ours


def _translated(address: Address, error: Exception) -> PenstockError:
    """Return our error for one of the driver."""
    try:
        with failures(address):
            raise error
    except PenstockError as ours:
        return ours
    except Exception as other:
        return ValkeyUnavailable(f"{address.shown} has refused a call: {other}")


class _AsyncIdle(NamedTuple):
    """A connection that nobody uses, and since when."""

    connection: "AsyncConnection"
    since: float


class _Idle(NamedTuple):
    """The same for threads."""

    connection: "Connection"
    since: float


class AsyncLink:
    """The connections of an asynchronous client, or of a dispatcher, which starts an embedded Valkey (`starting`)."""

    def __init__(self, address: Address, functions: Library | None = None, *, starting: bool = False) -> None:
        self._state = _State(address, functions)
        self._starting = starting
        self._limit = _DISPATCHER_TIMEOUT if starting else _CALL_TIMEOUT
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process."""
        self._client: valkey.asyncio.Valkey | None = None
        self._idle: list[_AsyncIdle] = []
        # Those for commands that block.
        self._patient: list[_AsyncIdle] = []

    @property
    def usable(self) -> bool:
        """Whether Valkey is worth a try."""
        return self._state.usable

    @property
    def address(self) -> Address:
        """Where Valkey is."""
        return self._state.address

    async def call(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Call a function of the library."""
        return await self._run(self._idle, "FCALL", self._state.functions.function(name), len(keys), *keys, *arguments)

    async def run(self, *command: Any) -> Any:
        """Run a command, and return the reply as it came."""
        return await self._run(self._idle, *command)

    async def wait(self, *command: Any) -> Any:
        """Run a command that blocks, for a few seconds at most."""
        return await self._run(self._patient, *command)

    async def _run(self, idle: list[_AsyncIdle], *command: Any) -> Any:
        state = self._state
        connection: AsyncConnection | None = None
        try:
            # One limit for all: those of the driver cost a task for each command.
            async with asyncio.timeout(_BLOCKING_TIMEOUT if idle is self._patient else self._limit):
                connection = await self._take(idle)
                await connection.send_command(*command)
                answer = await connection.read_response()
        except state.response_error as error:
            refused = state.refusal(error)
            if refused is not None and connection is not None:
                await self._keep(idle, connection)
                raise refused from None
            await self._give_up(connection)
            raise state.failed(error) from error
        except state.errors as error:
            await self._give_up(connection)
            raise state.failed(error) from error
        except BaseException:
            # Its reply is still to come.
            if connection is not None:
                await connection.disconnect(nowait=True)
            raise
        await self._keep(idle, connection)
        state.worked()
        return answer

    async def _keep(self, idle: list[_AsyncIdle], connection: "AsyncConnection") -> None:
        """Keep a connection for the next call, unless all were closed meanwhile."""
        if self._client is None:
            await connection.disconnect(nowait=True)
        else:
            idle.append(_AsyncIdle(connection, time.monotonic()))

    async def _take(self, idle: list[_AsyncIdle]) -> "AsyncConnection":
        if idle:
            connection, since = idle.pop()
            if time.monotonic() > since + _FRESH:
                await connection.disconnect(nowait=True)
            return connection
        client = self._client
        if client is None:
            client = await self._open()
            if self._client is None:
                self._client = client
            else:
                # Another task was faster.
                await client.aclose()
                client = self._client or client
        opened: AsyncConnection = client.connection_pool.make_connection()
        opened.socket_timeout = None
        return opened

    async def _give_up(self, connection: "AsyncConnection | None") -> None:
        """Close a connection that failed, and those that nobody uses; the next call looks for Valkey anew."""
        if connection is not None:
            with suppress(Exception):
                await connection.disconnect(nowait=True)
        await self.close()

    async def close(self) -> None:
        """Close the connections that nobody uses; the next call opens new ones."""
        client, self._client = self._client, None
        for idle in (self._idle, self._patient):
            while idle:
                with suppress(Exception):
                    await idle.pop().connection.disconnect(nowait=True)
        if client is not None:
            with suppress(OSError):
                await client.aclose()

    async def _open(self) -> "valkey.asyncio.Valkey":
        state = self._state
        if self._starting:
            client = await connect_async(state.address, call_timeout=self._limit)
        else:
            if state.has_failed:
                probe = await connect_running_async(state.address, call_timeout=_PROBE_TIMEOUT)
                if probe is not None:
                    try:
                        await probe.ping()
                    finally:
                        await probe.aclose()
            found = await connect_running_async(state.address, call_timeout=self._limit)
            if found is None:
                raise state.not_running()
            client = found
        # Not with REPLACE, which would empty the memory of a library that somebody else has just loaded.
        listing = "FUNCTION LIST", "LIBRARYNAME", state.functions.prefix
        try:
            if not await client.execute_command(*listing):
                try:
                    await client.execute_command("FUNCTION LOAD", state.functions.code)
                except state.response_error:
                    if not await client.execute_command(*listing):
                        raise
        except BaseException:
            await client.aclose()
            raise
        return client


class Link:
    """The connections of a synchronous client."""

    def __init__(self, address: Address, functions: Library | None = None) -> None:
        self._state = _State(address, functions)
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process."""
        self._client: valkey.Valkey | None = None
        self._idle: list[_Idle] = []

    @property
    def usable(self) -> bool:
        """Whether Valkey is worth a try."""
        return self._state.usable

    @property
    def address(self) -> Address:
        """Where Valkey is."""
        return self._state.address

    def call(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Call a function of the library."""
        return self.run("FCALL", self._state.functions.function(name), len(keys), *keys, *arguments)

    def run(self, *command: Any) -> Any:
        """Run a command, and return the reply as it came."""
        state = self._state
        connection: Connection | None = None
        try:
            connection = self._take()
            connection.send_command(*command)
            answer = connection.read_response()
        except state.response_error as error:
            refused = state.refusal(error)
            if refused is not None and connection is not None:
                self._keep(connection)
                raise refused from None
            self._give_up(connection)
            raise state.failed(error) from error
        except state.errors as error:
            self._give_up(connection)
            raise state.failed(error) from error
        except BaseException:
            # Its reply is still to come.
            if connection is not None:
                connection.disconnect()
            raise
        self._keep(connection)
        state.worked()
        return answer

    def _keep(self, connection: "Connection") -> None:
        """Keep a connection for the next call, unless another thread has closed all meanwhile."""
        self._idle.append(_Idle(connection, time.monotonic()))
        if self._client is None:
            self.close()

    def _take(self) -> "Connection":
        try:
            connection, since = self._idle.pop()
        except IndexError:
            client = self._client
            if client is None:
                client = self._open()
                if self._client is None:
                    self._client = client
                else:
                    # Another thread was faster.
                    client.close()
            opened: Connection = client.connection_pool.make_connection()
            return opened
        if time.monotonic() > since + _FRESH:
            connection.disconnect()
        return connection

    def _give_up(self, connection: "Connection | None") -> None:
        """Close a connection that failed, and those that nobody uses; the next call looks for Valkey anew."""
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses; the next call opens new ones."""
        client, self._client = self._client, None
        with suppress(IndexError):
            while True:
                with suppress(OSError):
                    self._idle.pop().connection.disconnect()
        if client is not None:
            with suppress(OSError):
                client.close()

    def _open(self) -> "valkey.Valkey":
        state = self._state
        if state.has_failed:
            probe = connect_running(state.address, call_timeout=_PROBE_TIMEOUT)
            if probe is not None:
                try:
                    probe.ping()
                finally:
                    probe.close()
        client = connect_running(state.address, call_timeout=_CALL_TIMEOUT)
        if client is None:
            raise state.not_running()
        listing = "FUNCTION LIST", "LIBRARYNAME", state.functions.prefix
        try:
            if not client.execute_command(*listing):
                try:
                    client.execute_command("FUNCTION LOAD", state.functions.code)
                except state.response_error:
                    if not client.execute_command(*listing):
                        raise
        except BaseException:
            client.close()
            raise
        return client
