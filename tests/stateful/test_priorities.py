"""However many levels there are and whatever is pushed: higher ones come first, and none starves."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Client

# So many pops for so many levels: the rarest of four gets 14 of a thousand, and none at all once in a million runs.
POPS = {2: 400, 3: 400, 4: 1000}
LEVELS = st.lists(st.integers(-32768, 32767), min_size=2, max_size=4, unique=True)


@settings(max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(levels=LEVELS)
@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_no_level_starves(client: Client, mode: str, levels: list[int]) -> None:
    queue = f"{mode} {levels}"
    client.create_group(queue, "g", mode=mode)
    pops = POPS[len(levels)]
    for level in levels:
        client.create(queue, partition=str(level), priority=level)
        client.push(queue, [b"x"] * pops, partition=str(level))
    served: Counter[str] = Counter()
    for _ in range(pops):
        batch = client.pop(queue, "g", max_messages=1, auto_ack=True)
        assert batch is not None
        served[batch.partition] += 1
    assert all(served[str(level)] > 0 for level in levels), served
    assert served.most_common(1)[0][0] == str(max(levels)), served
