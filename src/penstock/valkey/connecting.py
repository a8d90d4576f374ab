"""Opens clients of Valkey, for whatever needs one: with timeouts, without hidden retries, and with checks.

A client that is returned has answered. When a call of it fails with `ValkeyUnavailable`, close it and connect anew: an
embedded Valkey may have to be started, and may have moved.
"""

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock import forks
from penstock.errors import MissingExtra, ValkeyUnavailable, ValkeyUnusable
from penstock.valkey.address import Address, Target

if TYPE_CHECKING:
    import valkey
    import valkey.asyncio

# Of keys, functions and channels; those of others are left alone.
PREFIX = "penstock"
MINIMUM_VERSION = (7, 2)


def connect(address: Address, *, call_timeout: float | None = None, check: bool = True) -> "valkey.Valkey":
    """Return a client of the Valkey at an address, starting an embedded one.

    `call_timeout` is the limit of one call in seconds, that of the settings unless given: whoever blocks in a call
    gives a longer one. `check`: refuse a server that cannot hold a warm window; hints need less.
    """
    return _connect(address, address.target(), call_timeout, check)


def connect_running(address: Address, *, call_timeout: float | None = None) -> "valkey.Valkey | None":
    """Return a client of the Valkey at an address; none where an embedded one does not run: this starts nothing."""
    target = address.running_target(start=False)
    return None if target is None else _connect(address, target, call_timeout, check=False)


def connect_alone(address: Address, *, start: bool, call_timeout: float, check: bool = False) -> "valkey.Valkey":
    """Return a client with one connection, for one thread; this starts no PostgreSQL, and Valkey if asked to."""
    target = address.running_target(start=start)
    if target is None:
        raise ValkeyUnavailable(f"{address.shown} is not running")
    return _connect(address, target, call_timeout, check, alone=True)


async def connect_async(
    address: Address, *, call_timeout: float | None = None, check: bool = True
) -> "valkey.asyncio.Valkey":
    """Do the same as `connect`, for asyncio."""
    # Starting an embedded one waits for files.
    return await _connect_async(address, await asyncio.to_thread(address.target), call_timeout, check)


async def connect_running_async(
    address: Address, *, call_timeout: float | None = None
) -> "valkey.asyncio.Valkey | None":
    """Do the same as `connect_running`, for asyncio."""
    target = await asyncio.to_thread(address.running_target, start=False)
    return None if target is None else await _connect_async(address, target, call_timeout, check=False)


async def _connect_async(
    address: Address, target: Target, call_timeout: float | None, check: bool
) -> "valkey.asyncio.Valkey":
    load_driver()
    import valkey.asyncio
    from valkey.asyncio.retry import Retry
    from valkey.backoff import NoBackoff

    options = _options(address, target, call_timeout)
    client: valkey.asyncio.Valkey = valkey.asyncio.Valkey(**options, retry=Retry(NoBackoff(), 0))
    try:
        with failures(address):
            steps = _questions(address, check)
            question = next(steps)
            while question:
                question = steps.send(await client.execute_command(*question))
    except BaseException:
        await client.aclose()
        raise
    return client


def _connect(
    address: Address, target: Target, call_timeout: float | None, check: bool, alone: bool = False
) -> "valkey.Valkey":
    load_driver()
    import valkey
    from valkey.backoff import NoBackoff
    from valkey.retry import Retry

    options = _options(address, target, call_timeout)
    client = None
    try:
        with failures(address):
            # One that has a single connection opens it at once.
            client = valkey.Valkey(**options, retry=Retry(NoBackoff(), 0), single_connection_client=alone)
            steps = _questions(address, check)
            question = next(steps)
            while question:
                question = steps.send(client.execute_command(*question))
    except BaseException:
        if client is not None:
            client.close()
        raise
    return client


@contextmanager
def failures(address: Address) -> Iterator[None]:
    """Raise errors of penstock for those of valkey-py: what it says never has the password."""
    load_driver()
    from valkey import exceptions

    try:
        yield
    except (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError) as error:
        raise ValkeyUnusable(
            f"{address.shown} refused the login. Check user and password in PENSTOCK_VALKEY_URL. It says: {error}",
            "valkey_login",
        ) from error
    except (exceptions.NoPermissionError, exceptions.AuthorizationError) as error:
        raise ValkeyUnusable(
            f"{address.shown}: the user may not do all that is needed. Let it run all commands on keys and channels "
            f"that begin with {PREFIX}: (ACL SETUSER … ~{PREFIX}:* &{PREFIX}:* +@all). It says: {error}",
            "valkey_permission",
        ) from error
    except exceptions.ReadOnlyError as error:
        raise _replica(address) from error
    except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError) as error:
        raise ValkeyUnavailable(
            f"{address.shown} cannot be reached. Check that it runs, and PENSTOCK_VALKEY_URL: {error}"
        ) from error


def _questions(address: Address, check: bool) -> Generator[tuple[str, ...], Any, None]:
    """Ask a server, command by command, what must hold before it is used; an empty command is the last."""
    if not check:
        yield ("PING",)
    else:
        info = yield ("INFO",)
        _require_usable(address, info)
        if info.get("cluster_enabled"):
            _require_alone(address, (yield ("CLUSTER INFO",)))
        # Commands, keys and channels that the user may not be allowed.
        yield ("FUNCTION STATS",)
        yield ("EXISTS", f"{PREFIX}:")
        yield ("PUBLISH", f"{PREFIX}:", "")
    yield ()


def _require_usable(address: Address, info: Mapping[str, Any]) -> None:
    # Valkey says here with which version of Redis it is compatible.
    version = str(info.get("redis_version") or info.get("valkey_version") or "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < MINIMUM_VERSION:
        raise ValkeyUnusable(
            f"{address.shown} is version {version}; penstock needs Valkey 7.2 or later. Upgrade it.", "valkey_version"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ValkeyUnusable(
            f"{address.shown} evicts keys when its memory is full (maxmemory-policy {policy}), and so would lose what "
            "is handed out. Set maxmemory-policy to noeviction, or use a Valkey of its own.",
            "valkey_policy",
        )
    if info.get("role", "master") != "master":
        raise _replica(address)


def _require_alone(address: Address, cluster: Mapping[str, Any]) -> None:
    size = int(cluster.get("cluster_size", 1))
    if size > 1:
        raise ValkeyUnusable(
            f"{address.shown} is one of {size} primaries of a cluster; penstock needs a server that has all keys. "
            "Use a single server, or a cluster of one.",
            "valkey_cluster",
        )
    if cluster.get("cluster_state") != "ok":
        raise ValkeyUnavailable(f"{address.shown}: its cluster is not ready. Check that it has all slots.")


def _replica(address: Address) -> ValkeyUnusable:
    return ValkeyUnusable(f"{address.shown} is a replica, which takes no writes. Name its primary.", "valkey_replica")


def _options(address: Address, target: Target, call_timeout: float | None) -> dict[str, Any]:
    settings = address.settings
    limit = settings.timeout if call_timeout is None else call_timeout
    return {
        **target.options,
        "socket_timeout": limit,
        "socket_connect_timeout": min(settings.connect_timeout, limit),
        "socket_keepalive": "host" in target.options,
        "client_name": PREFIX,
        # A call whose reply was lost may have been done: only its caller knows whether to repeat it.
        "retry_on_timeout": False,
    }


def load_driver() -> None:
    """Import valkey-py, which takes a moment; to be called before anything of it is imported where it is used."""
    if find_spec("valkey") is None:
        raise MissingExtra("warm", "A client of Valkey")
    # A process that is forked while another thread imports could never import the same itself.
    with forks.opening():
        import valkey.asyncio  # noqa: F401
