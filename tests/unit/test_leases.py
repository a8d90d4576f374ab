"""How long a lease lasts is counted on a clock that nobody sets: the server's time and this machine's may differ."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from penstock import AsyncBatch, Batch, Unavailable
from penstock.broker.claims import Claim
from penstock.consuming import tasks, threads


@pytest.fixture(params=[-3600, 0, 3600], ids=["the server is behind", "both agree", "the server is ahead"])
def claim(request: pytest.FixtureRequest) -> Claim:
    """A claim leased for 30 s by a server whose clock may differ from ours."""
    until = datetime.now(UTC) + timedelta(seconds=request.param + 30)
    return Claim(1, 1, "p", uuid4(), until, 1, 0, 1, 1, 1, False, 30.0)


def answers() -> Iterator[Any]:
    yield Unavailable("an outage")
    while True:
        yield None


def test_a_lease_lasts_as_long_as_the_server_said_whatever_the_clocks_show(claim: Claim) -> None:
    batch = Batch("q", "g", [claim], lambda call: None)
    assert 25 < batch.lease_left <= 30
    claim.lease_until = claim.lease_until + timedelta(seconds=30) if claim.lease_until else None
    assert 55 < batch.lease_left <= 60


def test_a_batch_is_settled_through_an_outage_whatever_the_clocks_show(claim: Claim) -> None:
    found = answers()

    def run(operation: Any) -> list[bool]:
        if (error := next(found)) is not None:
            raise error
        return [True]

    batch = Batch("q", "g", [claim], run)
    batch.settle_through_outages(lambda seconds: False, None)
    batch.ack()
    assert batch.settled


async def test_an_asynchronous_batch_is_settled_through_an_outage_whatever_the_clocks_show(claim: Claim) -> None:
    found = answers()

    async def run(operation: Any) -> list[bool]:
        if (error := next(found)) is not None:
            raise error
        return [True]

    async def sleep(seconds: float) -> bool:
        return False

    batch = AsyncBatch("q", "g", [claim], run)
    batch.settle_through_outages(sleep, None)
    await batch.ack()
    assert batch.settled


async def test_no_batch_is_renewed_before_a_third_of_its_lease_is_over_whatever_the_clocks_show(claim: Claim) -> None:
    renewed = asyncio.Event()

    async def run(call: Any) -> None:
        renewed.set()

    with (
        threads.Renewals().keep(Batch("q", "g", [claim], lambda call: renewed.set()), None),
        tasks.Renewals().keep(AsyncBatch("q", "g", [claim], run), None),
        pytest.raises(TimeoutError),
    ):
        await asyncio.wait_for(renewed.wait(), 0.3)
