"""What lies in a window is taken, acknowledged and given back as without one."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest

from penstock import Client, InvalidInput, LeaseLost, Message
from penstock.broker.operations.claiming import HasPending, HasPendingMany, Pop, PopMany, Release
from penstock.postgres.database import Database
from penstock.settings import resolve
from penstock.valkey.address import Address, find
from penstock.warm.links import Link
from penstock.warm.transport import WarmTransport
from windows import ValkeyServer, wait_for

MODES = pytest.mark.parametrize("mode", ["shared", "ordered"])
WARM: dict[str, Any] = {"warm": True, "backoff_initial": 0.05, "backoff_max": 0.1}


def is_warm(batch: Any) -> bool:
    return all(claim.lease_id.version == 8 for claim in batch.claims)


def push(api: Client, count: int, partition: str = "a", queue: str = "orders") -> None:
    api.push(queue, list(range(count)), partition=partition)


def values(batch: Any) -> list[int]:
    return [message.json() for message in batch]


def sound(api: Client) -> bool:
    return [check for check in api.verify() if check.violations] == []


@MODES
def test_messages_are_taken_from_the_window_in_order_and_their_acks_reach_postgres(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push(api, 10)
    loaded("orders", "work", 10)

    first = api.pop("orders", "work", max_messages=4)
    assert first is not None
    assert is_warm(first)
    taken = values(first)
    first.ack()
    rest = api.pop("orders", "work")
    assert rest is not None
    assert is_warm(rest)
    taken += values(rest)
    rest.ack()

    assert taken == list(range(10))
    assert api.lag("orders", "work") == 0
    assert sound(api)


@MODES
def test_what_another_consumer_gives_back_to_postgres_leaves_the_window_alone(
    api: Client, loaded: Callable[..., int], dsn: str, mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, in_memory_queue_size=10, **WARM)
    api.push_many("orders", [(f"p{number}", number) for number in range(30)])
    loaded("orders", "work", 10)
    held = api.pop("orders", "work", max_messages=50, max_partitions=50)
    assert held is not None
    assert is_warm(held)
    with Client(dsn, valkey_url="none") as cold:
        from_postgres = cold.pop("orders", "work", max_messages=1)
        assert from_postgres is not None
    # By a client that knows of windows.
    api._transport.run(Release(from_postgres.claims[0].lease))
    held.ack()
    assert sound(api)


@MODES
def test_a_claim_of_the_window_that_is_taken_from_its_dispatcher_leaves_it_alone(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    for partition in ("a", "b"):
        push(api, 3, partition)
    loaded("orders", "work", 6)
    taken = next(claim for claim in api.claims("orders") if claim.partition == "a")
    assert api.release_claim(taken)
    seen: list[Any] = []

    def all_seen() -> bool:
        batch = api.pop("orders", "work", max_messages=10)
        if batch is not None:
            with batch:
                seen.extend((message.partition, message.json()) for message in batch)
        return len(seen) >= 6

    wait_for(all_seen)
    assert sorted(seen) == [(partition, number) for partition in "ab" for number in range(3)]
    assert sound(api)


@MODES
def test_a_failure_counts_an_attempt_in_postgres_and_ends_in_a_dead_letter(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, max_attempts=2, **WARM)
    push(api, 3)
    loaded("orders", "work", 3)
    seen = []

    def fail_once() -> bool:
        batch = api.pop("orders", "work", max_messages=1)
        if batch is None:
            return False
        (message,) = batch
        seen.append((message.json(), message.attempt))
        if message.json() == 1:
            batch.nack(error="no")
        else:
            batch.ack()
        return api.lag("orders", "work") == 0

    wait_for(fail_once)
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    if mode == "ordered":
        assert seen == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert [letter.offset for letter in api.dead_letters("orders")] == [1]
    assert sound(api)


@MODES
def test_a_lease_that_ends_counts_an_attempt_and_neighbours_come_alone(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push(api, 3)
    loaded("orders", "work", 3)
    late = api.pop("orders", "work", lease=0.2)
    assert late is not None
    assert is_warm(late)
    assert len(late) == 3

    again: list[list[tuple[int, int]]] = []
    while len(again) < 3:
        batch = wait_for(lambda: api.pop("orders", "work"))
        again.append([(message.json(), message.attempt) for message in batch])
        batch.ack()

    assert sorted(again) == [[(0, 2)], [(1, 2)], [(2, 2)]]
    with pytest.raises(LeaseLost):
        late.ack()
    assert api.lag("orders", "work") == 0
    assert sound(api)


@MODES
def test_what_is_released_comes_again_without_an_attempt(api: Client, loaded: Callable[..., int], mode: str) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push(api, 3)
    loaded("orders", "work", 3)
    first = api.pop("orders", "work")
    assert first is not None
    assert is_warm(first)

    first.release()
    second = api.pop("orders", "work")

    assert second is not None
    assert is_warm(second)
    assert [(message.json(), message.attempt) for message in second] == [(0, 1), (1, 1), (2, 1)]
    second.ack()
    assert api.lag("orders", "work") == 0


@MODES
def test_a_renewed_lease_stays(api: Client, loaded: Callable[..., int], mode: str) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push(api, 2)
    loaded("orders", "work", 2)
    batch = api.pop("orders", "work", lease=1)
    assert batch is not None
    assert is_warm(batch)

    for _ in range(4):
        time.sleep(0.5)
        batch.renew(1)
    batch.ack()

    assert api.lag("orders", "work") == 0


def test_a_seek_takes_effect_at_once(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", **WARM)
    push(api, 5)
    loaded("orders", "work", 5)

    api.seek("orders", "work", 3)
    batch = wait_for(lambda: api.pop("orders", "work"))

    assert values(batch) == [3, 4]
    batch.ack()
    assert sound(api)


def test_a_paused_group_delivers_nothing_and_goes_on_where_it_was(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", **WARM)
    push(api, 5)
    loaded("orders", "work", 5)

    api.pause_group("orders", "work")
    paused = [api.pop("orders", "work", wait=0.3) for _ in range(3)]
    api.resume_group("orders", "work")
    batch = wait_for(lambda: api.pop("orders", "work"))

    assert paused == [None, None, None]
    assert values(batch) == [0, 1, 2, 3, 4]


def test_a_cancelled_message_is_not_delivered(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    ids = api.push("orders", list(range(5)), partition="a").ids
    loaded("orders", "work", 5)

    api.cancel(ids[2])
    taken: list[int] = []
    while len(taken) < 4:
        batch = wait_for(lambda: api.pop("orders", "work"))
        taken += values(batch)
        batch.ack()

    assert sorted(taken) == [0, 1, 3, 4]
    assert sound(api)


def test_large_messages_and_strange_ones_come_whole(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    large = b"x" * 200_000
    api.push("orders", [Message(large, key="k", headers={"a": "ü"}), Message(None), Message(b"")], partition="a")
    loaded("orders", "work", 3)

    batch = api.pop("orders", "work")

    assert batch is not None
    assert is_warm(batch)
    assert [(m.value, m.key, m.headers) for m in batch] == [
        (large, "k", {"a": "ü"}),
        (None, None, None),
        (b"", None, None),
    ]


@MODES
def test_a_named_partition_is_served_from_the_window(api: Client, loaded: Callable[..., int], mode: str) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    for partition in "abc":
        push(api, 2, partition)
    loaded("orders", "work", 6)

    batch = api.pop("orders", "work", partition="b")

    assert batch is not None
    assert is_warm(batch)
    assert {message.partition for message in batch} == {"b"}
    assert values(batch) == [0, 1]


@MODES
def test_auto_ack_is_done_in_postgres_before_anything_is_delivered(
    api: Client, loaded: Callable[..., int], mode: str, valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push(api, 5)
    loaded("orders", "work", 5)

    batch = api.pop("orders", "work", auto_ack=True)
    valkey_server.client().flushall()

    assert batch is not None
    assert values(batch) == [0, 1, 2, 3, 4]
    assert api.lag("orders", "work") == 0


def test_a_pop_in_a_transaction_says_that_it_cannot_take_from_a_window(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", warm=True)
    api.push("orders", 1, partition="a")
    loaded("orders", "work")
    with pytest.raises(InvalidInput, match="pop outside of the transaction"), api.transaction() as transaction:
        transaction.pop("orders", "work")
    batch = api.pop("orders", "work", wait=5)
    assert batch is not None
    with api.transaction() as transaction:
        transaction.ack(batch)
    assert api.lag("orders", "work") == 0


def test_a_message_in_a_window_has_no_consumer_and_no_attempt_that_nobody_made(
    api: Client, loaded: Callable[..., int]
) -> None:
    api.create_group("orders", "work", warm=True)
    [pushed] = api.push("orders", 1, partition="a").ids
    loaded("orders", "work")
    [state] = api.state(pushed)
    assert (state.state, state.attempt, state.consumer) == ("queued", 0, None)


def test_an_ack_in_the_callers_transaction_is_undone_with_it(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", **WARM)
    push(api, 2)
    loaded("orders", "work", 2)
    batch = api.pop("orders", "work", max_messages=1)
    assert batch is not None
    assert is_warm(batch)

    def fail() -> None:
        with api.transaction() as transaction:
            transaction.ack(batch)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert api.lag("orders", "work") == 2
    with api.transaction() as transaction:
        transaction.ack(batch)

    assert api.lag("orders", "work") == 1
    following = wait_for(lambda: api.pop("orders", "work"))
    assert values(following) == [1]


def test_an_ack_that_a_savepoint_undoes_is_not_told_the_window(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", **WARM)
    push(api, 3)
    loaded("orders", "work", 3)
    batch = api.pop("orders", "work", max_messages=1)
    assert batch is not None
    assert is_warm(batch)

    def fail(transaction: Any) -> None:
        with transaction.connection.transaction():
            transaction.ack(batch)
            raise KeyError

    with api.transaction() as transaction, pytest.raises(KeyError):
        fail(transaction)

    assert api.pop("orders", "work", wait=0.3) is None
    batch.ack()
    following = wait_for(lambda: api.pop("orders", "work"))
    assert values(following) == [1, 2]
    assert api.lag("orders", "work") == 2


def test_a_deleted_group_stays_deleted(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", **WARM)
    push(api, 5)
    loaded("orders", "work", 5)

    api.delete_group("orders", "work")
    api.push("orders", [6], partition="a")
    wait_for(lambda: not api.windows())
    time.sleep(1.0)

    assert api.groups("orders") == []
    assert sound(api)


def test_what_waits_is_counted_warm_and_cold(api: Client, loaded: Callable[..., int], sql: Any) -> None:
    api.create_group("orders", "work", mode="shared", in_memory_queue_size=20, **WARM)
    ids = api.push("orders", [0], partition="a").ids
    ids += api.push("orders", list(range(1, 100)), partition="a").ids
    loaded("orders", "work", 19)
    wait_for(lambda: api.windows()[0].state == "cold")
    wait_for(lambda: sql.execute("SELECT complete FROM penstock.sample(100000, 0)").fetchone() == (True,))

    rows = {row.tier: row for row in api.queued_work()}

    assert rows["warm"].count in (19, 20)
    assert rows["warm"].count + rows["cold"].count == 100
    assert rows["warm"].oldest_did == str(ids[0])
    assert rows["cold"].oldest_did == str(ids[rows["warm"].count])
    assert [state.state for each in (0, 99) for state in api.state(ids[each]) or []] == ["queued", "cold queued"]


def test_the_view_of_cold_messages_has_those_of_actions_that_nobody_was_given(dsn: str, sql: Any) -> None:
    sql.execute(
        "SELECT penstock.register_actions('{shop}', '{mail}', '{DATA_SINK}', '{shop.mail}', '{shop:1}', '{orders}',"
        " '{NULL}')"
    )
    with Client(dsn) as client:
        client.create_group("orders", "shop.mail", mode="shared")
        ids = client.push("orders", list(range(5)), partition="a").ids
        assert client.pop("orders", "shop.mail", max_messages=2) is not None

    rows = sql.execute(
        "SELECT delta_file_flow_id, delta_file_id, flow_name, flow_type, action_name, action_class"
        " FROM penstock.cold_queue_entries ORDER BY queued_at, delta_file_flow_id"
    ).fetchall()

    assert rows == [(each, str(each), "shop", "DATA_SINK", "mail", "shop.mail") for each in ids[2:]]


@MODES
def test_a_window_has_no_more_bytes_than_it_may_although_every_claim_has_a_large_message(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    most, count = 100_000, 100
    api.create_group("orders", "work", mode=mode, in_memory_bytes=most, **WARM)
    for number in range(count):
        api.push("orders", b"x" * 10_000, partition=f"p{number}")
    loaded("orders", "work", 5)
    windows: Any = api._transport.windows  # type: ignore[attr-defined]
    group_id = api.windows()[0].group_id
    sizes: list[int] = []
    handled = 0

    while handled < count:
        sizes.append(windows.fill(group_id).size)
        batch = api.pop("orders", "work", max_partitions=3, wait=5)
        assert batch is not None
        handled += len(batch)
        batch.ack()

    assert max(sizes) <= most
    assert handled == count
    assert api.lag("orders", "work") == 0
    assert sound(api)


@MODES
def test_a_pop_gets_no_more_bytes_than_it_asks_for_also_of_messages_that_lie_in_the_log(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    api.push("orders", [b"x" * 100_000] * 10, partition="a")
    loaded("orders", "work", 10)

    for _ in range(3):
        batch = api.pop("orders", "work", max_messages=10, max_bytes=300_000)
        assert batch is not None
        assert is_warm(batch)
        assert [len(message.value or b"") for message in batch] == [100_000] * 3
        batch.ack()


def test_many_groups_are_asked_for_in_one_call_with_windows_and_without(
    api: Client, loaded: Callable[..., int], dsn: str, valkey_url: str
) -> None:
    queues = [f"q{number}" for number in range(5)]
    for number, queue in enumerate(queues):
        api.create_group(queue, "work", mode="shared", warm=number < 2)
    for queue in ("q0", "q3"):
        api.push(queue, 0)
    loaded("q0", "work", 1)
    settings = resolve({"url": dsn, "valkey_url": valkey_url})
    ran: list[Any] = []

    class Counted(Database):
        def run(self, operation: Any, *arguments: Any, **options: Any) -> Any:
            ran.append(operation)
            return super().run(operation, *arguments, **options)

    transport = WarmTransport(Counted(settings), Link(cast(Address, find(settings))))
    with closing(transport):
        transport.windows.database()
        ran.clear()
        answer = transport.run(HasPendingMany([HasPending(queue, "work") for queue in queues]))
        asked = [len(each.asks) for each in ran]
        popped = transport.run(PopMany([Pop(queue, "work") for queue in queues]))

    assert answer == [True, False, False, True, False]
    assert asked == [4]
    assert [bool(claims) for claims in popped] == answer
