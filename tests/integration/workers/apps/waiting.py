"""Handlers that wait until they are told to go on: by a row of the table `told`, which a test writes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator

import psycopg

from penstock import Client, Item, action, resource


@resource
def calls() -> Iterator[Client]:
    with Client() as client:
        yield client


@resource
async def told() -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(os.environ["PENSTOCK_URL"], autocommit=True) as connection:
        yield connection


async def go(told: psycopg.AsyncConnection, what: str) -> None:
    while True:
        async with told.cursor() as cursor:
            await cursor.execute("SELECT 1 FROM public.told WHERE what = %s", (what,))
            if await cursor.fetchone():
                return
        await asyncio.sleep(0.01)


def said(calls: Client, item: Item) -> None:
    calls.push("said", {"value": item.json(), "attempt": item.attempt, "pid": os.getpid()})


@action(queue="work", to="results", flow="waiting", settings={"lease_time": 2}, max_attempts=5, backoff=0.01)
async def wait(item: Item, calls: Client, told: psycopg.AsyncConnection) -> object:
    said(calls, item)
    item.progress(40, "begun")
    await go(told, item.json())
    return item.json()


@action(queue="shared-work", to="shared-results", flow="waiting", mode="shared", settings={"lease_time": 2})
async def share(item: Item, calls: Client, told: psycopg.AsyncConnection) -> object:
    said(calls, item)
    await go(told, item.json())
    return item.json()


@action(queue="child-work", to="child-results", flow="waiting", run_in="process", settings={"lease_time": 2})
def child(item: Item, calls: Client) -> object:
    said(calls, item)
    with psycopg.connect(os.environ["PENSTOCK_URL"], autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM public.told WHERE what = %s", (item.json(),)).fetchone():
            time.sleep(0.01)
    return item.json()
