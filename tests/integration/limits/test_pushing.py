"""Pushes to a queue that is paused or over its rate are refused, with the time to try again, and nothing is stored."""

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from databases import Connection, Connections
from penstock import AsyncClient, Client, InvalidInput, Message, QueuePaused, RateLimited

from .steps import Clock, one

WAYS: dict[str, Callable[[Client, int], object]] = {
    "one": lambda client, count: client.push("q", list(range(count)), partition="p"),
    "several": lambda client, count: client.push_many("q", [(str(number), number) for number in range(count)]),
    "delayed": lambda client, count: client.push("q", list(range(count)), partition="p", delay=3600),
    "keys": lambda client, count: client.push("q", [Message(number, key="k") for number in range(count)]),
    "transaction": lambda client, count: _in_transaction(client, count),
}


def _in_transaction(client: Client, count: int) -> None:
    with client.transaction() as tx:
        tx.push("q", list(range(count)), partition="p")


def stored(connection: Connection) -> int:
    """Count the messages of all queues, delayed ones too."""
    return int(
        one(
            connection,
            "SELECT coalesce((SELECT sum(count) FROM penstock.segments), 0)"
            " + coalesce((SELECT sum(count) FROM penstock.scheduled), 0)",
        )
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_paused_queue_takes_no_push_until_it_is_resumed(client: Client, sql: Connection, way: str) -> None:
    client.push("q", 1)
    assert client.pause_queue("q") is True
    assert client.pause_queue("q") is False
    with pytest.raises(QueuePaused, match=r'pushes to queue "q" are paused\. "penstock resume q" lets them go on'):
        WAYS[way](client, 2)
    client.push("other", 1)
    assert stored(sql) == 2
    with client.pop("q", "g") as batch:  # type: ignore[union-attr]
        assert len(batch) == 1
    assert client.resume_queue("q") is True
    assert client.resume_queue("q") is False
    WAYS[way](client, 2)
    assert stored(sql) == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_queue_takes_a_burst_and_then_its_rate(client: Client, sql: Connection, clock: Clock, way: str) -> None:
    client.create("q", push_rate_limit=2, push_rate_period=10, push_rate_burst=3)
    push = WAYS[way]
    push(client, 3)
    with pytest.raises(
        RateLimited, match=r"takes 2 messages in 10 seconds, and has had them\. Push it again in"
    ) as caught:
        push(client, 1)
    assert caught.value.retry_after == 5
    with pytest.raises(RateLimited) as caught:
        push(client, 3)
    assert caught.value.retry_after == 15
    assert stored(sql) == 3
    clock.set(5)
    push(client, 1)
    with pytest.raises(RateLimited):
        push(client, 1)
    clock.set(100)
    push(client, 3)
    assert stored(sql) == 7


def test_more_than_a_queue_ever_takes_at_once_is_refused_for_good(
    client: Client, sql: Connection, clock: Clock
) -> None:
    client.create("q", push_rate_limit=2)
    with pytest.raises(
        InvalidInput, match=r"a push of 3 messages is more than queue .q. ever takes at once, which is 2"
    ):
        client.push("q", [1, 2, 3])
    assert stored(sql) == 0


def test_a_clock_that_goes_back_allows_one_push_more_at_most_and_stops_nobody(client: Client, clock: Clock) -> None:
    client.create("q", push_rate_limit=1, push_rate_period=10)
    clock.set(1_000_000)
    client.push("q", 1)
    clock.set(0)
    client.push("q", 1)
    for second in (0, 5, 9.9):
        clock.set(second)
        with pytest.raises(RateLimited):
            client.push("q", 1)
    clock.set(10)
    client.push("q", 1)


def test_a_push_that_is_repeated_is_answered_and_counts_once(sql: Connection, clock: Clock) -> None:
    sql.execute("SELECT penstock.create_queue('q', '{\"push_rate_limit\": 1}')")
    push = (
        "SELECT first_offset FROM penstock.push_segment('q', 'p', 1, 'x', '\\x01000000',"
        " producer => '00000000-0000-0000-0000-000000000001', sequence => 1)"
    )
    assert [one(sql, push), one(sql, push)] == [0, 0]
    sql.execute("SELECT penstock.pause_queue('q')")
    assert one(sql, push) == 0


def test_what_was_delayed_before_a_pause_comes_when_it_is_due(client: Client, sql: Connection) -> None:
    client.push("q", 1, delay=3600)
    client.pause_queue("q")
    sql.execute("UPDATE penstock.scheduled SET due_at = clock_timestamp()")
    sql.execute("SELECT penstock.sweep()")
    assert one(sql, "SELECT count FROM penstock.segments") == 1


def test_pushes_of_many_connections_at_once_do_not_exceed_the_rate(
    client: Client, sql: Connection, clock: Clock, connections: Connections
) -> None:
    client.create("q", push_rate_limit=20, push_rate_period=1000)
    taken: list[int] = []
    refused: set[str | None] = set()

    def push(connection: Connection, partition: str) -> None:
        for _ in range(10):
            try:
                connection.execute("SELECT penstock.push('q', ARRAY['x']::bytea[], %s)", (partition,))
                taken.append(1)
            except psycopg.errors.DatabaseError as error:
                refused.add(error.sqlstate)

    threads = [
        threading.Thread(target=push, args=(connections.open(autocommit=True), str(number))) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), stored(sql), refused) == (20, 20, {"55PS3"})


def test_of_pushes_that_are_sent_together_those_are_refused_that_are_too_many(
    dsn: str, sql: Connection, clock: Clock
) -> None:
    async def push() -> list[object]:
        async with AsyncClient(dsn) as client:
            await client.create("q", push_rate_limit=7, push_rate_period=1000)
            pushes = (client.push("q", number, partition=str(number % 3)) for number in range(20))
            return await asyncio.gather(*pushes, return_exceptions=True)

    outcomes = asyncio.run(push())
    refused = [outcome for outcome in outcomes if isinstance(outcome, RateLimited)]
    assert (len(refused), stored(sql)) == (13, 7)
    assert all(0 < each.retry_after <= 1000 for each in refused)


def test_the_time_to_try_again_is_by_the_clock_of_the_server(client: Client) -> None:
    client.create("q", push_rate_limit=1, push_rate_period=1000)
    client.push("q", 1)
    with pytest.raises(RateLimited) as caught:
        client.push("q", 2)
    assert 0 < caught.value.retry_after <= 1000


def test_an_error_keeps_the_time_to_try_again_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RateLimited("too much", 1.5)))
    assert (str(error), error.retry_after) == ("too much", 1.5)


def test_queues_without_limits_ask_nobody(client: Client, sql: Connection) -> None:
    client.create("q", push_rate_limit=5)
    assert one(sql, "SELECT push_gated FROM penstock.queues") is True
    assert client.configure("q", push_rate_limit=None)["push_rate_limit"] is None
    assert one(sql, "SELECT push_gated FROM penstock.queues") is False
    client.push("q", [1] * 10)
    client.delete("q")
    assert one(sql, "SELECT count(*) FROM penstock.push_rates") == 0


@pytest.mark.parametrize("name", ["paused", "conflate", "rate_limit", "concurrency_by"])
def test_a_setting_of_groups_is_refused_for_a_queue(client: Client, name: str) -> None:
    settings: dict[str, Any] = {name: 1}
    with pytest.raises(InvalidInput, match=f"setting {name} is one of groups: set it with configure_group"):
        client.configure("q", **settings)
    with pytest.raises(InvalidInput, match=r"unknown setting .push_paused. of a group"):
        client.create_group("q", "g", push_paused=True)
