"""Consumers over HTTP are served from windows, too; any gateway settles what another one has handed out."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gateways import RunningGateway, gateway
from penstock import Client
from penstock.errors import LeaseLost
from windows import wait_for

MODES = pytest.mark.parametrize("mode", ["shared", "ordered"])


@pytest.fixture
def two(dsn: str, valkey_url: str) -> Iterator[tuple[RunningGateway, RunningGateway]]:
    """Two gateways of one database."""
    with gateway(dsn, valkey_url=valkey_url) as first, gateway(dsn, valkey_url=valkey_url) as second:
        yield first, second


@MODES
def test_messages_of_a_window_are_handled_through_any_gateway(
    api: Client, loaded: Callable[..., int], two: tuple[RunningGateway, RunningGateway], mode: str
) -> None:
    api.create_group("orders", "ship", mode=mode, warm=True)
    for partition in "ab":
        api.push("orders", list(range(20)), partition=partition)
    loaded("orders", "ship", 40)
    first, second = two
    seen: dict[str, list[int]] = {"a": [], "b": []}

    while sum(map(len, seen.values())) < 40:
        popped = first.post("/queues/orders/groups/ship/pop?max_messages=3&max_partitions=2")
        for claim in popped["claims"]:
            seen[claim["partition"]] += [message["value"] for message in claim["messages"]]
            assert second.post("/acks", {"acks": [{"lease": claim["lease"]}]})["results"] == ["done"]

    assert seen == {"a": list(range(20)), "b": list(range(20))}
    wait_for(lambda: api.lag("orders", "ship") == 0)


def test_what_fails_through_a_gateway_is_retried_and_its_neighbours_come_again(
    api: Client, loaded: Callable[..., int], two: tuple[RunningGateway, RunningGateway]
) -> None:
    api.create_group("orders", "ship", mode="shared", warm=True)
    api.push("orders", list(range(4)), partition="a")
    loaded("orders", "ship", 4)
    first, second = two
    claim = first.post("/queues/orders/groups/ship/pop?max_messages=4")["claims"][0]

    second.post("/nacks", {"lease": claim["lease"], "failed_offset": claim["start"], "error": "no", "delay": 0.2})

    seen = []
    with Client(first.url) as client:
        for batch in client.consume("orders", "ship", idle_timeout=2.0):
            with batch:
                seen += [(message.json(), message.attempt) for message in batch]
    assert sorted(seen) == [(0, 2), (1, 1), (2, 1), (3, 1)]


def test_whoever_waits_at_a_gateway_is_woken_by_what_is_pushed(
    api: Client, two: tuple[RunningGateway, RunningGateway]
) -> None:
    api.create_group("orders", "ship", mode="shared", warm=True)
    wait_for(lambda: api.windows() and api.windows()[0].live)
    found: list[tuple[float, int]] = []

    def wait() -> None:
        with Client(two[0].url) as client:
            batch = client.pop("orders", "ship", wait=30)
            assert batch is not None
            found.append((time.monotonic(), batch.messages[0].json()))
            batch.ack()

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: b'operation="Pop' in two[0].ask("GET", "//metrics").body)
    pushed = time.monotonic()
    api.push("orders", 7)
    waiting.join(30)

    assert [value for _, value in found] == [7]
    assert found[0][0] - pushed < 5.0


def test_a_seek_and_a_pause_through_a_gateway_count_at_once(
    api: Client, loaded: Callable[..., int], two: tuple[RunningGateway, RunningGateway]
) -> None:
    api.create_group("orders", "ship", mode="shared", warm=True)
    api.push("orders", list(range(4)), partition="a")
    loaded("orders", "ship", 4)
    with Client(two[0].url) as client:
        held = client.pop("orders", "ship", max_messages=2)
        assert held is not None
        client.seek("orders", "ship", to="earliest")
        with pytest.raises(LeaseLost):
            held.ack()
        client.pause_group("orders", "ship")
        assert client.pop("orders", "ship") is None
        assert api.pop("orders", "ship") is None
        client.resume_group("orders", "ship")
        again = client.pop("orders", "ship", max_messages=4, wait=10)
        assert again is not None
        assert [message.json() for message in again] == [0, 1, 2, 3]


@pytest.mark.parametrize("warm", [True, False])
@MODES
def test_what_another_gateway_gave_back_is_lost_to_the_one_that_had_it(
    api: Client, loaded: Callable[..., int], two: tuple[RunningGateway, RunningGateway], mode: str, warm: bool
) -> None:
    api.create_group("orders", "ship", mode=mode, warm=warm)
    api.push("orders", list(range(6)), partition="a")
    if warm:
        loaded("orders", "ship", 6)
    first, second = two
    pop = "/queues/orders/groups/ship/pop?max_messages=2"
    lease = first.post(pop)["claims"][0]["lease"]

    assert second.post("/releases", {"leases": [lease]})["results"] == ["done"]
    other = second.post(pop)["claims"][0]

    assert mode == "shared" or other["messages"][0]["value"] == 0
    assert first.post("/acks", {"acks": [{"lease": lease}]})["results"] == ["lost"]
    assert first.post("/renewals", {"leases": [lease]})["lease_until"] == [None]
    assert second.post("/acks", {"acks": [{"lease": other["lease"]}]})["results"] == ["done"]
    wait_for(lambda: api.lag("orders", "ship") == 4)
