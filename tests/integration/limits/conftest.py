"""A clock for limits and holds."""

from collections.abc import Iterator

import pytest

from databases import Connection

from .steps import Clock


@pytest.fixture
def clock(sql: Connection) -> Iterator[Clock]:
    """The time by which limits and holds go; it begins at 0."""
    clock = Clock(sql)
    yield clock
    clock.put_back()
