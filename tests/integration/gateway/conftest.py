"""A gateway of the empty penstock."""

from collections.abc import Iterator

import pytest

from gateways import RunningGateway, gateway


@pytest.fixture
def http(dsn: str) -> Iterator[RunningGateway]:
    """A gateway that serves the same database."""
    with gateway(dsn) as running:
        yield running
