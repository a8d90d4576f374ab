"""Flows beside one another: partitions in parallel, items of one in order, a slow flow beside a fast one."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock import Action, AsyncClient, InvalidInput, Item, Worker, action


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as client:
        yield client


async def drain(client: AsyncClient, *actions: Action, concurrency: int = 10) -> int:
    """Run a worker until nothing is left to do."""
    worker = Worker(actions, client, concurrency=concurrency, drain=True, echo=lambda line: None)
    return await worker.run(handle_signals=False)


class Together:
    """Notes which items are handled at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: defaultdict[str, int] = defaultdict(int)
        self.most: defaultdict[str, int] = defaultdict(int)
        self.all_at_once = 0
        self.order: defaultdict[str, list[int]] = defaultdict(list)

    def begin(self, item: Item) -> None:
        with self._lock:
            self._running[item.partition] += 1
            self.most[item.partition] = max(self.most[item.partition], self._running[item.partition])
            self.all_at_once = max(self.all_at_once, sum(self._running.values()))
            self.order[item.partition].append(item.json())

    def end(self, item: Item) -> None:
        with self._lock:
            self._running[item.partition] -= 1


def handlers(together: Together) -> dict[str, Callable[[Item], Any]]:
    async def in_tasks(item: Item) -> None:
        together.begin(item)
        await asyncio.sleep(0.005)
        together.end(item)

    def in_threads(item: Item) -> None:
        together.begin(item)
        time.sleep(0.005)
        together.end(item)

    return {"tasks": in_tasks, "threads": in_threads}


@pytest.mark.parametrize("kind", ["tasks", "threads"])
async def test_an_ordered_action_handles_a_partition_in_order_and_partitions_in_parallel(
    client: AsyncClient, kind: str
) -> None:
    together = Together()
    ordered = action(queue="q", flow="f", name=kind)(handlers(together)[kind])
    for partition in "abcd":
        await client.push("q", list(range(20)), partition=partition)
    assert await drain(client, ordered) == 80
    assert dict(together.most) == dict.fromkeys("abcd", 1)
    assert dict(together.order) == {partition: list(range(20)) for partition in "abcd"}
    assert together.all_at_once == 4


@pytest.mark.parametrize("kind", ["tasks", "threads"])
async def test_a_shared_action_handles_all_items_in_parallel(client: AsyncClient, kind: str) -> None:
    together = Together()
    shared = action(queue="q", flow="f", name=kind, mode="shared", concurrency=8)(handlers(together)[kind])
    await client.push("q", list(range(80)), partition="p")
    assert await drain(client, shared) == 80
    assert together.most["p"] == 8
    assert sorted(together.order["p"]) == list(range(80))


async def test_a_limit_of_the_group_holds_for_all_workers_together(client: AsyncClient) -> None:
    together = Together()
    limits = {"concurrency_limit": 2, "concurrency_by": "group"}
    limited = action(queue="q", flow="f", name="limited", mode="shared", settings=limits)(handlers(together)["tasks"])
    await client.push("q", list(range(40)), partition="p")
    async with AsyncClient(client.dsn) as other:
        assert sum(await asyncio.gather(drain(client, limited), drain(other, limited))) == 40
    assert together.all_at_once == 2


async def test_a_slow_flow_takes_nothing_from_a_fast_one_with_the_same_action_class(client: AsyncClient) -> None:
    async def handle(item: Item) -> None:
        await asyncio.sleep(item.json())

    async def rate(*flows: str) -> float:
        """Return how many items a second the fast flow handles, alone or beside a slow one."""
        actions = [action(queue=flow, flow=flow, name="handle", mode="shared")(handle) for flow in flows]
        worker = Worker(actions, client, grace=0.01, echo=lambda line: None)
        await client.push("fast", [0.005] * 1000)
        running = asyncio.create_task(worker.run(handle_signals=False))
        begun = time.perf_counter()
        while await client.lag("fast", "fast.handle"):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.005)
        elapsed = time.perf_counter() - begun
        worker.stop()
        await running
        return 1000 / elapsed

    for flow in ("fast", "slow"):
        await client.create_group(flow, f"{flow}.handle", mode="shared")
    await client.push("slow", [0.3] * 2000)
    # In turns: what else the machine does is the same for both.
    turns = [(await rate("fast"), await rate("fast", "slow")) for _ in range(3)]
    assert max(beside / alone for alone, beside in turns) >= 0.9


async def test_slow_handlers_hoard_no_items(client: AsyncClient) -> None:
    begun = asyncio.Event()

    async def handle(item: Item) -> None:
        begun.set()
        await asyncio.sleep(60)

    await client.push("q", list(range(1000)), partition="p")
    slow = action(queue="q", flow="f", name="slow", mode="shared", concurrency=2)(handle)
    worker = Worker([slow], client, grace=0.01, echo=lambda line: None)
    running = asyncio.create_task(worker.run(handle_signals=False))
    await begun.wait()
    (listed,) = await client.actions("f")
    assert listed.warm <= 4
    assert listed.warm + listed.cold == 1000
    worker.stop()
    await running
    assert await client.lag("q", "f.slow") == 1000


async def test_an_action_of_another_mode_than_its_group_is_refused(client: AsyncClient) -> None:
    async def handle(item: Item) -> None: ...

    await client.create_group("q", "f.handle", mode="shared")
    with pytest.raises(InvalidInput, match=r"action f.handle is ordered and its group on q is not"):
        await drain(client, action(queue="q", flow="f")(handle))


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_nothing_more_of_a_claim_is_begun_past_its_lease(client: AsyncClient, mode: str) -> None:
    begun: list[tuple[int, int]] = []

    async def handle(item: Item) -> None:
        begun.append((item.json(), item.attempt))
        if len(begun) == 1:
            # It holds up the event loop, so that its lease is not renewed.
            threading.Event().wait(1.5)

    await client.push("q", [1, 2], partition="p")
    await drain(client, action(queue="q", flow="f", mode=mode, concurrency=1, settings={"lease_time": 1})(handle))

    first_again = begun.index((1, 2))
    assert [value for value, _ in begun[: first_again + 1]] == [1, 1]
    assert sorted(value for value, _ in begun) == [1, 1, 2]


async def test_settings_of_the_code_are_those_of_the_group(client: AsyncClient) -> None:
    async def handle(item: Item) -> None: ...

    for attempts in (3, 7):
        made = action(queue="q", flow="f", max_attempts=attempts, backoff=2, settings={"lease_time": 9})(handle)
        await drain(client, made)
        (group,) = await client.groups("q")
        assert group.config == {"max_attempts": attempts, "backoff_initial": 2.0, "lease_time": 9}


async def test_a_spark_flow_and_actions_cannot_have_one_name(client: AsyncClient) -> None:
    async def handle(item: Item) -> None: ...

    await client._transport.run(_spark_flow("f"))
    with pytest.raises(InvalidInput, match='a Spark flow has the name "f"'):
        await drain(client, action(queue="q", flow="f")(handle))
    await drain(client, action(queue="q", flow="g")(handle))
    with pytest.raises(InvalidInput, match='workers run actions of a flow "g"'):
        await client._transport.run(_spark_flow("g"))
    # One list has both.
    assert [(each.flow, each.action, each.queue) for each in await client.actions()] == [
        ("f", "step", None),
        ("g", "handle", "q"),
    ]


class Heard(logging.Handler):
    """Keeps what is logged, for whoever waits for it in this event loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())


async def test_outputs_wait_while_their_queue_is_paused_and_the_worker_says_so_once(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    monkeypatch.setattr(logging.getLogger("penstock.worker"), "handlers", [heard])

    async def handle(item: Item) -> object:
        return item.json()

    await client.create("out")
    await client.pause_queue("out")
    await client.push("q", [1, 2, 3], partition="p")
    worker = Worker([action(queue="q", to="out", flow="f")(handle)], client, drain=True, echo=lambda line: None)
    running = asyncio.create_task(worker.run(handle_signals=False))
    said = await asyncio.wait_for(heard.lines.get(), 20)
    assert said.startswith('outputs of f.handle wait, and nothing more is taken: pushes to queue "out" are paused')
    assert await client.partitions("out") == []
    await client.resume_queue("out")
    await running
    assert [message.json() for message in await client.read("out", "p")] == [1, 2, 3]
    assert await client.dead_letters("q") == []
    assert heard.lines.empty()


async def test_a_breaker_gives_back_what_is_claimed_ahead_and_probes_with_one_item(client: AsyncClient) -> None:
    broken, calls = True, 0

    async def handle(item: Item) -> object:
        nonlocal calls
        calls += 1
        if broken:
            raise ConnectionError("the other side is down")
        return item.json()

    settings = {"breaker_errors": 3, "breaker_pause": 0.3, "breaker_pause_max": 0.3, "backoff_initial": 0.01}
    failing = action(queue="q", to="out", flow="f", mode="shared", max_attempts=100, settings=settings)(handle)
    await client.push("q", list(range(100)), partition="p")
    worker = Worker([failing], client, concurrency=1, drain=True, echo=lambda line: None)
    running = asyncio.create_task(worker.run(handle_signals=False))
    while not any(breaker.state == "open" for breaker in await client.breakers()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    # Of a hundred items only a few were tried.
    assert calls < 20
    broken = False
    await running
    (out,) = await client.partitions("out")
    assert out.messages == 100


def _spark_flow(name: str) -> Any:
    from penstock.broker.operations.flows import RegisterFlow

    return RegisterFlow(name, "TRANSFORM", ["q"], ["r"], "shape", "file:/c", [("step", "m.step", "p:1")])


async def test_a_flow_that_is_paused_gets_no_items_until_it_is_resumed(client: AsyncClient) -> None:
    came: list[int] = []

    @action(queue="in", flow="paused-flow")
    async def first(item: Item) -> None:
        came.append(item.json())

    @action(queue="other", flow="paused-flow")
    async def second(item: Item) -> None:
        came.append(item.json())

    @action(queue="in", flow="other-flow")
    async def beside(item: Item) -> None:
        pass

    await drain(client, first, beside)
    await client.pause_flow("paused-flow")
    # The group of the second one is created while the flow is paused.
    await drain(client, second)
    for queue in ("in", "other"):
        await client.push(queue, 1)
    groups = {group.name: group for group in [*await client.groups("in"), *await client.groups("other")]}
    assert {name: group.paused for name, group in groups.items()} == {
        "paused-flow.first": True,
        "paused-flow.second": True,
        "other-flow.beside": False,
    }
    assert {flow.name: flow.state for flow in await client.flows()} == {"paused-flow": "paused", "other-flow": "idle"}
    assert await client.pop("in", "paused-flow.first") is None
    assert await client.pop("in", "other-flow.beside") is not None
    # What somebody paused by itself is resumed by itself.
    await client.pause_group("other", "paused-flow.second")
    await client.resume_flow("paused-flow")
    assert {flow.name: flow.state for flow in await client.flows()}["paused-flow"] == "idle"
    await drain(client, first)
    assert (came, await client.pop("other", "paused-flow.second")) == ([1], None)
    await client.resume_group("other", "paused-flow.second")
    await drain(client, second)
    assert came == [1, 1]


async def test_a_paused_flow_that_is_forgotten_leaves_no_group_behind_that_nobody_can_resume(
    client: AsyncClient,
) -> None:
    @action(queue="in", flow="forgotten")
    async def only(item: Item) -> None:
        pass

    await drain(client, only)
    await client.pause_flow("forgotten")
    await client.forget_flow("forgotten")
    await client.push("in", 1)
    assert await client.pop("in", "forgotten.only") is not None


@pytest.mark.parametrize("kind", ["tasks", "threads"])
@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_partition_with_much_work_claimed_ahead_holds_up_no_other(
    client: AsyncClient, kind: str, failed_before: bool
) -> None:
    may_end = threading.Event()
    hangs, other_came = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    slow_from: list[int] = []

    def see(item: Item) -> float:
        """Take note of an item; say for how many seconds it is worked on."""
        if item.partition == "other":
            if failed_before and item.attempt == 1:
                raise ValueError("the first time")
            loop.call_soon_threadsafe(other_came.set)
            return 0
        # Quick until much is claimed ahead; then slow, so that the worker knows that this takes long; then one hangs.
        if not slow_from and len(item.claim.messages) >= 50:
            slow_from.append(item.offset)
        if not slow_from or item.offset < slow_from[0] + 12:
            return 0.12 if slow_from else 0
        loop.call_soon_threadsafe(hangs.set)
        return 30

    async def in_tasks(item: Item) -> None:
        await asyncio.sleep(see(item))  # the last one is cancelled when the worker stops

    def in_threads(item: Item) -> None:
        may_end.wait(see(item))

    handler = {"tasks": in_tasks, "threads": in_threads}[kind]
    action_ = action(queue="q", flow="f", name=kind, concurrency=4, backoff=0.3)(handler)
    for _ in range(10):
        await client.push("q", list(range(5000)), partition="much")
    worker = Worker([action_], client, grace=0, echo=lambda line: None)
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        async with asyncio.timeout(40):
            await hangs.wait()
            await client.push("q", "something", partition="other")
            await other_came.wait()
    finally:
        may_end.set()
        worker.stop()
        await running
