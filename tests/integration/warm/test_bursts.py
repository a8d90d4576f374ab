"""A burst that is larger than the window: the bound holds, the rest waits cold and drains, and little changes state."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import pytest

from penstock import Client, Message
from penstock.warm.transport import WarmTransport
from windows import wait_for

PARTITIONS = 20


def has_lag(api: Client, expected: int) -> bool:
    return api.lag("orders", "work") == expected


@contextmanager
def sampling(api: Client) -> Iterator[list[int]]:
    """Look again and again how many items the window has."""
    ended = threading.Event()
    samples: list[int] = []

    def sample() -> None:
        with Client(api.settings.url, valkey_url=api.settings.valkey_url) as other:
            fills = cast(WarmTransport, other._transport).windows
            group_id = wait_for(lambda: fills.find("orders", "work"))
            while not ended.wait(0.005):
                samples.append(fills.fill(group_id).items)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()


@pytest.mark.parametrize(("count", "size"), [(3_000, 200), (50_000, 5_000)])
def test_a_burst_goes_cold_once_and_drains_in_order(
    api: Client, loaded: Callable[..., int], count: int, size: int
) -> None:
    api.create_group("orders", "work", mode="ordered", warm=True, in_memory_queue_size=size)
    windows = cast(WarmTransport, api._transport).windows
    wait_for(lambda: api.windows()[0].live)
    with sampling(api) as samples:
        # At once: a window that is cold with all that there is so far is not refilled for the rest of its room.
        api.push_many(
            "orders",
            [
                Message(number, partition=f"p{each}")
                for each in range(PARTITIONS)
                for number in range(count // PARTITIONS)
            ],
        )
        loaded("orders", "work", size)
        cold = wait_for(lambda: [each for each in api.windows() if each.state == "cold"])
        handled: list[tuple[str, int]] = []
        while len(handled) < count:
            batch = api.pop("orders", "work", max_messages=50, wait=5)
            assert batch is not None
            handled += [(message.partition, message.json()) for message in batch]
            batch.ack()
            # What was acknowledged is reported in a moment, and never more than that.
            assert api.lag("orders", "work") >= count - len(handled)
            if len(handled) % (count // 10) < len(batch):
                wait_for(partial(has_lag, api, count - len(handled)))
        warm = wait_for(lambda: [each for each in api.windows() if each.state == "warm"])

    assert max(samples) == size
    for partition in range(PARTITIONS):
        assert [number for name, number in handled if name == f"p{partition}"] == list(range(count // PARTITIONS))
    assert (cold[0].transitions, warm[0].transitions) == (1, 2)
    assert windows.fill(warm[0].group_id).items == 0
