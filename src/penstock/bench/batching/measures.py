"""Each figure of `penstock bench batching`: with batching and without, in turns, with the same client."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Any

import msgspec
import psycopg

from penstock import AsyncClient

_MESSAGE = b'{"order": 1234567, "customer": "c-1029", "amount": 19.99, "items": ["a", "b", "c"]}'

# After so many seconds in vain, the pauses between looks are at their longest.
_REST = 3.0


class Pair(msgspec.Struct, frozen=True):
    """The same with batching and without, in rounds that took turns."""

    batched: list[float]
    unbatched: list[float]

    @property
    def ratio(self) -> float:
        """With batching over without: the median of the rounds."""
        return median(ours / theirs for ours, theirs in zip(self.batched, self.unbatched, strict=True))


class Check(msgspec.Struct, frozen=True):
    """Microseconds of the server for one has_pending_messages, and for one pop that finds nothing."""

    check: list[float]
    empty_pop: list[float]

    @property
    def ratio(self) -> float:
        """The check over the pop."""
        return median(ours / theirs for ours, theirs in zip(self.check, self.empty_pop, strict=True))


class Idle(msgspec.Struct, frozen=True):
    """What those cost who wait and get nothing: all calls of the database, sweeps included."""

    waiters: int
    seconds: float
    calls: int

    @property
    def per_second(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


class Calls:
    """Counts the calls of the database that a client makes."""

    def __init__(self) -> None:
        self.made = 0


@contextmanager
def counting(client: AsyncClient) -> Iterator[Calls]:
    """Count calls while the body runs."""
    database: Any = client._batching._transport
    execute, calls = database.execute, Calls()

    async def counted(connection: psycopg.AsyncConnection[Any], call: Any) -> list[Any]:
        calls.made += 1
        rows: list[Any] = await execute(connection, call)
        return rows

    database.execute = counted
    try:
        yield calls
    finally:
        database.execute = execute


def switch(client: AsyncClient, on: bool) -> None:
    """Turn all batching on or off."""
    client.push_batching = client.pop_batching = on


async def round_trips(client: AsyncClient, pops: int, rounds: int) -> Pair:
    """Count the calls of the database for so many pops at once; each gets the message of a partition of its own."""
    await client.create_group("trips", "g")
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for on in (True, False):
            switch(client, True)
            await client.push_many("trips", [(f"p{n}", _MESSAGE) for n in range(pops)])
            switch(client, on)
            with counting(client) as calls:
                batches = await asyncio.gather(*(client.pop("trips", "g") for _ in range(pops)))
            found[on].append(calls.made)
            await asyncio.gather(*(batch.ack() for batch in batches if batch is not None))
            switch(client, True)
            while await client.pop("trips", "g", auto_ack=True) is not None:
                pass
    return Pair(found[True], found[False])


async def push_rate(client: AsyncClient, tasks: int, partitions: int, seconds: float, rounds: int) -> Pair:
    """Push messages one at a time by many tasks; messages a second."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for on in (True, False):
            switch(client, on)
            pushed = 0
            began = time.perf_counter()
            end = began + seconds

            async def push(number: int, end: float = end) -> int:
                done = 0
                while time.perf_counter() < end:
                    await client.push("rate", _MESSAGE, partition=f"p{number % partitions}")
                    done += 1
                return done

            pushed = sum(await asyncio.gather(*(push(number) for number in range(tasks))))
            found[on].append(pushed / (time.perf_counter() - began))
    switch(client, True)
    return Pair(found[True], found[False])


async def lone_push(client: AsyncClient, pushes: int, rounds: int) -> Pair:
    """Push messages one after the other by one task, in turns; the median time of each round in microseconds."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(pushes):
            for on in (True, False):
                switch(client, on)
                began = time.perf_counter()
                await client.push("lone", _MESSAGE, partition="p")
                times[on].append((time.perf_counter() - began) * 1e6)
        for on in times:
            found[on].append(median(times[on]))
    switch(client, True)
    return Pair(found[True], found[False])


def check_cost(url: str, calls: int, rounds: int) -> Check:
    """Time both functions on the server, where the network and the driver are no part of it."""
    found: dict[str, list[float]] = {"check": [], "pop": []}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT penstock.create_group('check', 'g')")
        statements = {
            "check": b"PERFORM penstock.has_pending_messages('check', NULL, 'g')",
            "pop": b"PERFORM 1 FROM penstock.pop_claims('check', 'g')",
        }
        for _ in range(rounds):
            for name, statement in statements.items():
                loop = b"DO $$ BEGIN FOR i IN 1 .. %d LOOP %s; END LOOP; END $$" % (calls, statement)
                began = time.perf_counter()
                connection.execute(loop)
                found[name].append((time.perf_counter() - began) / calls * 1e6)
    return Check(found["check"], found["pop"])


async def idle(client: AsyncClient, waiters: int, seconds: float) -> Idle:
    """Let many wait for what never comes, and count calls once they have come to rest."""
    async with _waiting(client, waiters):
        await asyncio.sleep(_REST)
        with counting(client) as calls:
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            return Idle(waiters, time.perf_counter() - began, calls.made)


@asynccontextmanager
async def _waiting(client: AsyncClient, waiters: int) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(client.pop("idle", "g", wait=3600)) for _ in range(waiters)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
