"""Every delivery counts, a lease that expired included, and only the message that fails ever dies."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from .groups import SOON, drain, mode_for, offsets, values

pytestmark = pytest.mark.usefixtures("sound")
Fail = Callable[[Any, int], Any]


@pytest.fixture
def mode(api: Any) -> str:
    """Each mode, with one kind of client."""
    return mode_for(api)


def die(batch: Any) -> None:
    """End like a worker that was killed: the lease runs out, here within a millisecond."""
    batch.renew(0.001)


FAILURES: dict[str, Fail] = {
    "at a known offset": lambda batch, offset: batch.nack(offset, reason="poison"),
    "at an unknown offset": lambda batch, offset: batch.nack(reason="poison"),
    "by an expired lease": lambda batch, offset: die(batch),
}


def work(api: Any, queue: str, poison: set[int], fail: Fail) -> tuple[list[int], Counter[int]]:
    """Consume and fail at some offsets until nothing is left; return what was done, and the deliveries of each."""
    done: list[int] = []
    deliveries: Counter[int] = Counter()
    while api.lag(queue, "g"):
        if (batch := api.pop(queue, "g")) is None:
            continue
        bad = next((offset for offset in offsets(batch) if offset in poison), None)
        # Where it is known which one failed, those behind it were not reached.
        reached = bad if fail is FAILURES["at a known offset"] else None
        deliveries.update(offset for offset in offsets(batch) if reached is None or offset <= reached)
        if bad is None:
            done += offsets(batch)
            batch.ack()
        else:
            if reached is not None:
                done += [offset for offset in offsets(batch) if offset < bad]
            fail(batch, bad)
    return done, deliveries


@pytest.mark.parametrize("how", FAILURES)
def test_only_the_failing_messages_die_and_their_neighbours_survive(api: Any, mode: str, how: str) -> None:
    for max_attempts, poison in ((1, {0}), (1, {2, 3}), (2, {2}), (2, {0, 4}), (5, {4}), (5, {1, 2})):
        queue = f"{max_attempts} {poison}"
        api.create_group(queue, "g", mode=mode, max_attempts=max_attempts, backoff_initial=0)
        api.push(queue, list(range(5)))
        done, deliveries = work(api, queue, poison, FAILURES[how])
        assert sorted(done) == sorted(set(range(5)) - poison)
        if mode == "ordered":
            assert done == sorted(done)
        letters = api.dead_letters(queue, "g")
        assert sorted(letter.offset for letter in letters) == sorted(poison)
        for letter in letters:
            # Where the claim did not say which one failed, each comes once more, alone, before it is judged.
            assert max_attempts <= deliveries[letter.offset] <= max_attempts + 1
            assert letter.attempts == deliveries[letter.offset]


def test_a_lone_message_is_delivered_exactly_as_often_as_the_limit_says(api: Any, mode: str) -> None:
    for limit in (1, 2, 5):
        queue = f"at most {limit}"
        api.create_group(queue, "g", mode=mode, max_attempts=limit, backoff_initial=0)
        api.push(queue, "bad")
        seen = []
        while (batch := api.pop(queue, "g")) is not None:
            seen.append(batch.messages[0].attempt)
            batch.nack()
        assert seen == list(range(1, limit + 1))
        assert [letter.attempts for letter in api.dead_letters(queue)] == [limit]


def test_an_expired_lease_counts_like_a_failure(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=3)
    api.push("q", "kills its worker")
    attempts = []
    while api.lag("q", "g"):
        batch = api.pop("q", "g", lease=0.02, wait=0.1)
        if batch is not None:
            attempts += [message.attempt for message in batch.messages]
    assert attempts == [1, 2, 3]
    (letter,) = api.dead_letters("q")
    assert (letter.reason, letter.last_error, letter.attempts) == ("lease expired", "the lease expired", 3)


def test_after_a_failure_the_claim_narrows_until_it_is_past(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, backoff_initial=0)
    api.push("q", list(range(4)))
    api.pop("q", "g", max_messages=3).nack()
    sizes = []
    while (batch := api.pop("q", "g", max_messages=3)) is not None:
        sizes.append((offsets(batch), batch.messages[0].attempt))
        batch.ack()
    assert sorted(sizes) == [([0], 2), ([1], 2), ([2], 2), ([3], 1)]


def test_a_message_that_failed_alone_comes_alone_when_others_have_joined_it(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, backoff_initial=0)
    api.push("q", "failed")
    api.pop("q", "g").nack()
    api.push("q", ["fresh", "fresh"])
    found = []
    while (batch := api.pop("q", "g")) is not None:
        found.append((values(batch), batch.messages[0].attempt))
        batch.ack()
    assert sorted(found) == [(["failed"], 2), (["fresh", "fresh"], 1)]


def test_a_fresh_message_has_all_its_attempts_whatever_failed_before_it(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=3, backoff_initial=0)
    api.push("q", "first")
    for _ in range(2):
        api.pop("q", "g").nack()
    api.push("q", "second")
    done, deliveries = work(api, "q", {0, 1}, FAILURES["at a known offset"])
    assert done == []
    assert deliveries[1] == 3
    assert [(letter.offset, letter.attempts) for letter in api.dead_letters("q")] == [(0, 3), (1, 3)]


def test_attempts_of_a_message_end_with_it(api: Any) -> None:
    api.create_group("q", "g", backoff_initial=0)
    api.push("q", [1, 2])
    api.pop("q", "g", max_messages=1).nack(error="of the first")
    api.pop("q", "g").ack()
    batch = api.pop("q", "g")
    assert (values(batch), batch.messages[0].attempt) == ([2], 1)
    assert api.history("q", "g", "0", limit=1)[0].error is None


def test_what_purging_took_away_leaves_attempts_and_errors_to_nobody(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=2, backoff_initial=0)
    api.push("q", "gone")
    api.pop("q", "g").nack(error="of the first")
    api.purge("q")
    api.push("q", "next")
    for attempt in (1, 2):
        batch = api.pop("q", "g")
        assert (values(batch), batch.messages[0].attempt) == (["next"], attempt)
        batch.nack(error="of the next")
    (letter,) = api.dead_letters("q")
    assert (letter.first_error, letter.attempts) == ("of the next", 2)
    assert drain(api, "q", "g") == []


def test_attempts_survive_a_worker_that_acknowledges_in_part_and_dies(api: Any) -> None:
    api.create_group("q", "g", max_attempts=2)
    api.push("q", list(range(4)))
    batch = api.pop("q", "g")
    batch.ack(up_to=2)
    die(batch)
    again = api.pop("q", "g", wait=SOON)
    assert (offsets(again), again.messages[0].attempt) == ([2], 2)
    die(again)
    assert offsets(api.pop("q", "g", wait=SOON)) == [3]
    assert [letter.offset for letter in api.dead_letters("q")] == [2]


def test_a_limit_that_is_lowered_holds_for_the_next_failure(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, backoff_initial=0)
    api.push("q", 1)
    api.pop("q", "g").nack()
    api.configure_group("q", "g", max_attempts=1)
    assert api.pop("q", "g").nack() == ["dead letter"]


def test_a_limit_of_the_queue_holds_for_groups_without_their_own(api: Any, mode: str) -> None:
    api.create("q", max_attempts=1)
    api.create_group("q", "g", mode=mode)
    api.create_group("q", "own", mode=mode, max_attempts=2)
    api.push("q", 1)
    assert api.pop("q", "g").nack() == ["dead letter"]
    assert api.pop("q", "own").nack() == ["retry"]
