"""A gateway that asks who calls, and keys of every kind. All tests of a file share the gateway: it takes a while."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from databases import Connection, empty
from gateways import RunningGateway, gateway
from penstock import Client
from penstock.gateway.access.settings import Access


@pytest.fixture(scope="module")
def owner(shared_dsn: str, cleaner: Connection) -> Iterator[Client]:
    """A client of the database, with an empty penstock that has two queues."""
    empty(cleaner)
    with Client(shared_dsn) as client:
        for queue in ("orders", "other"):
            client.create(queue)
            client.create_group(queue, "g")
            client.push(queue, [1, 2, 3], partition="p")
        yield client


@pytest.fixture(scope="module")
def http(shared_dsn: str, owner: Client) -> Iterator[RunningGateway]:
    """A gateway that takes API keys."""
    with gateway(shared_dsn, access=Access(keys=True)) as running:
        yield running


Headers = dict[str, str]


@pytest.fixture(scope="module")
def key(owner: Client) -> Callable[..., Headers]:
    """Makes a key with scopes, and returns what to send."""
    made = 0

    def make(*scopes: str, **options: Any) -> Headers:
        nonlocal made
        made += 1
        return {"Authorization": f"Bearer {owner.create_api_key(f'key {made}', scopes, **options).key}"}

    return make
