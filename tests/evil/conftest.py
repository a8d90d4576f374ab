"""A penstock for evil input, and both clients to give it through."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from conformance.conftest import InALoop
from penstock import Client

from .ways import Penstock


@pytest.fixture
def penstock(client: Client, sql: psycopg.Connection[Any]) -> Penstock:
    """A penstock with a queue whose messages die at the first failure."""
    client.create("q", max_attempts=1, backoff_initial=0, dedupe_window=3600)
    # Without a breaker: hundreds of failures are what some tests are about.
    client.create_group("q", "out", breaker_errors=0)
    client.push("q", b"first", partition="p")
    return Penstock(client, sql)


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest, penstock: Penstock, dsn: str) -> Iterator[Any]:
    """Each of the clients, with the calls of the synchronous one."""
    if request.param == "sync":
        yield penstock.client
        return
    client = InALoop(dsn)
    yield client
    client.close()
