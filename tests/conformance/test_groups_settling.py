"""Ending a claim: ack, nack, renew, release, and a lease that is gone."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from penstock import InvalidInput, LeaseLost, PenstockError, Retryable

from .groups import MODES, SOON, drain, offsets, state, until, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, api: Any) -> str:
    """Group "g" of queue "q", in each mode."""
    api.create_group("q", "g", mode=request.param)
    return str(request.param)


def test_an_acknowledged_batch_is_done(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    batch = api.pop("q", "g", max_messages=2)
    assert api.lag("q", "g") == 3
    batch.ack()
    assert batch.settled
    assert api.lag("q", "g") == 1
    assert drain(api, "q", "g") == [3]


def test_a_batch_is_settled_only_once(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    batch = api.pop("q", "g")
    batch.ack()
    for settle in (batch.ack, batch.nack, batch.release, batch.renew):
        with pytest.raises(PenstockError, match="settled already"):
            settle()
    assert api.lag("q", "g") == 0


def test_acknowledging_up_to_an_offset_keeps_the_rest_claimed(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    batch = api.pop("q", "g")
    batch.ack(up_to=0)
    batch.ack(up_to=3)
    assert api.lag("q", "g") == 2
    assert api.pop("q", "g") is None
    assert [(claim.start, claim.stop) for claim in api.claims("q", "g")] == [(3, 5)]
    batch.release()
    assert drain(api, "q", "g") == [3, 4]


def test_acknowledging_up_to_the_end_settles_the_batch(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    with api.pop("q", "g") as batch:
        for message in batch.messages:
            batch.ack(up_to=message.offset + 1)
    assert batch.settled
    assert api.lag("q", "g") == 0


def test_acknowledging_past_the_claim_is_refused_and_changes_nothing(api: Any, mode: str) -> None:
    api.push("q", list(range(6)))
    batch = api.pop("q", "g", max_messages=3)
    for up_to in (-1, 4, 100):
        with pytest.raises(InvalidInput, match="0 to 3"):
            batch.ack(up_to=up_to)
    assert api.lag("q", "g") == 6
    batch.ack()
    assert api.lag("q", "g") == 3


def test_many_partitions_are_acknowledged_at_once(api: Any, mode: str) -> None:
    api.push_many("q", [(f"p{number}", number) for number in range(20)])
    batch = api.pop("q", "g", max_partitions=20)
    with pytest.raises(InvalidInput, match="20 partitions"):
        batch.ack(up_to=1)
    batch.ack()
    assert api.lag("q", "g") == 0


def test_messages_of_a_shared_group_are_acknowledged_one_by_one(api: Any) -> None:
    api.create_group("q", "g", mode="shared")
    api.push("q", list(range(6)))
    with api.pop("q", "g") as batch:
        for index in (3, 0, 5):
            batch.ack_message(batch.messages[index])
        assert api.lag("q", "g") == 3
        assert sorted((claim.start, claim.stop) for claim in api.claims("q", "g")) == [(1, 3), (4, 5)]
        for index in (1, 2, 4):
            batch.ack_message(batch.messages[index])
    assert batch.settled
    assert api.lag("q", "g") == 0


def test_the_rest_of_a_batch_is_settled_after_all_messages_of_a_partition_were_one_by_one(api: Any) -> None:
    api.create_group("q", "g", mode="shared")
    api.push_many("q", [("a", 1), ("a", 2), ("b", 3)])
    batch = api.pop("q", "g", max_partitions=2)
    for message in batch.messages:
        if message.partition == "a":
            batch.ack_message(message)
    assert api.lag("q", "g") == 1
    batch.renew(60)
    batch.ack()
    assert api.lag("q", "g") == 0


def test_an_ordered_group_refuses_to_acknowledge_one_message(api: Any) -> None:
    api.push("q", [1, 2])
    batch = api.pop("q", "g")
    with pytest.raises(InvalidInput, match="in order"):
        batch.ack_message(batch.messages[1])
    assert api.lag("q", "g") == 2
    batch.ack()


def test_a_message_of_another_batch_is_refused(api: Any) -> None:
    api.create_group("q", "g", mode="shared")
    api.push("q", [1, 2])
    one, two = api.pop("q", "g", max_messages=1), api.pop("q", "g", max_messages=1)
    with pytest.raises(InvalidInput, match="not in this batch"):
        one.ack_message(two.messages[0])
    assert api.lag("q", "g") == 2


def test_a_failed_batch_comes_again_and_counts(api: Any, mode: str) -> None:
    api.push("q", 1)
    assert api.pop("q", "g").nack(delay=0) == ["retry"]
    again = api.pop("q", "g")
    assert (values(again), again.messages[0].attempt) == ([1], 2)


def test_failing_at_an_offset_counts_all_before_it_as_done(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    assert api.pop("q", "g").nack(2, delay=0) == ["retry"]
    assert api.lag("q", "g") == 3
    assert sorted(drain(api, "q", "g")) == [2, 3, 4]


def test_failing_outside_the_claim_is_refused_and_changes_nothing(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    batch = api.pop("q", "g", max_messages=3)
    for offset in (-1, 3, 1000):
        with pytest.raises(InvalidInput, match="not in the claim"):
            batch.nack(offset)
    assert api.lag("q", "g") == 5
    batch.ack()
    assert sorted(drain(api, "q", "g")) == [3, 4]


def test_a_negative_delay_is_refused_and_changes_nothing(api: Any, mode: str) -> None:
    api.push("q", 1)
    batch = api.pop("q", "g")
    with pytest.raises(InvalidInput, match="must be a number of seconds from 0"):
        batch.nack(delay=-1)
    batch.ack()
    assert api.lag("q", "g") == 0


def test_a_failure_waits_for_the_delay_that_was_asked_for(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    api.pop("q", "g").nack(delay=3600)
    assert api.pop("q", "g") is None
    waiting = api.groups("q")[0]
    assert (waiting.lag, waiting.claimed, waiting.ready) == (3, 0, 0)
    assert waiting.waiting > 0


def test_a_failure_of_unknown_place_waits_for_the_backoff(api: Any, mode: str) -> None:
    api.configure_group("q", "g", backoff_initial=3600)
    api.push("q", [1, 2, 3])
    api.pop("q", "g").nack()
    assert api.pop("q", "g") is None


def test_the_backoff_doubles_up_to_its_limit(api: Any, dsn: str) -> None:
    api.create_group("q", "g", backoff_initial=1, backoff_factor=2, backoff_max=10, max_attempts=20)
    api.push("q", 1)
    waits = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(6):
            api.pop("q", "g", wait=SOON).nack(reason="not yet")
            newest = api.history("q", "g", "0", limit=1)[0]
            waits.append(round((newest.due_at - newest.at).total_seconds(), 1))
            connection.execute("UPDATE penstock.journal SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_backoff_that_would_be_astronomic_is_the_limit(api: Any, dsn: str, mode: str) -> None:
    api.configure_group("q", "g", backoff_factor=100, backoff_max=0, max_attempts=32767)
    api.push("q", 1)
    api.pop("q", "g").nack()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE penstock.journal SET attempt = 30000 WHERE state = 'r'")
        connection.execute("UPDATE penstock.ready SET attempt = 30000")
    assert api.pop("q", "g").nack() == ["retry"]
    assert api.pop("q", "g").messages[0].attempt == 30002


def test_renewing_extends_the_lease_from_now(api: Any, mode: str) -> None:
    api.push_many("q", [("a", 1), ("b", 2)])
    batch = api.pop("q", "g", max_partitions=2, lease=5)
    before = [claim.lease_until for claim in batch.claims]
    batch.renew(1000)
    after = [claim.lease_until for claim in batch.claims]
    assert all(new - old > timedelta(seconds=900) for old, new in zip(before, after, strict=True))
    assert sorted(claim.expires_at for claim in api.claims("q")) == sorted(after)
    api.configure_group("q", "g", lease_time=50)
    batch.renew()
    assert all(claim.lease_until - datetime.now(UTC) < timedelta(seconds=51) for claim in batch.claims)
    with pytest.raises(InvalidInput, match="must be more than 0"):
        batch.renew(0)
    batch.ack()


def test_a_batch_that_is_given_back_comes_at_once_and_does_not_count(api: Any, mode: str) -> None:
    api.push("q", [1, 2])
    for _ in range(10):
        batch = api.pop("q", "g", max_messages=2)
        assert [message.attempt for message in batch.messages] == [1] * len(batch)
        batch.release()
    assert api.lag("q", "g") == 2
    assert api.dead_letters("q") == []


def test_giving_back_what_was_acknowledged_in_part_keeps_that_part(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    batch = api.pop("q", "g")
    batch.ack(up_to=1)
    batch.release()
    again = api.pop("q", "g")
    assert (offsets(again), again.messages[0].attempt) == ([1, 2], 1)


def test_an_expired_lease_changes_nothing_and_says_so(api: Any, mode: str) -> None:
    for how in ("ack", "nack", "renew"):
        api.push("q", [1, 2])
        batch = api.pop("q", "g", lease=0.001)
        until(lambda: batch.claims[0].lease_until < datetime.now(UTC))  # noqa: B023
        with pytest.raises(LeaseLost, match="delivered again"):
            getattr(batch, how)()
        assert api.lag("q", "g") == 2
        again = api.pop("q", "g", wait=SOON)
        again.ack()
        assert sorted(values(again) + drain(api, "q", "g")) == [1, 2]


@pytest.mark.parametrize("how", ["ack", "nack", "renew"])
def test_a_foreign_lease_changes_nothing_and_says_so(api: Any, mode: str, how: str) -> None:
    api.push("q", [1, 2])
    batch = api.pop("q", "g")
    (claim,) = batch.claims
    claim.lease_id, real = uuid4(), claim.lease_id
    with pytest.raises(LeaseLost):
        getattr(batch, how)()
    (seen,) = api.claims("q", "g")
    assert (seen.lease_id, seen.start, seen.stop) == (real, 0, 2)


def test_one_lost_lease_does_not_keep_the_other_claims_of_a_batch(api: Any, mode: str) -> None:
    api.push_many("q", [("a", 1), ("b", 2), ("c", 3)])
    batch = api.pop("q", "g", max_partitions=3)
    lost = min(api.claims("q", "g"), key=lambda claim: batch.claims[0].partition != claim.partition)
    api.release_claim(lost)
    with pytest.raises(LeaseLost, match=lost.partition):
        batch.nack(delay=0)
    assert api.claims("q", "g") == []
    attempts = {
        batch.messages[0].partition: batch.messages[0].attempt for batch in iter(lambda: api.pop("q", "g"), None)
    }
    assert attempts == {name: 1 if name == lost.partition else 2 for name in "abc"}


def test_an_acknowledgement_that_could_not_be_written_may_be_tried_again(
    open_api: Callable[..., Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c penstock.lock_timeout=50ms")
    api = open_api()
    for mode, table in (("ordered", b"journal"), ("shared", b"claims")):
        api.create_group("q", mode, mode=mode)
        api.push("q", 1, partition=mode)
        batch = api.pop("q", mode, partition=mode)
        with psycopg.connect(dsn) as blocker:
            blocker.execute(b"SELECT 1 FROM penstock." + table + b" FOR UPDATE")
            with pytest.raises(Retryable):
                batch.ack()
        assert not batch.settled
        batch.ack()
        assert api.claims("q", mode) == []


def test_the_state_goes_back_to_idle_when_all_is_done(api: Any) -> None:
    api.push("q", 1)
    assert drain(api, "q", "g") == [1]
    until(lambda: api.sweep() and state(api, "q", "g", "0") == ("idle", 1, 1))
