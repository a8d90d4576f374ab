"""Waiting for messages: cheap while there are none, and over soon when there are some, wherever they come from."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from groups.steps import create_group, pass_time
from log.interleaving import push
from psycopg.sql import SQL

from databases import Connection
from penstock import AsyncBatch, AsyncClient, Client
from penstock.consuming import waiting
from penstock.errors import MessageTooLarge
from penstock.postgres import hints
from penstock.postgres.statements.pushing import CHANNEL
from threads import hint_threads

SOON = 20.0


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again until a condition holds."""
    async with asyncio.timeout(SOON):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def quiet(client: AsyncClient, checks: int = 1) -> None:
    """Wait until those who wait have come to rest."""
    begun = client.stats()["has_pending_checks"]
    # The first checks are made while the pauses still grow.
    await until(lambda: client.stats()["has_pending_checks"] >= begun + checks + 5)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody who waits look again by himself: what arrives then does so because somebody was woken."""
    monkeypatch.setattr(waiting, "_GROWTH", 1e9)
    monkeypatch.setattr(waiting, "_LONGEST", 3600.0)
    monkeypatch.setattr(waiting, "_LONGEST_LATELY", 3600.0)


def missed_since(client: AsyncClient, begun: int) -> bool:
    """Say whether somebody has looked in vain since."""
    return client.stats()["has_pending_misses"] > begun


async def arrives(client: AsyncClient, push_one: Callable[[], Any], rounds: int = 5) -> None:
    """Let somebody wait who has looked in vain, push, and see that it arrives, several times over."""
    for _ in range(rounds):
        begun = client.stats()["has_pending_misses"]
        popping = asyncio.create_task(client.pop("q", "g", wait=3600, auto_ack=True))
        await until(partial(missed_since, client, begun))
        pushed = push_one()
        if asyncio.iscoroutine(pushed):
            await pushed
        async with asyncio.timeout(SOON):
            assert await popping is not None


@pytest.fixture
def commits(sql: Connection) -> Callable[[], int]:
    """Counts the transactions of the database, of all sessions but this one's own."""
    own = 0

    def count() -> int:
        nonlocal own
        own += 2
        sql.execute("SELECT pg_stat_clear_snapshot()")
        ((found,),) = sql.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchall()
        return int(found) - own

    return count


async def test_a_thousand_who_wait_cost_a_few_cheap_queries(many: AsyncClient, commits: Callable[[], int]) -> None:
    waiting = [asyncio.create_task(many.pop("q", "g", wait=60)) for _ in range(700)]
    waiting += [asyncio.create_task(anext(many.consume("q", "g"))) for _ in range(300)]
    await quiet(many)
    before = many.stats()
    for _ in range(3):
        counted, began = commits(), time.monotonic()
        await quiet(many, 8)
        spent, seconds = commits() - counted, time.monotonic() - began
        # An idle session says what it did up to ten seconds later: what is seen late belongs to the time before.
        if spent <= 5 * (seconds + 1):
            break
    assert spent <= 5 * (seconds + 1)
    after = many.stats()
    done = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert set(done) == {"has_pending_checks", "has_pending_misses", "sweeps"}
    await many.push_many("q", [(f"p{n}", n) for n in range(1000)])
    async with asyncio.timeout(SOON):
        got: list[Any] = await asyncio.gather(*waiting)
    assert len({batch.partition for batch in got}) == 1000


async def test_without_the_check_they_pop_and_still_share(many: AsyncClient) -> None:
    await many.create_group("q", "g")
    many.pending_check = False
    waiting = [asyncio.create_task(many.pop("q", "g", wait=60)) for _ in range(100)]
    await until(lambda: many.stats()["pop_batch_count"] >= 15)
    stats = many.stats()
    assert (stats["has_pending_checks"], stats["pop_batch_size"] < 120 + stats["pop_batch_count"]) == (0, True)
    # Switched on again while they wait.
    many.pending_check = True
    await quiet(many)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.usefixtures("seldom")
async def test_a_push_of_the_same_client_wakes(many: AsyncClient) -> None:
    await arrives(many, lambda: many.push("q", 1))


@pytest.mark.usefixtures("seldom")
async def test_a_push_of_another_client_in_this_process_wakes(many: AsyncClient, client: Client) -> None:
    await arrives(many, lambda: asyncio.to_thread(client.push, "q", 1))

    def in_a_transaction() -> None:
        with client.transaction() as tx:
            tx.push("q", 1)

    await arrives(many, lambda: asyncio.to_thread(in_a_transaction))


async def test_a_push_that_nobody_tells_of_is_found_by_looking(many: AsyncClient, sql: Connection) -> None:
    await arrives(many, lambda: push(sql), rounds=4)
    stats = many.stats()
    assert stats["has_pending_hits"] >= 1
    assert stats["has_pending_hits"] + stats["has_pending_misses"] == stats["has_pending_checks"]


async def test_what_became_visible_late_is_found_in_spite_of_the_check(many: AsyncClient, sql: Connection) -> None:
    await many.create_group("q", "g")
    for _ in range(3):
        await many.push("q", 1)
        assert await many.pop("q", "g", auto_ack=True)
    waiting = asyncio.create_task(many.pop("q", "g", wait=SOON))
    await quiet(many)
    # A place far before those that were taken, as that of a transaction that was slower than its neighbours.
    push(sql, "late")
    with sql.transaction():
        sql.execute("UPDATE penstock.ready SET seq = 1")
        sql.execute("UPDATE penstock.journal SET ready_seq = 1 WHERE state = 'r'")
    batch: Any = await waiting
    assert batch.partition == "late"


async def test_a_check_that_fails_counts_as_pending(dsn: str, sql: Connection) -> None:
    create_group(sql)
    role = SQL("penstock_unchecked_" + uuid4().hex[:12])
    sql.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(role))
    try:
        sql.execute(SQL("GRANT USAGE ON SCHEMA penstock TO {}").format(role))
        sql.execute(SQL("GRANT SELECT ON penstock.migrations TO {}").format(role))
        sql.execute(
            SQL(
                "GRANT EXECUTE ON FUNCTION penstock.ack_and_pop, penstock.pop_claims_batch, penstock.sweep TO {}"
            ).format(role)
        )
        limited_dsn = psycopg.conninfo.make_conninfo(dsn, user=role.as_string(), password="secret")
        async with AsyncClient(limited_dsn) as limited:
            waiting = asyncio.create_task(limited.pop("q", "g", wait=SOON))
            await quiet(limited, 2)
            stats = limited.stats()
            assert (stats["has_pending_misses"], stats["has_pending_hits"] >= 1) == (0, True)
            push(sql)
            assert await waiting is not None
    finally:
        sql.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


async def test_timers_end_in_time_though_nobody_pops(many: AsyncClient) -> None:
    await many.create_group("q", "g", backoff_initial=1.5)
    await many.push("q", 1)
    batch: Any = await many.pop("q", "g")
    failed = time.monotonic()
    await batch.nack()
    again: Any = await many.pop("q", "g", wait=SOON)
    assert 1.4 < time.monotonic() - failed < SOON / 2
    assert again.messages[0].attempt == 2


async def test_who_waits_for_a_partition_is_not_woken_by_another(many: AsyncClient) -> None:
    waiting = asyncio.create_task(many.pop("q", "g", partition="mine", wait=SOON))
    await quiet(many)
    await many.push("q", 1, partition="other")
    before = many.stats()["pop_batch_count"]
    await quiet(many, 2)
    assert (many.stats()["pop_batch_count"], waiting.done()) == (before, False)
    await many.push("q", 2, partition="mine")
    batch: Any = await waiting
    assert batch.partition == "mine"


def test_threads_share_the_looking_too(client: Client) -> None:
    got: list[Any] = []
    threads = [
        threading.Thread(target=lambda: got.append(client.pop("q", "g", wait=SOON)), daemon=True) for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SOON
    while client.stats()["has_pending_checks"] < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    before = client.stats()
    while client.stats()["has_pending_checks"] < before["has_pending_checks"] + 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert client.stats()["sweeps"] - before["sweeps"] <= 6
    client.push_many("q", [(f"p{n}", n) for n in range(30)])
    for thread in threads:
        thread.join(SOON)
    assert len({batch.partition for batch in got if batch}) == 30
    assert client.stats()["pop_batch_count"] == 0


def test_a_thread_that_waits_stops_when_it_is_told_to(client: Client) -> None:
    stop = threading.Event()
    ended = threading.Event()

    def consume() -> None:
        for _batch in client.consume("q", "g", stop=stop):
            raise AssertionError("there is nothing to consume")
        ended.set()

    threading.Thread(target=consume, daemon=True).start()
    stop.set()
    assert ended.wait(SOON)


async def test_a_task_that_waits_stops_when_it_is_told_to(many: AsyncClient) -> None:
    stop = asyncio.Event()

    async def consume() -> list[AsyncBatch]:
        return [batch async for batch in many.consume("q", "g", stop=stop)]

    consuming = asyncio.create_task(consume())
    await quiet(many)
    stop.set()
    async with asyncio.timeout(SOON):
        assert await consuming == []


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_was_pushed_while_a_batch_was_acknowledged_is_found_without_a_pause(
    client: Client, many: AsyncClient, sql: Connection, monkeypatch: pytest.MonkeyPatch, seldom: None, kind: str
) -> None:
    # After a look in vain nobody looks for an hour.
    monkeypatch.setattr(waiting, "_FIRST", 3600.0)
    waits = (client if kind == "sync" else many)._consumer.waits
    enter, taken = waits.enter, list[int]()

    def enter_after_a_push(*of: Any) -> Any:
        # Who comes here while something was taken before has acknowledged that, and has found nothing more.
        if taken == [0]:
            push(sql)
        return enter(*of)

    monkeypatch.setattr(waits, "enter", enter_after_a_push)
    push(sql)

    def take(stop: threading.Event) -> None:
        for batch in client.consume("q", "g", defer_acks=True, stop=stop):
            with batch:
                taken.extend(message.offset for message in batch)
            if len(taken) == 2:
                break

    async def take_async(stop: asyncio.Event) -> None:
        async for batch in many.consume("q", "g", defer_acks=True, stop=stop):
            async with batch:
                taken.extend(message.offset for message in batch)
            if len(taken) == 2:
                break

    stop = threading.Event() if kind == "sync" else asyncio.Event()
    asyncio.get_running_loop().call_later(SOON, stop.set)
    await (take_async(stop) if isinstance(stop, asyncio.Event) else asyncio.to_thread(take, stop))

    assert taken == [0, 1]


@pytest.fixture
def listener(dsn: str) -> Iterator[Connection]:
    """Another process, as far as hints go."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("LISTEN {}").format(SQL(CHANNEL)))
        yield connection


async def test_with_notify_a_push_hints_to_others_and_a_burst_only_now_and_then(dsn: str, listener: Connection) -> None:
    async with AsyncClient(dsn, notify=True) as client:
        await client.push("q", 1)
        (first,) = await asyncio.to_thread(lambda: list(listener.notifies(timeout=SOON, stop_after=1)))
        assert json.loads(first.payload)["queues"] == ["q"]
        for n in range(200):
            await client.push(f"q{n % 2}", n)
        seen: set[str] = set()
        count = 0
        while seen != {"q0", "q1"} or count < client.stats()["hints_sent"] - 1:
            for one in await asyncio.to_thread(lambda: list(listener.notifies(timeout=SOON, stop_after=1))):
                seen.update(json.loads(one.payload)["queues"])
                count += 1
        assert count < 100
        client.notify = False
        await client.push("silent", 2)
        assert not any("silent" in late.payload for late in listener.notifies(timeout=0.2))


@pytest.mark.usefixtures("seldom")
async def test_a_hint_from_elsewhere_wakes(dsn: str, sql: Connection) -> None:
    payload = json.dumps({"sender": "another", "queues": ["q"]})

    def push_and_hint() -> None:
        push(sql)
        sql.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))

    async with AsyncClient(dsn, notify=True) as client:
        # A hint that comes before is lost, and whoever waits looks again by himself.
        client._wakes.listen()
        await until(client._waits.listening)
        await arrives(client, push_and_hint)
        assert client.stats()["hints_received"] >= 5


async def test_hints_that_make_no_sense_or_are_lost_with_their_connection_do_no_harm(dsn: str, sql: Connection) -> None:
    before = hint_threads()
    async with AsyncClient(dsn, notify=True) as client:
        await arrives(client, lambda: client.push("q", 1), rounds=1)
        sql.execute("SELECT pg_notify(%s, 'nonsense')", (CHANNEL,))
        sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        await arrives(client, lambda: push(sql), rounds=2)
    await until(lambda: hint_threads() <= before)


async def test_without_notify_there_is_no_thread_and_no_connection_for_hints(dsn: str, sql: Connection) -> None:
    before = hint_threads()
    async with AsyncClient(dsn, notify=False) as client:
        await arrives(client, lambda: client.push("q", 1), rounds=1)
        assert hint_threads() <= before
    pass_time(sql)


async def test_a_client_hints_by_default_unless_a_pooler_is_in_between(dsn: str, listener: Connection) -> None:
    async with AsyncClient(dsn) as client:
        assert client.notify
        await client.push("q", 1)
        assert list(listener.notifies(timeout=SOON, stop_after=1))
    with Client(dsn) as other:
        assert other.notify
        database: Any = other._transport
        database.server.pooled = True
        assert not other.notify


def test_a_push_in_a_transaction_of_the_callers_own_lets_others_look_soon(dsn: str, listener: Connection) -> None:
    with Client(dsn) as client, psycopg.connect(dsn) as own:
        with client.transaction(own) as tx:
            tx.push("q", 1)
        # It is not committed yet; who hears of it looks again and again.
        (hint,) = listener.notifies(timeout=SOON, stop_after=1)
        assert json.loads(hint.payload)["queues"] == ["q"]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no push wait because another one has just taken a hint along."""
    monkeypatch.setattr(hints, "_LONGEST_PAUSE", 0.0)


@pytest.mark.usefixtures("unhurried")
def test_a_push_that_wakes_a_group_takes_its_hint_along(dsn: str, listener: Connection, sql: Connection) -> None:
    with Client(dsn) as client:
        client.create_group("q", "g")
        client.push("q", 0)
        (by_the_thread,) = listener.notifies(timeout=SOON, stop_after=1)
        for n in range(3):
            client.push("q", n, partition=f"p{n}")
            (hint,) = listener.notifies(timeout=SOON, stop_after=1)
            assert json.loads(hint.payload)["queues"] == ["q"]
            assert hint.pid != by_the_thread.pid
            pushing = sql.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (hint.pid,)).fetchone()
            assert pushing is not None
            assert "push_segment" in pushing[0]
        assert client.stats()["hints_sent"] == 4
        with pytest.raises(MessageTooLarge):
            client.push("q", b"x" * (2 << 20))
        assert not list(listener.notifies(timeout=0.2))


@pytest.mark.usefixtures("unhurried")
def test_the_hint_of_a_push_that_wakes_nobody_is_sent_afterwards(
    dsn: str, listener: Connection, sql: Connection
) -> None:
    with Client(dsn) as client:
        client.create_group("q", "g")
        for _ in range(3):
            # Only those who read without a group want to know: the partition is in the ready list already.
            client.push("q", 0, partition="p")
            (hint,) = listener.notifies(timeout=SOON, stop_after=1)
        sending = sql.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (hint.pid,)).fetchone()
        assert sending is not None
        assert "push_segment" not in sending[0]


@pytest.mark.usefixtures("unhurried")
async def test_pushes_that_are_joined_hint_for_all_their_queues(dsn: str, listener: Connection) -> None:
    async with AsyncClient(dsn) as client:
        await client.push("q", 0)
        queues = {f"q{n}" for n in range(20)}
        await asyncio.gather(*(client.push(queue, 1) for queue in queues))
        heard: set[str] = set()
        while not heard >= queues:
            found = await asyncio.to_thread(lambda: list(listener.notifies(timeout=SOON, stop_after=1)))
            assert found
            heard.update(queue for hint in found for queue in json.loads(hint.payload)["queues"])


def test_a_process_that_pushes_and_ends_has_told_others(dsn: str, listener: Connection) -> None:
    with Client(dsn) as client:
        client.push("q", 1)
    assert list(listener.notifies(timeout=SOON, stop_after=1))


def test_a_process_listens_only_once_somebody_in_it_waits(dsn: str) -> None:
    # An address of its own: a client of another test, which nobody has closed yet, may listen at this one.
    with Client(psycopg.conninfo.make_conninfo(dsn, application_name="alone")) as client:
        client.push("q", 1)
        exchange: Any = client._wakes._hints
        deadline = time.monotonic() + SOON
        while not client.stats()["hints_sent"]:
            assert time.monotonic() < deadline
        assert not exchange.listening
        assert client.pop("q", wait=1) is not None
        while not exchange.listening:
            assert time.monotonic() < deadline


def test_the_thread_for_hints_ends_with_a_client_that_nobody_closed(dsn: str) -> None:
    def push_and_forget() -> None:
        client = Client(dsn)
        client.push("q", 1)

    before = hint_threads()
    push_and_forget()
    deadline = time.monotonic() + SOON
    while not hint_threads() <= before:
        gc.collect()
        assert time.monotonic() < deadline


async def test_no_payload_that_somebody_sends_ends_the_waking(dsn: str, sql: Connection) -> None:
    async with AsyncClient(dsn) as client:
        await client.push("q", "x")
        await client.pop("q", "g", wait=0.01, auto_ack=True)
        hint = client._wakes._hints
        assert hint is not None
        await until(lambda: hint.listening)
        nested = '{"unknown": ' + "[" * 3000 + "]" * 3000 + "}"
        for payload in ("", "null", "not json", '{"sender": 1}', nested):
            sql.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
        heard = client.stats()["hints_received"]
        sql.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps({"sender": "other", "queues": ["q"]})))
        await until(lambda: client.stats()["hints_received"] > heard)
