"""Claiming ahead: the same order, nothing lost, nothing repeated, and what was not handed out is given back."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import InvalidInput, LeaseLost

from .groups import MODES, drain, mode_for, until, values

pytestmark = pytest.mark.usefixtures("sound")


def fill(api: Any, mode: str, partitions: int = 6, each: int = 3, **settings: Any) -> list[tuple[str, int]]:
    """Push messages that say where they are, and return all of them."""
    api.create_group("q", "g", mode=mode, **settings)
    pushed = [(f"p{partition}", number) for number in range(each) for partition in range(partitions)]
    api.push_many("q", [(partition, [partition, number]) for partition, number in pushed])
    return pushed


def lag_is(api: Any, lag: int) -> bool:
    return bool(api.lag("q", "g") == lag)


def places(batch: Any) -> list[tuple[str, int]]:
    return [(message.partition, message.offset) for message in batch.messages]


@pytest.mark.parametrize("mode", MODES)
def test_all_messages_come_once_and_in_order_within_their_partition(api: Any, mode: str) -> None:
    pushed = fill(api, mode, each=10)
    seen: list[tuple[str, int]] = []
    for batch in api.consume("q", "g", prefetch=8, max_messages=2, idle_timeout=0):
        with batch:
            seen += places(batch)
    assert sorted(seen) == sorted(pushed)
    assert (api.lag("q", "g"), api.claims("q")) == (0, [])
    if mode == "ordered":
        for name in {partition for partition, _ in seen}:
            assert [offset for partition, offset in seen if partition == name] == list(range(10))


@pytest.mark.parametrize("mode", MODES)
def test_no_more_messages_are_claimed_than_it_was_told(api: Any, mode: str) -> None:
    fill(api, mode, partitions=12, each=1)
    for batch in api.consume("q", "g", prefetch=4, max_messages=1):
        assert len(batch) == 1
        # One in hand, and up to four that wait; they are filled up again when half of them are taken.
        until(lambda: len(api.claims("q")) > 2)
        for _ in range(20):
            assert 2 < len(api.claims("q")) <= 5
        break


@pytest.mark.parametrize("mode", MODES)
def test_what_was_not_handed_out_is_given_back_and_counts_no_attempt(api: Any, mode: str) -> None:
    pushed = fill(api, mode, each=1)
    seen = []
    for batch in api.consume("q", "g", prefetch=4, max_messages=1):
        with batch:
            seen += places(batch)
        if len(seen) == 2:
            break
    until(lambda: api.claims("q") == [])
    assert api.lag("q", "g") == len(pushed) - 2
    attempts = set()
    while (rest := api.pop("q", "g")) is not None:
        attempts |= {message.attempt for message in rest.messages}
        seen += places(rest)
        rest.ack()
    assert (sorted(seen), attempts) == (sorted(pushed), {1})


def test_a_partition_of_an_ordered_group_is_not_handed_out_again_before_its_ack(api: Any) -> None:
    api.push("q", list(range(6)), partition="only")
    seen = []
    for batch in api.consume("q", "g", prefetch=4, max_messages=2, idle_timeout=0):
        assert len(api.claims("q")) == 1
        with batch:
            seen += values(batch)
    assert seen == list(range(6))


def test_who_holds_all_partitions_of_an_ordered_group_ahead_leaves_some_to_others(
    api: Any, open_api: Callable[..., Any]
) -> None:
    pushed = fill(api, "ordered", partitions=4, each=60)
    other = open_api()
    seen: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    for batch in api.consume("q", "g", prefetch=8, max_messages=1, idle_timeout=0):
        until(lambda: len(api.claims("q")) == 4 or others)
        with batch:
            seen += places(batch)
        if (left := other.pop("q", "g", max_messages=1)) is not None:
            with left:
                others.extend(places(left))
    assert sorted(seen + others) == sorted(pushed)
    assert len(others) > 4


@pytest.mark.parametrize("mode", MODES)
def test_an_ack_is_sent_while_the_next_batch_is_in_work(api: Any, mode: str) -> None:
    pushed = fill(api, mode, each=1)
    # Whether there is room for more, or nothing left to claim.
    for number, batch in enumerate(api.consume("q", "g", prefetch=2, max_messages=1, idle_timeout=0)):
        with batch:
            until(partial(lag_is, api, len(pushed) - number))
    assert api.lag("q", "g") == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_leases_of_what_waits_are_kept_alive(api: Any, mode: str) -> None:
    fill(api, mode, partitions=3, each=1)
    # Long enough for a busy machine: what expires is claimed again, in the place of another.
    for batch in api.consume("q", "g", prefetch=2, max_messages=1, lease=4.0):
        claims = {claim.lease_id: claim for claim in until(lambda: len(api.claims("q")) == 3 and api.claims("q"))}
        until(partial(all_renewed, api, claims))
        batch.ack()
        break
    until(lambda: api.claims("q") == [])
    assert api.lag("q", "g") == 2


def all_renewed(api: Any, before: dict[Any, Any]) -> bool:
    return all(claim.expires_at > before[claim.lease_id].expires_at for claim in api.claims("q"))


@pytest.mark.parametrize("mode", MODES)
def test_process_shares_what_is_claimed_ahead_between_its_workers(api: Any, mode: str) -> None:
    pushed = fill(api, mode, each=5)
    seen: list[tuple[str, int]] = []
    handled = api.process(
        "q",
        lambda message: seen.append((message.partition, message.offset)),
        group="g",
        concurrency=3,
        prefetch=6,
        max_messages=1,
        idle_timeout=0.2,
    )
    assert (handled, sorted(seen)) == (len(pushed), sorted(pushed))
    assert (api.lag("q", "g"), api.claims("q")) == (0, [])


@pytest.mark.parametrize("mode", MODES)
def test_what_fails_is_retried_and_finally_a_dead_letter(api: Any, mode: str) -> None:
    pushed = fill(api, mode, max_attempts=2, backoff_initial=0)
    failures: list[int] = []

    def handle(message: Any) -> None:
        if (message.partition, message.offset) == ("p1", 1):
            failures.append(message.attempt)
            raise ValueError("no good")

    api.process("q", handle, group="g", prefetch=8, max_messages=2, idle_timeout=0.3)
    (letter,) = api.dead_letters("q")
    assert (letter.partition, letter.offset) == ("p1", 1)
    assert (failures, api.lag("q", "g"), len(pushed)) == ([1, 2], 0, 18)


def test_a_batch_that_is_not_settled_is_given_back_when_the_next_is_asked_for(api: Any) -> None:
    api.push("q", 1)
    seen = []
    for batch in api.consume("q", "g", prefetch=10):
        seen.append((values(batch), batch.messages[0].attempt))
        if len(seen) == 3:
            batch.ack()
            break
    assert seen == [([1], 1)] * 3
    until(lambda: api.claims("q") == [])
    assert api.lag("q", "g") == 0


def test_a_lost_lease_is_given_to_on_error_and_the_loop_goes_on(api: Any) -> None:
    pushed = fill(api, mode_for(api), each=1)
    told: list[BaseException] = []
    seen = 0
    options: dict[str, Any] = {"prefetch": 1, "max_messages": 1, "idle_timeout": 0.3}
    for batch in api.consume("q", "g", on_error=lambda batch, error: told.append(error), **options):
        with batch:
            seen += 1
            if seen == 1:
                (mine,) = [claim for claim in api.claims("q") if claim.partition == batch.partition]
                assert api.release_claim(mine)
    assert [type(error) for error in told] == [LeaseLost]
    assert (seen, api.lag("q", "g")) == (len(pushed) + 1, 0)


def test_a_message_that_comes_later_ends_the_wait(api: Any, open_api: Callable[..., Any]) -> None:
    other = open_api()
    seen = []
    api.create_group("q", "g")
    other.push("q", 1)
    for batch in api.consume("q", "g", prefetch=10):
        with batch:
            seen += values(batch)
        if len(seen) == 3:
            break
        other.push("q", len(seen) + 1)
    assert seen == [1, 2, 3]


def test_a_batch_has_as_many_partitions_as_it_was_told(api: Any) -> None:
    pushed = fill(api, "ordered", each=1)
    sizes = []
    for batch in api.consume("q", "g", prefetch=6, max_messages=1, max_partitions=2, idle_timeout=0):
        with batch:
            sizes.append(len(batch.claims))
    assert (sum(sizes), max(sizes)) == (len(pushed), 2)
    assert api.lag("q", "g") == 0


def test_what_cannot_be_claimed_ahead_is_refused(api: Any) -> None:
    api.push("q", 1)
    numbers: list[Any] = [-1, 2.5, float("nan"), float("inf"), None, "5", True]
    for options, wrong in (
        *(({"prefetch": number}, f"prefetch is {number!r}") for number in numbers),
        ({"prefetch": 5, "auto_ack": True}, "auto_ack"),
        ({"prefetch": 5, "defer_acks": False}, "defer_acks"),
    ):
        with pytest.raises(InvalidInput, match=wrong):
            next(iter(api.consume("q", "g", **options)))
        with pytest.raises(InvalidInput, match=wrong):
            api.process("q", print, group="g", **options)
    assert drain(api, "q", "g") == [1]


def test_what_the_feeder_cannot_do_is_raised_in_the_loop(api: Any) -> None:
    api.push("q", 1)
    with pytest.raises(InvalidInput):
        next(iter(api.consume("q", "g", prefetch=5, mode="nonsense")))


@pytest.mark.parametrize("wrong", [1.5, math.nan, "3", None, True, 0, 1 << 31])
@pytest.mark.parametrize("name", ["max_messages", "max_partitions"])
def test_what_is_no_number_of_messages_or_partitions_is_refused_and_claims_nothing(
    api: Any, name: str, wrong: Any
) -> None:
    fill(api, "ordered")
    for take in (
        lambda: api.pop("q", "g", **{name: wrong}),
        lambda: list(api.consume("q", "g", idle_timeout=0, **{name: wrong})),
        lambda: list(api.consume("q", "g", idle_timeout=0, prefetch=2, **{name: wrong})),
    ):
        with pytest.raises(InvalidInput, match=f"{name} is .* but must be a whole number from 1 to"):
            take()
    assert api.claims("q") == []


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_auto_ack_is_true_or_false(api: Any, wrong: Any) -> None:
    fill(api, "ordered", partitions=1)
    for take in (lambda: api.pop("q", "g", auto_ack=wrong), lambda: list(api.consume("q", "g", auto_ack=wrong))):
        with pytest.raises(InvalidInput, match=r"auto_ack is .* but must be True or False"):
            take()
    assert drain(api, "q", "g")


@pytest.mark.parametrize("wrong", ["\ud800", "a\0b", 7, b"q"])
def test_a_client_goes_on_after_names_that_were_refused(api: Any, wrong: Any) -> None:
    fill(api, "ordered", partitions=1)
    for queue, group in ((wrong, "g"), ("q", wrong)):
        with pytest.raises(InvalidInput):
            list(api.consume(queue, group, idle_timeout=0))
        with pytest.raises(InvalidInput):
            api.process(queue, print, group=group, idle_timeout=0)
    # At the end of the test it is closed.
    assert drain(api, "q", "g")
