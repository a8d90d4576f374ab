"""Looking at groups and changing them: what waits, who holds what, since when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import AlreadyExists, InvalidInput, LeaseLost, NotFound

from .groups import MODES, bury, drain, mode_for, offsets, until

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def mode(api: Any) -> str:
    """Each mode, with one kind of client."""
    return mode_for(api)


def test_a_group_says_what_waits_and_what_is_held(api: Any, mode: str) -> None:
    api.create("q", lease_time=100)
    api.create_group("q", "g", mode=mode, max_attempts=1, delay=0)
    api.push("q", list(range(5)), partition="a")
    api.push("q", [5, 6], partition="b")
    bury(api, "q", "g")
    api.pop("q", "g", partition="b").nack(6 - 5)
    batch = api.pop("q", "g", partition="a", max_messages=2)
    until(lambda: api.sweep() and not api.groups("q")[0].enrolling)
    (info,) = api.groups("q")
    assert (info.queue, info.name, info.mode, info.subscription, info.enrolling) == ("q", "g", mode, "all", False)
    assert info.config == {"max_attempts": 1, "delay": 0}
    assert (info.settings["lease_time"], info.settings["max_attempts"]) == (100, 1)
    assert (info.lag, info.depth, info.dead_letters) == (4, 4 - len(batch), 2)
    assert info.claimed == 1
    assert info.created_at <= info.oldest_since <= datetime.now(UTC)
    batch.ack()
    drain(api, "q", "g")
    until(lambda: api.sweep() and api.groups("q")[0].oldest_since is None)
    assert (api.groups("q")[0].lag, api.groups("q")[0].depth, api.groups("q")[0].claimed) == (0, 0, 0)


def test_groups_are_listed_for_one_queue_or_for_all(api: Any) -> None:
    for queue, group in (("b", "y"), ("a", "z"), ("b", "x")):
        api.create_group(queue, group)
    assert [(info.queue, info.name) for info in api.groups()] == [("a", "z"), ("b", "x"), ("b", "y")]
    assert [info.name for info in api.groups("b")] == ["x", "y"]
    with pytest.raises(NotFound):
        api.groups("nope")


def test_lag_is_what_is_not_acknowledged_wherever_it_is(api: Any, mode: str) -> None:
    api.push("q", list(range(10)))
    api.create_group("q", "g", mode=mode)
    assert api.lag("q", "g") == 10
    batch = api.pop("q", "g", max_messages=4)
    assert api.lag("q", "g") == 10
    batch.ack(up_to=1)
    assert api.lag("q", "g") == 9
    batch.nack(delay=3600)
    assert api.lag("q", "g") == 9
    api.push("q", 10)
    assert api.lag("q", "g") == 10
    with pytest.raises(NotFound, match="no group"):
        api.lag("q", "nope")


def test_what_was_purged_is_no_lag_any_more(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", list(range(10)))
    held = api.pop("q", "g", max_messages=2)
    failed = api.pop("q", "g", max_messages=2) if mode == "shared" else None
    if failed is not None:
        failed.nack(delay=0)
    api.purge("q")
    assert api.lag("q", "g") == 0
    api.push("q", "next")
    assert api.lag("q", "g") == 1
    held.ack()
    assert drain(api, "q", "g") == ["next"]
    assert api.claims("q") == []


def test_claims_say_who_holds_what_the_first_to_end_at_the_front(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push_many("q", [("a", 1), ("a", 2), ("b", 3)])
    slow = api.pop("q", "g", partition="a", lease=1000)
    fast = api.pop("q", "g", partition="b", lease=10)
    api.pop("q", "other", partition="b")
    claims = api.claims("q", "g")
    assert [claim.partition for claim in claims] == ["b", "a"]
    assert [claim.lease_id for claim in claims] == [fast.claims[0].lease_id, slow.claims[0].lease_id]
    assert [(claim.start, claim.stop, claim.attempt) for claim in claims] == [(0, 1, 1), (0, 2, 1)]
    assert {claim.consumer for claim in claims} == {api.consumer_id}
    assert all(claim.shared == (mode == "shared") for claim in claims)
    assert claims[1].expires_at - claims[1].acquired_at > timedelta(seconds=900)
    slow.renew(2000)
    assert api.claims("q", "g")[1].acquired_at == claims[1].acquired_at
    assert len(api.claims()) == 3
    assert [claim.group for claim in api.claims(group="other")] == ["other"]


def test_an_operator_takes_a_claim_away(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", [1, 2])
    batch = api.pop("q", "g")
    (claim,) = api.claims("q")
    assert api.release_claim(claim)
    assert api.claims("q") == []
    assert not api.release_claim(claim)
    with pytest.raises(LeaseLost):
        batch.ack()
    again = api.pop("q", "g")
    assert (offsets(again), again.messages[0].attempt) == ([0, 1], 1)


def test_history_tells_the_life_of_a_partition_newest_first(api: Any) -> None:
    api.create_group("q", "g", backoff_initial=100)
    api.push("q", [1, 2], partition="p")
    batch = api.pop("q", "g", max_messages=1)
    batch.renew()
    batch.nack(reason="bad", error="what went wrong")
    told = api.history("q", "g", "p")
    assert [step.state for step in told] == ["timed", "claimed", "claimed", "ready"]
    assert [step.version for step in told] == [4, 3, 2, 1]
    assert (told[0].error, told[0].attempt, told[0].committed) == ("what went wrong", 1, 0)
    assert (told[1].consumer, told[1].lease_id, told[1].claimed_to) == (api.consumer_id, batch.claims[0].lease_id, 1)
    assert api.history("q", "g", "p", limit=1) == told[:1]
    with pytest.raises(NotFound):
        api.history("q", "g", "nope")


def test_what_does_not_exist_has_no_history(api: Any) -> None:
    api.create("q", partition="p")
    api.create_group("q", "g")
    for names in (("nope", "g", "p"), ("q", "nope", "p"), ("q", "g", "nope")):
        with pytest.raises(NotFound):
            api.history(*names)
    assert api.history("q", "g", "p") == []


def test_create_group_makes_one_with_all_there_is_to_say(api: Any) -> None:
    moment = datetime.now(UTC)
    api.create_group("q", "g", mode="shared", subscription=moment, lease_time=9, window_buffer=0.5, delay=None)
    (info,) = api.groups("q")
    assert (info.mode, info.subscription) == ("shared", "time")
    assert info.config == {"lease_time": 9, "quiet_period": 0.5}
    with pytest.raises(AlreadyExists, match="configure_group"):
        api.create_group("q", "g")


def test_a_group_that_makes_no_sense_is_refused_and_changes_nothing(api: Any) -> None:
    nonsense: list[dict[str, Any]] = [
        {"lease_time": 0},
        {"lease_time": "long"},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"backoff_factor": 0.5},
        {"retention_time": 5},
        {"spread": 2},
        {"colour": "red"},
        {"mode": "both"},
        {"subscription": "old"},
        {"subscription": "time"},
        {"quiet_period": 1, "window_buffer": 1},
    ]
    for bad in nonsense:
        with pytest.raises(InvalidInput):
            api.create_group("q", "g", **bad)
        assert (api.queues(), api.groups()) == ([], [])
    api.create_group("q", "g", lease_time=7)
    before = api.groups()
    for bad in nonsense:
        for group in ("g", "unborn"):
            with pytest.raises(InvalidInput):
                api.configure_group("q", group, **bad)
        assert api.groups() == before


def test_configure_group_overrides_the_queue_and_goes_back_to_it(api: Any) -> None:
    api.create("q", lease_time=50)
    settings = api.configure_group("q", "g", lease_time=5, window_buffer=1)
    assert (settings["lease_time"], settings["quiet_period"], settings["max_attempts"]) == (5, 1, 5)
    assert [info.name for info in api.groups("q")] == ["g"]
    assert api.configure_group("q", "g", lease_time=None)["lease_time"] == 50
    assert api.groups("q")[0].config == {"quiet_period": 1}


def test_a_deleted_group_is_gone_with_all_it_had(api: Any, mode: str) -> None:
    api.create("q", max_attempts=1)
    api.create_group("q", "g", mode=mode)
    api.push("q", list(range(6)))
    bury(api, "q", "g")
    bury(api, "q", "g")
    api.redrive("q", ids=[api.dead_letters("q")[0].dead_letter_id])
    batch = api.pop("q", "g", partition="0", max_messages=2)
    api.delete_group("q", "g")
    assert (api.groups("q"), api.dead_letters("q"), api.claims()) == ([], [], [])
    with pytest.raises(LeaseLost):
        batch.ack()
    with pytest.raises(NotFound):
        api.delete_group("q", "g")
    assert drain(api, "q", "g") == list(range(6))


def test_a_deleted_partition_leaves_its_groups_without_a_trace(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push_many("q", [("a", 1), ("a", 2), ("b", 3)])
    batch = api.pop("q", "g", partition="a", max_messages=1)
    api.delete("q", partition="a")
    assert (api.lag("q", "g"), api.claims()) == (1, [])
    with pytest.raises(LeaseLost):
        batch.ack()
    api.push("q", "anew", partition="a")
    assert sorted(map(str, drain(api, "q", "g"))) == ["3", "anew"]


def test_resync_finds_nothing_to_repair_where_nothing_is_broken(api: Any) -> None:
    for mode in MODES:
        api.create_group("q", mode, mode=mode)
    api.push_many("q", [("a", 1), ("b", 2)])
    api.pop("q", "ordered")
    api.pop("q", "shared")
    assert api.resync() == 0
    assert [check.violations for check in api.verify()] == [0] * len(api.verify())


def test_a_paused_group_gets_nothing_until_it_is_resumed(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", [1, 2, 3])
    assert [api.pause_group("q", "g"), api.pause_group("q", "g")] == [True, False]
    assert api.pop("q", "g", wait=0.01) is None
    (info,) = api.groups("q")
    assert (info.paused, info.held_until, info.lag, info.settings["paused"]) == (True, None, 3, True)
    assert [api.resume_group("q", "g"), api.resume_group("q", "g")] == [True, False]
    assert sorted(drain(api, "q", "g")) == [1, 2, 3]
    with pytest.raises(NotFound):
        api.pause_group("q", "other")
    with pytest.raises(NotFound):
        api.resume_group("nope")


def test_a_group_that_conflates_has_an_effective_lag(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, conflate=True)
    api.push("q", list(range(10)), partition="a")
    api.push("q", list(range(5)), partition="b")
    (info,) = api.groups("q")
    assert (info.lag, info.effective_lag) == (15, 2)
    assert sorted(drain(api, "q", "g")) == [4, 9]


def test_limits_of_a_group_are_settings(api: Any) -> None:
    settings = api.configure_group("q", "g", rate_limit=5, rate_by="field:customer.id", concurrency_limit=2)
    assert (settings["rate_period"], settings["rate_burst"], settings["concurrency_by"]) == (1, None, "partition")
    assert settings["rate_by"] == "field:customer.id"
    with pytest.raises(InvalidInput, match=r"setting rate_by is .colour. but must be partition, key, group"):
        api.configure_group("q", "g", rate_by="colour")
    assert api.groups("q")[0].config == {"rate_limit": 5, "rate_by": "field:customer.id", "concurrency_limit": 2}


def test_a_rate_by_key_holds_up_no_other_key(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, rate_limit=1, rate_period=3600, rate_by="key")
    for partition, key in (("a", "x"), ("b", "x"), ("c", "y")):
        api.push("q", 1, partition=partition, key=key)
    came = [api.pop("q", "g") for _ in range(3)]
    assert sorted(batch.messages[0].key for batch in came if batch) == ["x", "y"]
    for batch in filter(None, came):
        batch.ack()
