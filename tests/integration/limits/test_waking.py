"""Consumers that wait elsewhere hear at once when a group is resumed, unheld or configured, or a slot is freed."""

import threading
import time
from collections.abc import Callable

import pytest
from groups.steps import ack, create_group, must_pop, push_some

from databases import Connection
from penstock import Client

from .steps import configure, hold, push_keys, unhold

SOON = 10.0


def paused(connection: Connection) -> Callable[[], object]:
    configure(connection, '{"paused": true}')
    push_some(connection, 1)
    return lambda: connection.execute("SELECT penstock.pause_group('q', 'g', false)")


def held(connection: Connection) -> Callable[[], object]:
    hold(connection, 1000, probing=True)
    push_some(connection, 1)
    return lambda: unhold(connection)


def paused_by_setting(connection: Connection) -> Callable[[], object]:
    configure(connection, '{"paused": true}')
    push_some(connection, 1)
    return lambda: configure(connection, '{"paused": null}')


def at_the_limit_of_a_key(connection: Connection) -> Callable[[], object]:
    configure(connection, '{"concurrency_limit": 1, "concurrency_by": "key"}')
    push_keys(connection, "p", "a")
    push_keys(connection, "second", "a")
    holder = must_pop(connection)
    return lambda: ack(connection, holder)


def at_the_limit_of_the_group(connection: Connection) -> Callable[[], object]:
    configure(connection, '{"concurrency_limit": 1, "concurrency_by": "group"}')
    push_keys(connection, "p", "a")
    push_keys(connection, "second", "a")
    holder = must_pop(connection)
    return lambda: ack(connection, holder)


@pytest.mark.parametrize(
    "arrange",
    [paused, held, paused_by_setting, at_the_limit_of_a_key, at_the_limit_of_the_group],
    ids=lambda f: f.__name__,
)
def test_who_waits_is_told(dsn: str, sql: Connection, arrange: Callable[[Connection], Callable[[], object]]) -> None:
    create_group(sql)
    let_go = arrange(sql)
    took: list[float] = []
    with Client(dsn, notify=True) as client:

        def wait() -> None:
            batch = client.pop("q", "g", wait=SOON)
            if batch is not None:
                took.append(time.monotonic())
                batch.ack()

        waiting = threading.Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + SOON
        # It has asked in vain for so long that it only checks now and then, and it listens.
        while not (client.stats()["has_pending_misses"] >= 3 and client._wakes._listening()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = client.stats()["hints_received"]
        let_go()
        waiting.join(SOON)
        assert client.stats()["hints_received"] > before
        assert len(took) == 1


def test_a_rate_wakes_those_who_wait_when_the_time_has_come(dsn: str, sql: Connection) -> None:
    """By the clock of the server: twenty messages, ten at once and then one every 20 ms."""
    create_group(sql, rate_limit=50, rate_burst=10)
    push_some(sql, 20)
    came: list[float] = []
    began = time.monotonic()
    with Client(dsn) as client:
        for batch in client.consume("q", "g", idle_timeout=SOON):
            with batch:
                came += [time.monotonic()] * len(batch)
            if len(came) == 20:
                break
    assert len(came) == 20
    assert 0.2 <= came[-1] - began < SOON
