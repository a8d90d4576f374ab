"""A client for tests of calls that share a round trip."""

from collections.abc import AsyncIterator

import pytest

from penstock import AsyncClient


@pytest.fixture
async def many(dsn: str) -> AsyncIterator[AsyncClient]:
    """A client that many tasks use at once."""
    async with AsyncClient(dsn) as client:
        yield client
