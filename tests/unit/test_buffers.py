"""How much memory the embedded server takes for its cache."""

import pytest

from penstock.embedded.postgres import buffers


@pytest.mark.parametrize(("gigabytes", "size"), [(1, "128MB"), (4, "256MB"), (8, "512MB"), (64, "512MB")])
def test_the_cache_is_a_sixteenth_of_the_memory_within_bounds(gigabytes: int, size: str) -> None:
    assert buffers(gigabytes << 30) == size
