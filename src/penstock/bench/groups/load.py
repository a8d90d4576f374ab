"""Push, pop and ack at full load, by processes of their own: free, and beside a transaction that somebody holds.

Both at the same time, in two databases of one server: a transaction keeps back only what its own database could clean
up, and whatever else the machine is busy with hits both alike. Then they change places.
"""

import multiprocessing as mp
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from statistics import mean
from typing import Any
from uuid import uuid4

import msgspec
import psycopg

from penstock import Client

Say = Callable[[str], None]
_STEP = 5.0
_MESSAGE = b'{"order": 1234567, "customer": "c-1029", "amount": 19.99, "items": ["a", "b", "c"]}'


class Load(msgspec.Struct, frozen=True):
    """Messages a second that were pushed, popped and acknowledged, in steps of a run."""

    partitions: int
    free: list[float]
    held: list[float]

    @property
    def ratio(self) -> float:
        """The rate beside an open transaction over the free one."""
        return mean(self.held) / mean(self.free)


def measure(urls: tuple[str, str], partitions: int, seconds: float, say: Say) -> Load:
    """Load two databases at once, one of them beside an open transaction, and again the other way round."""
    load = Load(partitions, [], [])
    with ThreadPoolExecutor(2) as both:
        for held, free in (urls, urls[::-1]):
            say(f"{partitions:,} partitions, free, and at the same time beside an open transaction")
            with open_transaction(held):
                rates = both.map(run, (held, free), (partitions,) * 2, (seconds,) * 2)
                load.held.extend(next(rates))
                load.free.extend(next(rates))
    return load


def run(url: str, partitions: int, seconds: float, producers: int = 2, consumers: int = 3) -> list[float]:
    """Return the messages a second that were acknowledged, in steps of a fresh queue's run."""
    queue = f"load{uuid4().hex[:8]}"
    processes = mp.get_context("spawn")
    acked = processes.Value("q", 0)
    ending = processes.Event()
    workers = [
        *(processes.Process(target=_produce, args=(url, queue, partitions, ending, n)) for n in range(producers)),
        *(processes.Process(target=_consume, args=(url, queue, ending, acked)) for _ in range(consumers)),
    ]
    for worker in workers:
        worker.start()
    try:
        return list(_rates(acked, seconds))
    finally:
        ending.set()
        for worker in workers:
            worker.join(30)
            worker.kill()


@contextmanager
def open_transaction(url: str) -> Iterator[None]:
    """Hold a transaction with a snapshot open, as somebody's report does."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM penstock.queues")
        yield


def _rates(acked: "Synchronized[int]", seconds: float) -> Iterator[float]:
    while acked.value == 0:
        time.sleep(0.05)
    step = min(_STEP, seconds)
    for _ in range(max(1, round(seconds / step))):
        before, began = acked.value, time.perf_counter()
        time.sleep(step)
        yield (acked.value - before) / (time.perf_counter() - began)


def _produce(url: str, queue: str, partitions: int, ending: Any, number: int) -> None:
    """Push ten messages at a time, to one partition after the other, and never far ahead of the consumers."""
    with Client(url) as client:
        messages = [_MESSAGE] * 10
        turn = number
        while not ending.is_set():
            for _ in range(200):
                client.push(queue, messages, partition=f"p{turn % partitions}")
                turn += 1


def _consume(url: str, queue: str, ending: Any, acked: "Synchronized[int]") -> None:
    with Client(url) as client:
        while not ending.is_set():
            batch = client.pop(queue, "g", max_messages=100, wait=0.2)
            if batch is not None:
                batch.ack()
                with acked.get_lock():
                    acked.value += len(batch)
