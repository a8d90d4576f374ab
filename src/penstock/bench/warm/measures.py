"""The measures of `penstock bench warm`, each with what it is compared with in the same run."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import quantiles
from typing import Any, NamedTuple

import psycopg

from penstock.bench.warm.stage import Stage, fill, wait_for
from penstock.client.client import Client

_VALUE = b"x" * 200
_BATCH = 50


class Plan(NamedTuple):
    """How long to measure each case in seconds, how many latencies, and how long the cold mode goes on.

    Then the size of the window: for single items, and for batches.
    """

    seconds: float
    latencies: int
    cold_seconds: float
    single: int
    many: int


FULL = Plan(3.0, 300, 60.0, 20_000, 50_000)
QUICK = Plan(0.5, 30, 3.0, 2000, 10_000)
# The share of a window that is taken: the rate from it is not that of the dispatcher, which is measured apart.
_TAKEN = 0.8


def _push(client: Client, queue: str, count: int, partitions: int) -> None:
    each = count // partitions
    for partition in range(partitions):
        for start in range(0, each, 1000):
            client.push(queue, [_VALUE] * min(1000, each - start), partition=f"p{partition}")


def _rate(step: Callable[[], int], seconds: float, most: float = float("inf")) -> float:
    """Return how many items a second a step handles, over and over, until there is nothing or there were so many."""
    began = time.perf_counter()
    items = 0
    while (passed := time.perf_counter() - began) < seconds and items < most:
        found = step()
        if not found:
            break
        items += found
    return items / passed


@contextmanager
def _consuming(client: Client, queue: str, group: str, **options: Any) -> Iterator[Callable[[], int]]:
    """Make a step of the loop that users write: a batch is acknowledged together with the next take."""
    batches = client.consume(queue, group, defer_acks=True, idle_timeout=1.0, **options)

    def step() -> int:
        batch = next(batches, None)
        if batch is None:
            return 0
        with batch:
            return len(batch)

    with closing(batches):
        yield step


def _bare(client: Any, lists: int, batch: int) -> Callable[[], int]:
    """Return a step that pops from lists and pushes what it popped to another one, as few commands as that takes."""
    names = [f"bare:{number}" for number in range(lists)]

    def step() -> int:
        if lists == 1:
            found = client.lpop(names[0], batch) or []
        else:
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.lpop(name)
            found = [value for value in pipeline.execute() if value is not None]
        if found:
            client.rpush("bare:done", *[value[:16] for value in found])
        return len(found)

    return step


def _fill_bare(client: Any, lists: int, count: int) -> None:
    client.delete("bare:done", *(f"bare:{number}" for number in range(lists)))
    for number in range(lists):
        for _ in range(0, count // lists, 1000):
            client.rpush(f"bare:{number}", *[_VALUE] * min(1000, count // lists))


def rates(stage: Stage, plan: Plan, mode: str, batch: int) -> dict[str, float]:
    """Measure take and ack, one by one or in batches: from the window, from PostgreSQL alone, from bare lists.

    `sustained` is the rate beyond the window, where the dispatcher has to claim, load and report as fast.
    """
    size = plan.single if batch == 1 else plan.many
    partitions = 1 if mode == "shared" else 50
    options = {"max_messages": 1, "max_partitions": batch} if mode == "ordered" else {"max_messages": batch}
    found = {}
    with stage.warm() as warm, stage.cold() as cold, stage.bare() as bare:
        queue = f"rates-{mode}-{batch}"
        loaded = min(size, 500 * partitions) if mode == "ordered" else size
        warm.create_group(queue, "warm", mode=mode, warm=True, in_memory_queue_size=size)
        cold.create_group(queue, "cold", mode=mode)
        _push(warm, queue, 2 * size + int(plan.seconds * (5000 if batch == 1 else 50_000)), partitions)
        fill(warm, queue, "warm", loaded * 9 // 10)
        with _consuming(warm, queue, "warm", **options) as step:
            found["warm"] = _rate(step, 10 * plan.seconds, _TAKEN * loaded)
            _rate(step, 10 * plan.seconds, (1 - _TAKEN) * loaded)
            found["sustained"] = _rate(step, plan.seconds)
        with _consuming(cold, queue, "cold", **options) as step:
            found["postgres"] = _rate(step, plan.seconds)
        lists = 1 if mode == "shared" or batch == 1 else batch
        _fill_bare(bare, lists, min(int(plan.seconds * (20_000 if batch == 1 else 200_000)), 500_000))
        found["lists"] = _rate(_bare(bare, lists, batch), plan.seconds)
        warm.delete(queue)
    return found


def latencies(stage: Stage, plan: Plan) -> dict[str, list[float]]:
    """Measure ms from before a push to the handler at an idle group, and to a bare blocking pop.

    A push waits for the disk, as a bare pop does not: `insert` commits a row before each of them.
    """
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (value bytea)")

        def insert() -> None:
            connection.execute("INSERT INTO bare VALUES (%s)", (_VALUE,))

        return {
            "warm": _pushed_latencies(stage, plan),
            "insert": _bare_latencies(stage, plan, insert),
            "lists": _bare_latencies(stage, plan, lambda: None),
        }


def _bare_latencies(stage: Stage, plan: Plan, before: Callable[[], None]) -> list[float]:
    found: list[float] = []
    with stage.bare() as producer, stage.bare() as consumer:

        def pop() -> None:
            while len(found) < plan.latencies:
                popped = consumer.blpop(["bare:latency"], timeout=5)
                if popped is not None:
                    found.append((time.perf_counter() - float(popped[1])) * 1000)

        popping = threading.Thread(target=pop)
        popping.start()
        for _ in range(plan.latencies):
            time.sleep(0.02)
            began = time.perf_counter()
            before()
            producer.rpush("bare:latency", repr(began))
        popping.join()
    return found


def _pushed_latencies(stage: Stage, plan: Plan) -> list[float]:
    found: list[float] = []
    stop = threading.Event()
    with stage.warm() as producer, stage.warm() as consumer:
        producer.create_group("latency", "warm", mode="shared", warm=True)
        wait_for(lambda: any(each.live for each in producer.windows() if each.queue == "latency"))

        def handle(message: Any) -> None:
            found.append((time.perf_counter() - message.json()) * 1000)

        working = threading.Thread(
            target=consumer.process, args=("latency", handle),
            kwargs={"group": "warm", "stop": stop, "handle_signals": False},
        )  # fmt: skip
        working.start()
        for number in range(plan.latencies):
            time.sleep(0.02)
            producer.push("latency", time.perf_counter(), partition="a")
            wait_for(partial(_longer, found, number))
        stop.set()
        working.join()
    return found


def _longer(found: list[float], number: int) -> bool:
    return len(found) > number


def neighbours(stage: Stage, plan: Plan) -> dict[str, float]:
    """Measure the rate of a group alone, and beside one of the same action class whose handlers are slow."""
    count = int(plan.seconds * 2 * 20_000) + 1000
    with stage.warm() as client, stage.warm() as slow, ExitStack() as working:
        for queue in ("fast", "slow"):
            client.create_group(queue, "same.class", mode="shared", warm=True)
            _push(client, queue, count if queue == "fast" else 20_000, 1)
        fill(client, "fast", "same.class", 4000)
        fill(client, "slow", "same.class", 4000)
        fast = working.enter_context(_consuming(client, "fast", "same.class", max_messages=1))
        alone = _rate(fast, plan.seconds)
        ended = threading.Event()

        def crawl() -> None:
            while not ended.is_set():
                batch = slow.pop("slow", "same.class", max_messages=1, wait=0.5)
                if batch is not None:
                    ended.wait(0.1)
                    batch.ack()

        crawling = threading.Thread(target=crawl)
        crawling.start()
        together = _rate(fast, plan.seconds)
        ended.set()
        crawling.join()
    return {"alone": alone, "beside a slow one": together}


def busy_share(stage: Stage, plan: Plan, workers: int = 4, handling: float = 0.005) -> float:
    """Measure which share of their time workers handle items while more arrives than they can: a cold window."""
    busy = [0.0] * workers
    ended = threading.Event()
    with stage.warm() as client:
        client.create_group("cold", "work", mode="shared", warm=True, in_memory_queue_size=500)
        needed = int(workers * plan.cold_seconds / handling * 1.5)
        _push(client, "cold", needed // 3 + 1000, 1)
        fill(client, "cold", "work", 400)

        def work(number: int) -> None:
            with stage.warm() as own:
                for batch in own.consume("cold", "work", max_messages=10, defer_acks=True, idle_timeout=1.0):
                    with batch:
                        for _ in batch:
                            began = time.perf_counter()
                            time.sleep(handling)
                            busy[number] += time.perf_counter() - began
                    if ended.is_set():
                        break

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        # Arrivals above capacity, all the time.
        while (passed := time.perf_counter() - began) < plan.cold_seconds:
            if client.lag("cold", "work") < needed // 2:
                _push(client, "cold", 2000, 1)
            ended.wait(0.2)
        share = sum(busy) / (workers * passed)
        ended.set()
        for thread in threads:
            thread.join()
    return share


def quantile(found: list[float], share: float) -> float:
    """Return how long that share took at most."""
    return found[0] if len(found) < 2 else quantiles(found, n=100, method="inclusive")[round(share * 100) - 1]


__all__ = ["FULL", "QUICK", "Plan", "busy_share", "latencies", "neighbours", "quantile", "rates"]
