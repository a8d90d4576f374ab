"""One Valkey for the tests of this folder; those that break it start their own."""

from collections.abc import Iterator

import pytest

from valkeys import ValkeyServer, valkey_server


@pytest.fixture(scope="session")
def server() -> Iterator[ValkeyServer]:
    with valkey_server(requirepass="s3cr3t") as server:
        yield server
