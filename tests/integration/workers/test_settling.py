"""What a worker settles takes effect once, also if a call is refused or its reply is lost in the middle of a claim."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Action, AsyncClient, InvalidInput, Item, Unavailable, Worker, action
from penstock.broker.items import SettledItems
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.items import SettleItems
from penstock.consuming.outages import Outage
from penstock.workers.held import HeldClaim
from penstock.workers.settling import Settling
from penstock.workers.source import Source
from penstock.workers.verdicts import DONE, Produced, Verdict


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as client:
        yield client


async def outputs(client: AsyncClient, queue: str) -> Counter[Any]:
    """Return how often each value is in a queue."""
    read = [await client.read(queue, partition.name) for partition in await client.partitions(queue)]
    return Counter(message.json() for messages in read for message in messages)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_outputs_to_a_queue_that_takes_few_at_a_time_are_pushed_once(client: AsyncClient, mode: str) -> None:
    calls: Counter[str] = Counter()

    @action(queue="many", to="few", mode=mode)
    async def give(item: Item) -> object:
        calls[item.json()] += 1
        return item.json()

    await client.create_group("many", give.group, mode=mode)
    # Less than is handled at once, so that a call which settles all of that is refused, and pieces of it have to wait.
    await client.create("few", push_rate_limit=5, push_rate_period=0.2)
    for partition in "abcd":
        await client.push("many", [f"{partition}{number}" for number in range(10)], partition=partition)
    await Worker([give], client, drain=True, echo=lambda line: None).run(handle_signals=False)
    assert set(calls.values()) == set((await outputs(client, "few")).values()) == {1}
    assert len(calls) == len(await outputs(client, "few")) == 40
    assert await client.dead_letters("many") == []


class Forgetful(Source):
    """Takes effect, and then seems to be gone, as often as it is told."""

    losses = 0

    async def settle_items(self, operation: SettleItems, outage: Outage) -> SettledItems:
        reply = await super().settle_items(operation, outage)
        if self.losses:
            self.losses -= 1
            raise Unavailable("the connection was lost")
        return reply


def ignore(*given: object) -> None:
    """Do nothing."""


def produce(held: HeldClaim, index: int, value: bytes, **more: Any) -> None:
    """Take note that an item is done, and gave something."""
    made = Produced(value, None, more.pop("headers", {}), "p")
    held.take(index, index + 1, Verdict(DONE, outputs=(made,), **more), 0.0, lambda attempt: 0.0)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_what_was_settled_without_a_reply_is_not_settled_again_with_more(client: AsyncClient, mode: str) -> None:
    sink = action(queue="in", to="out", name="sink", mode=mode)(ignore_item)
    source, held = await claimed(client, sink, 4)
    settling, outage = Settling(source, sink, ignore, ignore, ignore), Outage("settle")
    produce(held, 0, b"0")
    produce(held, 1, b"1")
    source.losses = 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            await settling.settle([held], None, outage)
        # Known only after the call, so it belongs to the next one.
        produce(held, held.messages[-1].offset - held.left + 1, str(4 - held.left).encode())
    assert held.complete
    await settling.settle([held], None, outage)
    assert not held.over
    await settling.settle([held], None, outage)
    assert (held.over, held.lost) == (True, False)
    assert await outputs(client, "out") == {0: 1, 1: 1, 2: 1, 3: 1}
    assert await client.lag("in", sink.group) == 0


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_the_item_that_a_call_is_refused_for_is_found_and_fails_alone(client: AsyncClient, mode: str) -> None:
    sink = action(queue="in", to="out", name="sink", mode=mode, max_attempts=1)(ignore_item)
    source, held = await claimed(client, sink, 8)
    ended: list[HeldClaim] = []
    settling = Settling(source, sink, ignore, ignore, ended.append)
    for index in range(8):
        # As if it had passed all other checks.
        produce(held, index, str(index).encode(), headers={"bad": 1} if index == 5 else {})
    assert await settling.settle([held], None, Outage("settle")) is None
    (letter,) = await client.dead_letters("in", sink.group)
    assert (letter.offset, letter.reason) == (5, "InvalidInput")
    given = await outputs(client, "out")
    if mode == "shared":
        assert (given, ended) == ({number: 1 for number in range(8) if number != 5}, [])
    else:
        # What lies behind it comes again.
        assert (given, ended) == (dict.fromkeys(range(5), 1), [held])
        assert await client.lag("in", sink.group) == 2
    assert held.finished


async def test_what_is_no_item_s_fault_is_raised(client: AsyncClient) -> None:
    sink = action(queue="in", to="out", name="sink")(ignore_item)
    source, held = await claimed(client, sink, 2)
    held.take(0, 2, None, 0.0, lambda attempt: 0.0)
    held.claim.lease_id = None
    with pytest.raises(InvalidInput, match="lease_id"):
        await Settling(source, sink, ignore, ignore, ignore).settle([held], None, Outage("settle"))


async def test_an_action_that_cannot_go_on_gives_back_what_it_holds(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def defect(*given: object) -> SettledItems:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Source, "settle_items", defect)
    sink = action(queue="in", name="sink", concurrency=1)(ignore_item)
    await client.create_group("in", sink.group)
    await client.push_many("in", [(f"p{number}", number) for number in range(50)])
    worker = Worker([sink], client, echo=lambda line: None)
    with pytest.raises(RuntimeError, match="a defect"):
        await worker.run(handle_signals=False)
    (group,) = await client.groups("in")
    assert (group.claimed, group.lag) == (0, 50)


def ignore_item(item: Item) -> None:
    """Do nothing."""


async def claimed(client: AsyncClient, sink: Action, count: int) -> tuple[Forgetful, HeldClaim]:
    """Push so many messages, and claim them."""
    await client.create_group("in", sink.group, mode=sink.mode, **sink.settings)
    await client.push("in", list(range(count)), partition="p")
    source = Forgetful(client)
    (claim,) = await source.pop(Pop("in", sink.group, max_messages=count), Outage("pop"))
    assert len(claim.messages) == count
    return source, HeldClaim(claim)
