"""A process of `penstock bench workers`, controlled by lines of JSON: it pushes jobs, or runs a worker."""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from penstock.bench.consume.worker import serve
from penstock.bench.jobs.contenders import CONTENDERS

_BATCH = 1000
_GRACE = 20.0
_WARM_UP = 2.0


class Worker:
    """What this process has under way, in an event loop of its own."""

    def __init__(self) -> None:
        # What the others log of a stop that we cause says nothing.
        logging.disable(logging.CRITICAL)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._stack = AsyncExitStack()
        self._count = 0
        self._latencies: list[int] = []

    def prepare(self, way: str, url: str) -> None:
        """Make what the first job needs."""
        self._wait(CONTENDERS[way].prepare(url))

    def fill(self, way: str, url: str, count: int) -> None:
        """Push so many jobs, in batches."""
        self._wait(self._fill(way, url, count))

    def start(self, way: str, url: str) -> None:
        """Start a worker."""
        self._count = 0
        self._latencies = []
        self._wait(self._stack.enter_async_context(CONTENDERS[way].working(url, self._started)))

    def warm(self) -> None:
        """Wait until the worker has handled some jobs, but not until others have handled all of them."""
        until = time.monotonic() + _WARM_UP
        while self._count < _BATCH // 10 and time.monotonic() < until:
            time.sleep(0.01)

    def left(self, way: str, url: str) -> int:
        """Return how many jobs are left, so that nobody measures an empty queue."""
        return int(asyncio.run_coroutine_threadsafe(CONTENDERS[way].left(url), self._loop).result())

    def count(self, seconds: float) -> float:
        """Return how many jobs a second it starts, for so many seconds."""
        before, begun = self._count, time.perf_counter()
        time.sleep(seconds)
        return (self._count - before) / (time.perf_counter() - begun)

    def latencies(self, count: int) -> list[float]:
        """Return how many milliseconds each job took from the call that pushed it to its start."""
        until = time.monotonic() + _GRACE
        while len(self._latencies) < count and time.monotonic() < until:
            time.sleep(0.01)
        return [each / 1e6 for each in self._latencies]

    def stop(self) -> None:
        """Stop the worker."""
        self._wait(self._stack.aclose())
        self._stack = AsyncExitStack()

    def send(self, way: str, url: str, rate: float, count: int) -> None:
        """Push so many jobs, at so many a second; each is the time at which it was pushed."""
        self._wait(self._send(way, url, rate, count))

    def close(self) -> None:
        """Stop what is under way."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _started(self, payload: bytes) -> None:
        self._count += 1
        if payload[:1] != b"x":
            self._latencies.append(time.monotonic_ns() - int(payload))

    async def _fill(self, way: str, url: str, count: int) -> None:
        async with CONTENDERS[way].pushing(url) as push:
            for _ in range(count // _BATCH):
                await push([b"x" * 100] * _BATCH)

    async def _send(self, way: str, url: str, rate: float, count: int) -> None:
        async with CONTENDERS[way].pushing(url) as push:
            begun = time.monotonic()
            for number in range(count):
                await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
                await push([str(time.monotonic_ns()).encode()])

    def _wait(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


if __name__ == "__main__":
    serve(Worker())
