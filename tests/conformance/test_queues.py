"""Creating, describing, configuring, purging and deleting."""

from typing import Any

import pytest

from penstock import NotFound, QueuePaused, RateLimited

DEFAULTS = {
    "lease_time": 300,
    "max_attempts": 5,
    "backoff_initial": 1,
    "backoff_factor": 2,
    "backoff_max": 300,
    "delay": 0,
    "quiet_period": 0,
    "durable_acks": True,
    "breaker_errors": 50,
    "breaker_rate": 0,
    "breaker_window": 60,
    "breaker_pause": 30,
    "breaker_pause_max": 600,
    "metrics_retention": 604800,
    "retention_time": None,
    "retention_bytes": None,
    "retention_rule": "keep_until_consumed",
    "max_message_bytes": 1 << 20,
    "compression": "auto",
    "keep_until_archived": "auto",
    "spread": 1,
    "dedupe_window": 0,
    "push_paused": False,
    "push_rate_limit": None,
    "push_rate_period": 1,
    "push_rate_burst": None,
}


def test_a_new_queue_has_the_default_settings(api: Any) -> None:
    api.create("q")
    assert api.describe("q").settings == DEFAULTS
    assert api.describe("q").config == {}


def test_a_push_creates_a_queue_with_the_same_settings(api: Any) -> None:
    api.push("q", 1)
    assert api.describe("q").settings == DEFAULTS


def test_what_is_set_holds_and_the_rest_keeps_its_default(api: Any) -> None:
    api.create("q", description="orders", lease_time=0.5, spread=4, retention_time=3600)
    info = api.describe("q")
    assert info.description == "orders"
    assert info.config == {"lease_time": 0.5, "spread": 4, "retention_time": 3600}
    assert info.settings == {**DEFAULTS, **info.config}


def test_configure_changes_what_is_named_and_returns_what_holds(api: Any) -> None:
    api.create("q", spread=4, lease_time=10)
    assert api.configure("q", lease_time=20) == {**DEFAULTS, "spread": 4, "lease_time": 20}
    assert api.configure("q") == {**DEFAULTS, "spread": 4, "lease_time": 20}


def test_none_sets_a_setting_back_to_its_default(api: Any) -> None:
    api.create("q", spread=4, retention_bytes=100)
    assert api.configure("q", spread=None, retention_bytes=None) == DEFAULTS
    assert api.describe("q").config == {}


def test_window_buffer_is_another_name_of_quiet_period(api: Any) -> None:
    api.create("q", window_buffer=30)
    assert api.describe("q").config == {"quiet_period": 30}
    assert api.configure("q", window_buffer=None)["quiet_period"] == 0


def test_configure_creates_the_queue_on_first_use(api: Any) -> None:
    assert api.configure("new", spread=2, description="made")["spread"] == 2
    assert api.describe("new").description == "made"


def test_a_description_stays_until_it_is_changed(api: Any) -> None:
    api.create("q", description="one")
    api.configure("q", spread=2)
    assert api.describe("q").description == "one"
    api.configure("q", description="two")
    assert api.describe("q").description == "two"


def test_a_new_limit_holds_for_the_next_push(api: Any) -> None:
    api.push("q", b"x" * 100)
    api.configure("q", max_message_bytes=10)
    with pytest.raises(ValueError, match="over the limit"):
        api.push("q", b"x" * 11)
    api.configure("q", max_message_bytes=4 << 20)
    api.push("q", b"x" * (3 << 20))
    assert [len(message.value) for message in api.read("q", "0")] == [100, 3 << 20]


def test_a_new_spread_holds_for_the_next_push_of_this_client(api: Any) -> None:
    assert api.push("q", 1, key="ann").partition == "0"
    api.configure("q", spread=1000)
    assert api.push("q", 1, key="ann").partition != "0"


def test_queues_and_partitions_are_listed_by_name_with_their_positions(api: Any) -> None:
    api.push("b", [1, 2], partition="y")
    api.push("b", [3], partition="x")
    api.create("a")
    assert [(q.name, q.partitions, q.messages, q.dropped) for q in api.queues()] == [("a", 0, 0, 0), ("b", 2, 3, 0)]
    assert [(p.name, p.floor, p.head, p.messages) for p in api.partitions("b")] == [("x", 0, 1, 1), ("y", 0, 2, 2)]
    assert api.partitions("b", "y") == [api.partitions("b")[1]]
    assert api.describe("b").newest_at == api.read("b", "x")[-1].timestamp
    assert api.describe("a").newest_at is None


def test_a_partition_can_be_made_and_given_a_priority(api: Any) -> None:
    api.create("q", partition="p", priority=-3)
    assert [(p.name, p.priority, p.head) for p in api.partitions("q")] == [("p", -3, 0)]
    api.configure("q", partition="p", priority=7)
    api.configure("q", partition="new", priority=1)
    assert {p.name: p.priority for p in api.partitions("q")} == {"p": 7, "new": 1}
    api.configure("q", partition="p")
    assert api.partitions("q", "p")[0].priority == 7


def test_purging_drops_messages_and_keeps_the_offsets(api: Any) -> None:
    api.push_many("q", [("a", 1), ("a", 2), ("b", 3)])
    api.push("q", 4, partition="a")
    assert api.purge("q", partition="a") == 3
    assert api.read("q", "a") == []
    assert api.purge("q") == 1
    assert api.purge("q") == 0
    assert (api.describe("q").messages, api.describe("q").dropped) == (0, 4)
    assert api.push("q", 5, partition="a").first_offset == 3
    (message,) = api.read("q", "a")
    assert (message.offset, message.json()) == (3, 5)


def test_a_deleted_partition_begins_anew(api: Any) -> None:
    old = api.push("q", [1, 2], partition="p")
    api.push("q", 3, partition="other")
    assert api.delete("q", partition="p") == 2
    assert [p.name for p in api.partitions("q")] == ["other"]
    new = api.push("q", 9, partition="p")
    assert (new.first_offset, new.partition_id != old.partition_id) == (0, True)
    with pytest.raises(NotFound):
        api.get(old.ids[0])


def test_a_deleted_queue_is_gone_with_its_settings(api: Any) -> None:
    api.create("q", spread=1, lease_time=9)
    api.push_many("q", [("a", 1), ("b", 2)])
    assert api.delete("q") == 2
    assert api.queues() == []
    api.push("q", 1)
    assert api.describe("q").settings == DEFAULTS


def test_maintenance_says_what_it_did(api: Any) -> None:
    for number in range(6):
        api.push("q", number)
    (done,) = list(api.maintain(min_segments=3))
    assert (done.visited, done.merged_segments, done.dropped_messages, done.next_partition) == (1, 5, 0, None)


def test_a_paused_queue_takes_no_pushes_until_it_is_resumed(api: Any) -> None:
    api.push("q", 1)
    assert [api.pause_queue("q"), api.pause_queue("q")] == [True, False]
    with pytest.raises(QueuePaused, match=r'pushes to queue "q" are paused'):
        api.push("q", 2)
    assert api.describe("q").settings["push_paused"] is True
    assert api.pop("q").messages[0].json() == 1
    assert [api.resume_queue("q"), api.resume_queue("q")] == [True, False]
    api.push("q", 2)
    assert api.describe("q").messages == 2
    with pytest.raises(NotFound):
        api.pause_queue("nope")


def test_a_push_over_the_rate_of_its_queue_is_refused_with_the_time_to_try_again(api: Any) -> None:
    api.create("q", push_rate_limit=2, push_rate_period=3600)
    api.push("q", [1, 2])
    with pytest.raises(RateLimited, match=r"takes 2 messages in 3600 seconds") as caught:
        api.push("q", 3)
    assert 1700 < caught.value.retry_after <= 1800
    assert api.describe("q").messages == 2
