"""Many tasks, one client: calls share a round trip, and no caller suffers from another's."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from groups.steps import create_group, pass_time, violations
from log.interleaving import gapless, push

from databases import Connection, Connections
from penstock import AsyncBatch, AsyncClient, LeaseLost, LockTimeout, Message, MessageTooLarge, PenstockError

SOON = 20.0


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Look again and again until a condition holds."""
    async with asyncio.timeout(SOON):
        while True:
            if found := await condition():
                return found
            await asyncio.sleep(0.005)


def batches(before: dict[str, int], after: dict[str, int], kind: str) -> tuple[int, int]:
    """Return how many calls of the database there were since, and for how many callers."""
    count, size = (f"{kind}_batch_{what}" for what in ("count", "size"))
    return after[count] - before[count], after[size] - before[size]


async def settled(tasks: list[Any]) -> list[Any]:
    async with asyncio.timeout(SOON):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_calls_that_come_at_the_same_time_share_a_round_trip(many: AsyncClient) -> None:
    await many.push("q", 0, partition="p0")
    await many.create_group("q", "g")
    before = many.stats()
    results = await asyncio.gather(*(many.push("q", n, partition=f"p{n % 10}") for n in range(100)))
    assert len({(result.partition, result.first_offset) for result in results}) == 100
    popped = await asyncio.gather(*(many.pop("q", "g") for _ in range(100)))
    got = [batch for batch in popped if batch is not None]
    assert sorted(batch.partition for batch in got) == [f"p{n}" for n in range(10)]
    await asyncio.gather(*(batch.renew() for batch in got))
    await asyncio.gather(*(batch.ack() for batch in got))
    after = many.stats()
    for kind, callers in (("push", 100), ("pop", 100), ("renew", 10), ("ack", 10)):
        calls, served = batches(before, after, kind)
        # One that goes at once and one for all the others; one more where the first takes long.
        assert (calls <= 3, served) == (True, callers), kind
    assert await many.lag("q", "g") == 0


async def test_switched_off_every_call_is_its_own(many: AsyncClient, sql: Connection) -> None:
    many.pop_batching = many.push_batching = False
    await asyncio.gather(*(many.push("q", n) for n in range(10)))
    batch = (await asyncio.gather(*(many.pop("q", "g") for _ in range(10))))[0]
    stats = many.stats()
    assert not any(stats[f"{kind}_batch_count"] for kind in ("push", "pop", "ack"))
    many.pop_batching = many.push_batching = True
    await asyncio.gather(*(many.push("q", n) for n in range(10)))
    assert many.stats()["push_batch_size"] == 10
    assert batch is not None or violations(sql) == {}


async def test_pushes_at_once_are_one_segment_and_keep_their_order(many: AsyncClient, sql: Connection) -> None:
    await many.push("q", "first", partition="p")
    results = await asyncio.gather(
        *(many.push("q", [f"{n}a", f"{n}b"], partition="p") for n in range(20)),
        many.push("q", Message("keyed", key="k", headers={"h": "1"}), partition="p"),
        many.push("q", [f"large{n}" for n in range(150)], partition="p"),
        many.push("q", "last", partition="p", key="k"),
        many.push_many("q", [("p", "many"), ("other", "too")]),
    )
    read = [message.json() for message in await many.read("q", "p")]
    small = [f"{n}{letter}" for n in range(20) for letter in "ab"]
    assert read == ["first", *small, "keyed", *(f"large{n}" for n in range(150)), "last", "many"]
    flat: list[Any] = [result for each in results for result in (each if isinstance(each, list) else [each])]
    for result in flat:
        stored = await many.read("q", result.partition, result.first_offset, result.first_offset + result.count)
        assert [message.id for message in stored] == result.ids
    keyed = (await many.read("q", "p", 41, 42))[0]
    assert (keyed.key, keyed.headers) == ("k", {"h": "1"})
    ((segments,),) = sql.execute(
        "SELECT count(*) FROM penstock.segments JOIN penstock.partitions USING (partition_id) WHERE name = 'p'"
    ).fetchall()
    assert segments <= 8
    assert gapless(sql)


@pytest.mark.parametrize("guilty", [0, 7, 19])
async def test_a_push_that_is_refused_fails_no_other(many: AsyncClient, sql: Connection, guilty: int) -> None:
    await many.create("q", max_message_bytes=100)
    await many.push("q", "here", partition="p0")
    values = [b"x" * (101 if n == guilty else 10) for n in range(20)]
    results = await settled([many.push("q", value, partition=f"p{n % 3}") for n, value in enumerate(values)])
    assert [type(result) is MessageTooLarge for result in results] == [n == guilty for n in range(20)]
    stored = [message for n in range(3) for message in await many.read("q", f"p{n}")]
    assert len(stored) == 20
    assert gapless(sql)


async def test_a_pop_that_is_refused_fails_no_other(many: AsyncClient) -> None:
    await many.push_many("q", [(f"p{n}", n) for n in range(5)])
    await many.create_group("q", "g")
    wanted: list[Any] = [1, 1, 0, 1, "many", 1, 1]
    results = await settled([many.pop("q", "g", max_messages=most) for most in wanted])
    assert [isinstance(result, AsyncBatch) for result in results] == [most == 1 for most in wanted]
    assert all(isinstance(results[n], Exception) for n in (2, 4))


async def test_a_lost_lease_is_told_to_its_owner_alone(many: AsyncClient, sql: Connection) -> None:
    await many.push_many("q", [(f"p{n}", n) for n in range(6)])
    await many.create_group("q", "g")
    popped: list[Any] = await asyncio.gather(*(many.pop("q", "g") for _ in range(6)))
    lost = popped[2].claims[0]
    sql.execute("SELECT penstock.release_claim(%s, %s)", (lost.group_id, lost.partition_id))
    for results in (
        await settled([batch.renew() for batch in popped]),
        await settled([batch.ack() for batch in popped]),
    ):
        assert [type(result) for result in results] == [LeaseLost if n == 2 else type(None) for n in range(6)]
    assert await many.lag("q", "g") == 1


async def test_two_acknowledgements_of_one_claim_follow_one_another(many: AsyncClient) -> None:
    await many.push("q", list(range(10)))
    await many.push("q", 1, partition="another")
    batch: Any = await many.pop("q", "g", partition="0")
    other: Any = await many.pop("q", "g", partition="another")
    results = await settled([batch.ack(up_to=3), batch.ack(up_to=5), other.ack(), batch.ack(up_to=8)])
    assert results == [None] * 4
    assert await many.lag("q", "g") == 2


async def test_somebodys_lock_holds_up_those_alone_who_need_it(
    many: AsyncClient, sql: Connection, connections: Connections
) -> None:
    for name in ("locked", "free"):
        await many.push("q", "before", partition=name)
    holder = connections.open()
    push(holder, "locked")
    waiting = [asyncio.create_task(many.push("q", n, partition="locked")) for n in range(5)]
    for _ in range(5):
        # Each round would have somebody who waits among its neighbours.
        waiting += [asyncio.create_task(many.push("q", n, partition="locked")) for n in range(5, 10)]
        async with asyncio.timeout(SOON):
            await asyncio.gather(*(many.push("q", n, partition=f"free{n}") for n in range(10)))
    assert not any(task.done() for task in waiting)
    holder.commit()
    offsets = [result.first_offset for result in await settled(waiting)]
    assert offsets == list(range(2, 2 + len(waiting)))
    assert gapless(sql)


async def test_an_acknowledgement_that_waits_for_a_lock_holds_up_nobody(
    many: AsyncClient, connections: Connections
) -> None:
    for n in range(5):
        await many.push("q", n, partition=f"p{n}")
    batches: list[Any] = [await many.pop("q", "g", partition=f"p{n}") for n in range(5)]
    holder = connections.open()
    claim = batches[1].claims[0]
    holder.execute(
        "SELECT 1 FROM penstock.journal WHERE group_id = %s AND partition_id = %s FOR UPDATE",
        (claim.group_id, claim.partition_id),
    )
    waiting, *others = (asyncio.create_task(batches[n].ack()) for n in (1, 0, 2, 3, 4))
    async with asyncio.timeout(SOON):
        await asyncio.gather(*others)
    assert not waiting.done()
    holder.rollback()
    assert await settled([waiting]) == [None]
    assert await many.lag("q", "g") == 0


async def test_a_lone_push_that_waits_for_a_lock_holds_up_nobody(many: AsyncClient, connections: Connections) -> None:
    await many.push("q", "before", partition="locked")
    holder = connections.open()
    push(holder, "locked")
    waiting = asyncio.create_task(many.push("q", 1, partition="locked"))
    async with asyncio.timeout(SOON):
        for _ in range(3):
            await many.push("q", 1, partition="free")
    assert not waiting.done()
    holder.rollback()
    assert (await settled([waiting]))[0].first_offset == 1


async def test_who_waits_too_long_for_a_lock_is_told_so_and_the_others_are_not(
    dsn: str, connections: Connections
) -> None:
    holder, other = connections.open(), connections.open(autocommit=True)
    push(other, "here")
    push(holder, "locked")
    async with AsyncClient(psycopg.conninfo.make_conninfo(dsn, options="-c penstock.lock_timeout=300ms")) as client:
        results = await settled([client.push("q", n, partition=name) for n, name in enumerate(["free", "locked"] * 5)])
    assert [type(result) is LockTimeout for result in results] == [False, True] * 5


async def test_a_new_group_holds_up_nobody_else_while_it_waits_for_an_open_push(
    many: AsyncClient, connections: Connections
) -> None:
    await many.push_many("q", [(f"p{n}", n) for n in range(5)])
    await many.create_group("q", "old")
    pusher = connections.open()
    push(pusher, "p9")
    new = [asyncio.create_task(many.pop("q", "new")) for _ in range(3)]
    async with asyncio.timeout(SOON):
        old = await asyncio.gather(*(many.pop("q", "old") for _ in range(5)))
    assert all(batch is not None for batch in old)
    assert not any(task.done() for task in new)
    pusher.commit()
    got = [batch for batch in await settled(list(new)) if isinstance(batch, AsyncBatch)]
    assert got
    assert len({batch.partition for batch in got}) == len(got)


async def test_a_push_that_is_cancelled_before_its_turn_is_not_stored(
    many: AsyncClient, connections: Connections
) -> None:
    await many.push("q", "before")
    holder = connections.open()
    push(holder, "0")
    first = asyncio.create_task(many.push("q", "first"))
    second = asyncio.create_task(many.push("q", "second"))
    third = asyncio.create_task(many.push("q", "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    holder.rollback()
    await settled([first, third])
    assert [message.json() for message in await many.read("q", "0")] == ["before", "first", "third"]


async def test_what_was_popped_for_somebody_who_is_gone_is_given_back(many: AsyncClient, sql: Connection) -> None:
    await many.push_many("q", [(f"p{n}", n) for n in range(20)])
    await many.create_group("q", "g")
    for turns in range(6):
        tasks = [asyncio.create_task(many.pop("q", "g")) for _ in range(20)]
        # At another moment each time: before it is sent, under way, or answered.
        for _ in range(turns):
            await asyncio.sleep(0.002 * turns)
        for task in tasks[::2]:
            task.cancel()
        kept = [batch for batch in await settled(list(tasks)) if isinstance(batch, AsyncBatch)]

        async def only_those_are_held(kept: list[AsyncBatch] = kept) -> bool:
            return {claim.lease_id for claim in await many.claims("q")} == {b.claims[0].lease_id for b in kept}

        await until(only_those_are_held)
        await asyncio.gather(*(batch.release() for batch in kept))
    attempts = [
        batch.messages[0].attempt for batch in await asyncio.gather(*(many.pop("q", "g") for _ in range(20))) if batch
    ]
    assert attempts == [1] * 20
    assert violations(sql) == {}


async def test_closing_fails_what_waits_and_leaves_no_task(dsn: str, connections: Connections) -> None:
    before = asyncio.all_tasks()
    client = AsyncClient(dsn)
    await client.push("q", 1)
    holder = connections.open()
    push(holder, "0")
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(client.push("q", n)) for n in range(3)]
    tasks.append(asyncio.create_task(client.pop("empty", "g", wait=60)))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.1)
    holder.rollback()
    await closing
    results = await settled(list(tasks))
    assert all(isinstance(result, PenstockError) for result in results[1:])
    assert asyncio.all_tasks() - before == set()


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_64_pops_at_once_never_get_the_same_twice(dsn: str, sql: Connection, mode: str) -> None:
    """By repetition: two clients, 64 tasks, more of them than partitions, and every lease and message counted."""
    rounds, partitions, tasks = 12, 40, 64
    create_group(sql, mode=mode)
    seen: Counter[tuple[str, int]] = Counter()
    leases: Counter[Any] = Counter()
    held: set[str] = set()

    async def consume(client: AsyncClient, n: int) -> None:
        name = f"p{n % partitions}" if n % 4 == 0 else None
        batch = await client.pop("q", "g", partition=name, max_messages=3)
        if batch is None:
            return
        if mode == "ordered":
            assert batch.partition not in held
            held.add(batch.partition)
        await asyncio.sleep(0)
        leases[batch.claims[0].lease_id] += 1
        seen.update((message.partition, message.offset) for message in batch.messages)
        held.discard(batch.partition)
        await batch.ack()

    async with AsyncClient(dsn) as one, AsyncClient(dsn) as two:
        for _ in range(rounds):
            await one.push_many("q", [(f"p{n}", n) for n in range(partitions) for _ in range(3)])
            async with asyncio.timeout(SOON):
                await asyncio.gather(*(consume(client, n) for n in range(tasks // 2) for client in (one, two)))
        while await one.lag("q", "g"):
            pass_time(sql, "t", "p")
            await asyncio.gather(*(consume(one, 1) for _ in range(tasks)))
        assert one.stats()["pop_batch_size"] > 5 * one.stats()["pop_batch_count"]
    assert len(seen) == rounds * partitions * 3
    assert set(seen.values()) == {1}
    assert set(leases.values()) == {1}
    assert violations(sql) == {}
