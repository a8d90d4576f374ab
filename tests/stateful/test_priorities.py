"""However many levels there are and whatever is pushed: higher ones come first, and none starves."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Client

# Where one pop in eight goes to a lower level, and every 32nd to the rarest one, so many miss it once in 100,000 runs.
POPS = 400
LEVELS = st.lists(st.integers(-32768, 32767), min_size=2, max_size=4, unique=True)


@settings(max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(levels=LEVELS)
@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_no_level_starves(client: Client, mode: str, levels: list[int]) -> None:
    queue = f"{mode} {levels}"
    client.create_group(queue, "g", mode=mode)
    for level in levels:
        client.create(queue, partition=str(level), priority=level)
        client.push(queue, [b"x"] * POPS, partition=str(level))
    served: Counter[str] = Counter()
    for _ in range(POPS):
        batch = client.pop(queue, "g", max_messages=1, auto_ack=True)
        assert batch is not None
        served[batch.partition] += 1
    assert all(served[str(level)] > 0 for level in levels), served
    assert served.most_common(1)[0][0] == str(max(levels)), served
