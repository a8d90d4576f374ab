"""Connections to Valkey: a call has one of its own, and closing the others disturbs nobody."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import ValkeyUnavailable
from penstock.settings import resolve
from penstock.valkey import find
from penstock.valkey.address import Address
from penstock.warm.links import AsyncLink, Link
from windows import ValkeyServer, wait_for


def address_of(dsn: str, url: str) -> Address:
    address = find(resolve({"url": dsn, "valkey_url": url}))
    assert address is not None
    return address


def link_to(dsn: str, url: str) -> AsyncLink:
    return AsyncLink(address_of(dsn, url))


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    yield server
    server.close()


def waits(observer: Any) -> bool:
    return any(client["cmd"] == "blpop" for client in observer.client_list())


def is_alone(observer: Any) -> bool:
    return len(observer.client_list()) == 1


def test_a_call_that_returns_after_its_link_was_closed_leaves_no_connection(dsn: str, server: ValkeyServer) -> None:
    link = Link(address_of(dsn, server.url))
    with server.client() as observer, ThreadPoolExecutor(1) as thread:
        under_way = thread.submit(link.run, "BLPOP", "list", 5)
        wait_for(lambda: waits(observer))
        link.close()
        observer.rpush("list", "value")
        assert under_way.result() == [b"list", b"value"]
        wait_for(lambda: is_alone(observer))


def test_nor_does_one_of_a_task(dsn: str, server: ValkeyServer) -> None:
    async def work(observer: Any) -> None:
        link = link_to(dsn, server.url)
        under_way = asyncio.create_task(link.run("BLPOP", "list", 5))
        await asyncio.to_thread(wait_for, lambda: waits(observer))
        await link.close()
        observer.rpush("list", "value")
        assert await under_way == [b"list", b"value"]
        await asyncio.to_thread(wait_for, lambda: is_alone(observer))

    with server.client() as observer:
        asyncio.run(work(observer))


def test_calls_go_on_while_another_task_closes_the_link(dsn: str, valkey_url: str) -> None:
    async def work() -> list[object]:
        link = link_to(dsn, valkey_url)

        async def ask() -> list[object]:
            return [await link.run("PING") for _ in range(50)]

        async def close() -> None:
            for _ in range(50):
                await link.close()
                await asyncio.sleep(0)

        *answers, _ = await asyncio.gather(*(ask() for _ in range(10)), close())
        await link.close()
        return [answer for some in answers for answer in some or []]

    assert asyncio.run(work()) == [b"PONG"] * 500


def test_a_call_fails_with_an_error_of_ours_when_valkey_dies_in_the_middle(dsn: str, server: ValkeyServer) -> None:
    async def work() -> None:
        link = link_to(dsn, server.url)
        await link.run("PING")
        waiting = [asyncio.create_task(link.wait("BLPOP", f"penstock:none:{number}", 5)) for number in range(5)]
        await asyncio.sleep(0.2)
        server.kill()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ValkeyUnavailable] * 5
        with pytest.raises(ValkeyUnavailable):
            await link.run("PING")
        await link.close()

    asyncio.run(work())
