"""Windows for the conformance suite: one Valkey, one dispatcher, and groups that want a window."""

import atexit
from typing import Any

import msgspec

from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.operation import Operation
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.database import Database
from penstock.settings import Settings, resolve
from penstock.valkey import find
from penstock.warm.async_transport import AsyncWarmTransport
from penstock.warm.links import AsyncLink, Link
from penstock.warm.transport import WarmTransport
from windows import RunningDispatcher, ValkeyServer

_server: ValkeyServer | None = None
_running: RunningDispatcher | None = None


def begin(dsn: str) -> None:
    """Empty Valkey; start it and a dispatcher where this is the first test."""
    global _server, _running
    if _server is None:
        _server = ValkeyServer()
        atexit.register(_server.close)
    _server.client().flushall()
    if _running is None:
        _running = RunningDispatcher(dsn, _server.url)


def transport(settings: Settings) -> WarmTransport:
    """Return a transport with windows."""
    return _Warm(Database(settings), Link(_address(settings)))


def async_transport(settings: Settings) -> AsyncWarmTransport:
    """Do the same for an asynchronous client."""
    return _AsyncWarm(AsyncDatabase(settings), AsyncLink(_address(settings)))


class _Warm(WarmTransport):
    def run(self, operation: Operation[Any], *arguments: Any, **options: Any) -> Any:
        return super().run(_with_window(operation), *arguments, **options)


class _AsyncWarm(AsyncWarmTransport):
    async def run(self, operation: Operation[Any], *arguments: Any, **options: Any) -> Any:
        return await super().run(_with_window(operation), *arguments, **options)


def _with_window(operation: Operation[Any]) -> Operation[Any]:
    if isinstance(operation, CreateGroup) and "warm" not in operation.config:
        return msgspec.structs.replace(operation, config={**operation.config, "warm": True})
    return operation


def _address(settings: Settings) -> Any:
    assert _server is not None
    return find(resolve({"url": settings.url, "valkey_url": _server.url}))
