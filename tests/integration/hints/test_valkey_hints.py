"""Hints through Valkey: they wake consumers of other processes, and go by NOTIFY while Valkey is away."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from databases import Connection
from penstock import AsyncClient, Client
from penstock.postgres.statements.pushing import CHANNEL
from threads import hint_threads
from valkeys import SOON, ValkeyServer, free_port, valkey_server

# Pushes a message to q for each line that it reads, and says which way the hint has gone.
PUSHER = """
import sys
from penstock import Client
with Client(sys.argv[1], valkey_url=sys.argv[2]) as client:
    for line in sys.stdin:
        sent = client.stats()["hints_sent"]
        client.push("q", line)
        while client.stats()["hints_sent"] == sent:
            pass
        print("sent", flush=True)
"""


@pytest.fixture
def url(server: ValkeyServer) -> str:
    return server.url(":s3cr3t")


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    """A server that may be killed."""
    with valkey_server() as server:
        yield server


@pytest.fixture
def notices(dsn: str) -> Iterator[Callable[[], list[str]]]:
    """Returns the queues of all hints that have come by NOTIFY."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("LISTEN {}").format(SQL(CHANNEL)))

        def heard() -> list[str]:
            payloads = [notice.payload for notice in connection.notifies(timeout=0.1)]
            return [queue for payload in payloads for queue in json.loads(payload)["queues"]]

        yield heard


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listen(client: Client) -> Any:
    """Let a client wait for something, and return its hints once they arrive."""
    client.pop("q", "g", wait=0.01, auto_ack=True)
    found = hints_of(client)
    until(lambda: found.listening)
    return found


def hints_of(client: Client) -> Any:
    """Return the hints of a client, without those of windows."""
    found: Any = client._wakes._hints
    return found._hints


def heard(client: Client, count: int) -> bool:
    return client.stats()["hints_received"] >= count


def is_up(hints_of_client: Any) -> bool:
    return bool(hints_of_client._exchanges._valkey._up)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message.split(":")[0] for record in caplog.records if record.name == "penstock.hints"]


def test_a_push_wakes_a_consumer_of_another_process_without_a_notify(
    dsn: str, url: str, notices: Callable[[], list[str]]
) -> None:
    with Client(dsn, valkey_url=url) as client:
        listen(client)
        with subprocess.Popen(
            [sys.executable, "-c", PUSHER, dsn, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as pusher:
            assert pusher.stdin
            assert pusher.stdout
            for n in range(1, 4):
                pusher.stdin.write(f"{n}\n")
                pusher.stdin.flush()
                assert pusher.stdout.readline() == "sent\n"
                until(partial(heard, client, n))
                assert client.pop("q", "g", wait=SOON, auto_ack=True) is not None
            pusher.stdin.close()
    assert notices() == []


def test_a_process_that_pushes_and_ends_has_told_others(dsn: str, url: str, server: ValkeyServer) -> None:
    with server.client() as stranger, stranger.pubsub(ignore_subscribe_messages=True) as others:
        others.psubscribe("penstock:*")
        with Client(dsn, valkey_url=url) as client:
            client.push("q", 1)
        until(lambda: others.get_message(timeout=0.1))


def test_a_sender_needs_no_connection_for_notify(dsn: str, url: str) -> None:
    with Client(dsn, valkey_url=url) as client:
        client.push("q", 1)
        until(lambda: client.stats()["hints_sent"])
        ways = hints_of(client)
        assert (is_up(ways), ways._exchanges._notify._link) == (True, None)


def test_what_the_database_itself_says_still_arrives(dsn: str, url: str, sql: Connection) -> None:
    with Client(dsn, valkey_url=url) as client:
        until(lambda: listen(client)._exchanges._notify.listening)
        sql.execute("SELECT penstock.hint_queue('q')")
        until(lambda: client.stats()["hints_received"])


def test_databases_that_share_a_valkey_do_not_hear_each_other(dsn: str, penstock_dsn: str, url: str) -> None:
    with Client(dsn, valkey_url=url) as one, Client(penstock_dsn, valkey_url=url) as other:
        listen(one)
        listen(other)
        other.push("q", 1)
        until(lambda: other.stats()["hints_sent"])
        one.push("q", 1)
        until(lambda: one.stats()["hints_sent"])
        assert (one.stats()["hints_received"], other.stats()["hints_received"]) == (0, 0)


def test_no_payload_that_somebody_publishes_ends_the_waking(dsn: str, url: str, server: ValkeyServer) -> None:
    with Client(dsn, valkey_url=url) as client, server.client() as stranger:
        channel = listen(client)._exchanges._valkey._channel
        for payload in ("", "null", "not json", '{"sender": 1}', b"\xff", json.dumps({"sender": "x", "queues": ["q"]})):
            stranger.publish(channel, payload)
        until(lambda: client.stats()["hints_received"] == 1)


def test_while_valkey_is_away_hints_go_by_notify_and_then_come_back(
    dsn: str, own_server: ValkeyServer, notices: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.hints")
    url = own_server.url()
    with Client(dsn, valkey_url=url) as client:
        ways = listen(client)
        own_server.kill()
        until(lambda: not is_up(ways))
        client.push("away", 1)
        until(lambda: "away" in notices())
        assert said(caplog) == ["hints go by NOTIFY and polling until Valkey is back"]
        own_server.start()
        until(lambda: ways.listening)
        client.push("back", 1)
        until(lambda: client.stats()["hints_sent"] == 2)
        assert notices() == []
        assert caplog.records[-1].message == f"hints go through {url.removesuffix('/0')} again"
        assert len(said(caplog)) == 2


def test_a_hint_that_valkey_does_not_take_goes_by_notify(
    dsn: str, own_server: ValkeyServer, notices: Callable[[], list[str]]
) -> None:
    with Client(dsn, valkey_url=own_server.url()) as client:
        client.push("first", 1)
        until(lambda: client.stats()["hints_sent"])
        own_server.kill()
        client.push("second", 1)
        until(lambda: "second" in notices())


@pytest.mark.parametrize("how", ["is not there", "is silent", "refuses the login"])
def test_one_that_cannot_be_used_costs_nobody_anything(
    how: str, dsn: str, notices: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, valkey_server(requirepass="another") as closed:
        ports = {"is not there": free_port(), "is silent": silent.getsockname()[1], "refuses the login": closed.port}
        port = ports[how]
        with Client(dsn, valkey_url=f"valkey://:s3cr3t@127.0.0.1:{port}") as client:
            began = time.monotonic()
            client.push("q", 1)
            assert client.pop("q", "g", wait=SOON, auto_ack=True) is not None
            assert time.monotonic() - began < SOON / 2
            until(lambda: "q" in notices())
            until(lambda: said(caplog))
        assert len(said(caplog)) == 1
        assert "s3cr3t" not in caplog.text


def test_behind_a_pooler_hints_come_through_valkey(dsn: str, url: str) -> None:
    with Client(dsn, valkey_url=url) as client:
        database: Any = client._transport
        database = database._transport
        client.push("q", 1)
        database.server.pooled = True
        assert client.notify
        assert listen(client).listening
    with Client(dsn, valkey_url="none") as client:
        other: Any = client._transport
        client.push("q", 1)
        other.server.pooled = True
        assert not client.notify


async def test_tasks_are_woken_too_and_no_thread_is_left(dsn: str, url: str, sql: Connection) -> None:
    before = hint_threads()
    async with AsyncClient(dsn, valkey_url=url) as waiting, AsyncClient(dsn, valkey_url=url) as pushing:
        taken = asyncio.create_task(waiting.pop("q", "g", wait=SOON))
        await pushing.push("q", 1)
        assert await taken is not None
    until(lambda: hint_threads() <= before)
