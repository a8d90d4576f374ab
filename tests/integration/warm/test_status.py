"""What `penstock status` says of groups with a window: its claims are nobody's work."""

from collections.abc import Callable

import pytest

from penstock import Client
from penstock.operations.status import status
from windows import TERMS, dispatching, wait_for


def missing(api: Client) -> list[str]:
    return [problem.found for problem in status(api).problems if problem.check == "workers_missing"]


@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_workers_are_missing_although_the_dispatcher_has_claimed_what_waits(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.configure_check("workers_missing", duration=0)
    api.create_group("orders", "work", mode=mode, warm=True)
    api.push("orders", [1, 2, 3])
    loaded("orders", "work", 3)

    assert missing(api) == ["3 messages wait and no consumer is there"]


@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_workers_that_are_busy_with_what_they_took_from_a_window_are_there(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.configure_check("workers_missing", duration=0)
    api.create_group("orders", "work", mode=mode, warm=True)
    api.push("orders", [1, 2, 3])
    loaded("orders", "work", 3)

    for batch in api.consume("orders", "work"):
        with batch:
            assert all(claim.lease_id is not None and claim.lease_id.version == 8 for claim in batch.claims)
            wait_for(lambda: api.facts().consuming)
            assert missing(api) == []
        break


@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_claims_beside_the_window_are_held_by_consumers(dsn: str, api: Client, mode: str) -> None:
    api.configure_check("workers_missing", duration=0)
    api.create_group("orders", "work", mode=mode, warm=True)
    wait_for(lambda: any(window.live for window in api.windows()))
    # From now on PostgreSQL serves it.
    api.configure_group("orders", "work", warm=False)
    api.push("orders", [1, 2, 3])

    with Client(dsn, metrics=False) as worker:
        batch = worker.pop("orders", "work")
        assert batch is not None
        assert missing(api) == []
        batch.ack()


def test_what_is_cold_is_known_although_nobody_consumes(dsn: str, valkey_url: str) -> None:
    with Client(dsn, valkey_url=valkey_url) as client:
        client.create_group("orders", "work", mode="shared", warm=True, in_memory_queue_size=5)
        with dispatching(dsn, valkey_url, TERMS._replace(sample_every=0.2)):
            client.push("orders", list(range(20)))
            wait_for(lambda: {each.tier: each.count for each in client.queued_work()} == {"warm": 5, "cold": 15})
