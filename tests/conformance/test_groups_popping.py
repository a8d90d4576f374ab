"""Claiming messages: which ones, how many, for how long, and for whom."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import InvalidInput, Message

from .groups import MODES, SOON, drain, offsets, values

pytestmark = pytest.mark.usefixtures("sound")
Unchanged = Callable[[], AbstractContextManager[None]]


def lease_seconds(batch: Any) -> float:
    (claim,) = batch.claims
    return float((claim.lease_until - datetime.now(UTC)).total_seconds())


def test_a_pop_returns_the_messages_of_a_partition_in_order(api: Any) -> None:
    api.push("q", [Message("a", key="k", headers={"h": "1"}), "b"], partition="p")
    api.push("q", "c", partition="p")
    batch = api.pop("q", "g")
    assert (batch.queue, batch.group, batch.partition, len(batch)) == ("q", "g", "p", 3)
    assert (values(batch), offsets(batch)) == (["a", "b", "c"], [0, 1, 2])
    assert list(batch) == batch.messages
    assert (batch.messages[0].key, batch.messages[0].headers) == ("k", {"h": "1"})
    assert [message.attempt for message in batch.messages] == [1, 1, 1]
    assert [message.id for message in batch.messages] == [message.id for message in api.read("q", "p")]


def test_queue_and_group_come_into_being_on_first_use(api: Any) -> None:
    assert api.pop("new", "g") is None
    assert [(group.queue, group.name, group.mode, group.subscription) for group in api.groups()] == [
        ("new", "g", "ordered", "all")
    ]
    api.push("new", 1)
    assert values(api.pop("new", "g")) == [1]


def test_the_group_is_named_default_unless_said_otherwise(api: Any) -> None:
    api.push("q", 1)
    assert api.pop("q").group == "default"
    assert [group.name for group in api.groups("q")] == ["default"]


def test_nothing_to_pop_is_none(api: Any) -> None:
    api.push("q", 1)
    assert drain(api, "q") == [1]
    assert api.pop("q") is None
    assert api.pop("q", partition="0") is None
    assert api.pop("q", partition="no-such-partition") is None


def test_a_claimed_partition_is_nobody_elses_in_an_ordered_group(open_api: Callable[..., Any]) -> None:
    api, other = open_api(), open_api()
    api.push("q", [1, 2, 3])
    batch = api.pop("q", max_messages=1)
    assert other.pop("q") is None
    batch.ack()
    assert values(other.pop("q")) == [2, 3]


def test_a_shared_group_hands_out_one_partition_to_many(open_api: Callable[..., Any]) -> None:
    apis = [open_api() for _ in range(3)]
    apis[0].push("q", list(range(6)))
    apis[0].create_group("q", "g", mode="shared")
    batches = [api.pop("q", "g", max_messages=2) for api in apis]
    assert sorted(value for batch in batches for value in values(batch)) == list(range(6))
    assert apis[0].pop("q", "g") is None
    assert len(apis[0].claims("q", "g")) == 3


def test_a_named_partition_is_the_only_one_looked_at(api: Any) -> None:
    api.push_many("q", [("a", 1), ("b", 2), ("c", 3)])
    assert values(api.pop("q", partition="b")) == [2]
    assert api.pop("q", partition="b") is None
    assert sorted(drain(api, "q")) == [1, 3]


@pytest.mark.parametrize("mode", MODES)
def test_the_partition_that_waited_longest_comes_first(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    for partition in "cab":
        api.push("q", [partition, partition], partition=partition)
    order = []
    for _ in range(6):
        batch = api.pop("q", "g", max_messages=1)
        order += values(batch)
        batch.ack()
    assert sorted(order[:3]) == ["a", "b", "c"]
    if mode == "ordered":
        assert order == ["c", "a", "b", "c", "a", "b"]


def test_several_partitions_come_in_one_batch_each_in_order(api: Any) -> None:
    api.push_many("q", [(name, f"{name}{number}") for name in "abcd" for number in range(3)])
    batch = api.pop("q", max_partitions=3, max_messages=2)
    assert len(batch.claims) == 3
    for claim in batch.claims:
        assert [message.json() for message in claim.messages] == [f"{claim.partition}0", f"{claim.partition}1"]
    with pytest.raises(InvalidInput, match="3 partitions"):
        _ = batch.partition
    batch.ack()
    assert api.lag("q") == 6


@pytest.mark.parametrize("mode", MODES)
def test_what_was_purged_does_not_stand_before_what_was_pushed_since(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    for options in ({}, {"partition": "0"}):
        api.push("q", ["gone", "gone", "gone"])
        api.pop("q", "g", max_messages=1).ack()
        api.purge("q")
        api.push("q", "there")
        batch = api.pop("q", "g", **options)
        assert values(batch) == ["there"]
        batch.ack()


@pytest.mark.parametrize("mode", MODES)
def test_max_messages_limits_a_batch_across_segments(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    for number in range(5):
        api.push("q", [2 * number, 2 * number + 1])
    sizes = []
    while (batch := api.pop("q", "g", max_messages=3)) is not None:
        sizes.append(len(batch))
        batch.ack()
    assert max(sizes) == 3
    assert sum(sizes) == 10


@pytest.mark.parametrize("mode", MODES)
def test_max_bytes_ends_a_batch_and_always_leaves_one_message(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    for _ in range(4):
        api.push("q", b"x" * 1000)
    assert len(api.pop("q", "g", max_bytes=1)) == 1
    batch = api.pop("q", "g", max_bytes=1500) if mode == "shared" else None
    assert batch is None or len(batch) == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_the_limits_left_over_comes_next_and_nothing_twice(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", list(range(50)))
    found: list[int] = []
    for size in (1, 7, 3, 20, 5, 2, 40, 40, 40, 40, 40, 40, 40):
        if (batch := api.pop("q", "g", max_messages=size)) is not None:
            found += values(batch)
            batch.ack()
    assert sorted(found) == list(range(50))
    assert api.lag("q", "g") == 0
    if mode == "ordered":
        assert found == sorted(found)


@pytest.mark.parametrize("mode", MODES)
def test_the_lease_is_the_calls_then_the_groups_then_the_queues_then_the_default(api: Any, mode: str) -> None:
    api.push_many("q", [(name, 1) for name in "abcd"])
    api.create_group("q", "g", mode=mode)

    def seconds(**options: Any) -> int:
        return round(lease_seconds(api.pop("q", "g", **options)) / 10) * 10

    assert seconds() == 300
    api.configure("q", lease_time=200)
    assert seconds() == 200
    api.configure_group("q", "g", lease_time=100)
    assert seconds() == 100
    assert seconds(lease=50) == 50


@pytest.mark.parametrize("mode", MODES)
def test_waiting_pops_get_what_is_pushed_meanwhile(open_api: Callable[..., Any], mode: str) -> None:
    api = open_api()
    api.create_group("q", "g", mode=mode)
    api.push("q", 1)
    api.pop("q", "g", lease=0.05)
    again = api.pop("q", "g", wait=SOON)
    assert (values(again), again.messages[0].attempt) == ([1], 2)


def test_a_wait_that_is_in_vain_ends_with_none(api: Any) -> None:
    began = datetime.now(UTC)
    assert api.pop("q", wait=0.2) is None
    assert timedelta(seconds=0.2) <= datetime.now(UTC) - began < timedelta(seconds=10)


@pytest.mark.parametrize("mode", MODES)
def test_auto_ack_delivers_at_most_once(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", list(range(10)))
    batch = api.pop("q", "g", max_messages=4, auto_ack=True)
    assert batch.settled
    assert len(batch) == 4
    assert (api.lag("q", "g"), api.claims("q")) == (6, [])
    with batch:
        pass
    assert sorted(values(batch) + drain(api, "q", "g", auto_ack=True)) == list(range(10))
    assert api.lag("q", "g") == 0


def test_auto_ack_leaves_the_attempts_of_what_failed_with_it(api: Any) -> None:
    api.create("q", backoff_initial=0, max_attempts=2)
    api.push("q", [1, 2])
    api.pop("q").nack(reason="once")
    assert values(api.pop("q", auto_ack=True)) == [1]
    batch = api.pop("q")
    assert (values(batch), batch.messages[0].attempt) == ([2], 2)
    batch.ack()
    api.push("q", 3)
    batch = api.pop("q")
    assert (values(batch), batch.messages[0].attempt) == ([3], 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_group_reads_all_there_is_unless_said_otherwise(api: Any, mode: str) -> None:
    api.push_many("q", [("a", 1), ("b", 2)])
    assert api.pop("q", "g", mode=mode) is not None
    assert api.lag("q", "g") == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_new_subscription_begins_with_the_next_push(api: Any, mode: str) -> None:
    api.push_many("q", [("a", "old"), ("b", "old")])
    assert api.pop("q", "g", mode=mode, subscription="new") is None
    assert api.lag("q", "g") == 0
    api.push("q", "new", partition="a")
    api.push("q", "first", partition="c")
    assert sorted(drain(api, "q", "g")) == ["first", "new"]


@pytest.mark.parametrize("mode", MODES)
def test_a_subscription_from_a_time_begins_there(api: Any, mode: str) -> None:
    api.push("q", "old", partition="quiet")
    api.push("q", ["old", "old"], partition="p")
    moment = api.push("q", "then", partition="p").timestamp
    api.push("q", "later", partition="p")
    assert sorted(drain(api, "q", "g", mode=mode, subscription=moment)) == ["later", "then"]
    api.push_many("q", [("quiet", "more"), ("fresh", "made")])
    assert sorted(drain(api, "q", "g")) == ["made", "more"]


def test_a_subscription_from_a_time_to_come_begins_then(api: Any) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert api.pop("q", "g", subscription=tomorrow) is None
    for number in range(3):
        api.push("q", number)
        assert api.pop("q", "g") is None
    assert api.lag("q", "g") == 0


def test_whoever_comes_later_takes_a_group_as_it_is(open_api: Callable[..., Any]) -> None:
    first, later = open_api(), open_api()
    first.push("q", 1)
    first.pop("q", "g", mode="shared", subscription="new")
    assert later.pop("q", "g", mode="ordered", subscription="all") is None
    assert [(group.mode, group.subscription) for group in later.groups("q")] == [("shared", "new")]


def test_a_group_that_was_deleted_comes_back_as_asked_for(api: Any) -> None:
    for _ in range(2):
        api.pop("q", "g", mode="shared")
        assert api.groups("q")[0].mode == "shared"
        api.delete_group("q", "g")
    api.pop("q", "g", mode="shared")
    api.delete("q")
    api.pop("q", "g", mode="shared")
    assert api.groups("q")[0].mode == "shared"


def test_bad_input_is_refused_and_changes_nothing(api: Any, unchanged: Unchanged) -> None:
    nonsense: list[dict[str, Any]] = [
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_bytes": 0},
        {"max_partitions": 0},
        {"lease": 0},
        {"lease": -1.0},
        {"mode": "both"},
        {"subscription": "yesterday"},
        {"subscription": datetime(2026, 1, 1)},
        {"group": ""},
        {"group": "~lane"},
        {"group": 7},
        {"partition": 7.5},
    ]
    api.push("q", 1)
    for options in nonsense:
        with unchanged(), pytest.raises(InvalidInput):
            api.pop("q", **{"group": "g", **options})
        assert api.groups() == []
