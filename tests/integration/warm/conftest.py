"""One Valkey for all tests of the warm tier, emptied before each."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock import Client
from penstock.warm.kept import Terms
from penstock.warm.transport import WarmTransport
from windows import TERMS, ValkeyServer, dispatching, wait_for


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A Valkey for the whole run."""
    server = ValkeyServer()
    yield server
    server.close()


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """The address of an empty Valkey."""
    if valkey_server.process is None:
        valkey_server.start()
    valkey_server.client().flushall()
    return valkey_server.url


@pytest.fixture
def terms() -> Terms:
    """How long things last; tests that wait for the end of something say otherwise."""
    return TERMS


@pytest.fixture
def dispatcher(dsn: str, valkey_url: str, terms: Terms) -> Iterator[Any]:
    """A dispatcher for the time of the test."""
    with dispatching(dsn, valkey_url, terms) as running:
        yield running


@pytest.fixture
def api(dsn: str, valkey_url: str, dispatcher: Any) -> Iterator[Client]:
    """A client that takes from windows."""
    with Client(dsn, valkey_url=valkey_url) as client:
        yield client


@pytest.fixture
def loaded(api: Client) -> Callable[..., int]:
    """Wait until a window has so many items; returns how many it has."""

    def wait(queue: str, group: str, items: int = 1) -> int:
        def there() -> int:
            windows = cast(WarmTransport, api._transport).windows
            group_id = windows.find(queue, group)
            found = 0 if group_id is None else windows.fill(group_id).items
            return found if found >= items else 0

        return int(wait_for(there))

    return wait
