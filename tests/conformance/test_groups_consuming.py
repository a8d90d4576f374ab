"""Consuming in a loop: batches that settle themselves, leases that are kept alive, handlers that fail."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from databases import Connection
from penstock import InvalidInput, LeaseLost

from .groups import MODES, drain, until, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.mark.parametrize("mode", MODES)
def test_a_with_block_acknowledges_at_its_end(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    found = []
    for batch in api.consume("q", "g", mode=mode, max_messages=2, idle_timeout=0):
        with batch:
            found += values(batch)
    assert sorted(found) == list(range(5))
    assert api.lag("q", "g") == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_a_with_block_fails_the_batch_and_passes_on(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=1)
    api.push("q", 1)
    with pytest.raises(RuntimeError, match="no good"), api.pop("q", "g"):
        raise RuntimeError("no good")
    (letter,) = api.dead_letters("q")
    assert (letter.reason, letter.last_error) == ("RuntimeError", "RuntimeError: no good")


@pytest.mark.parametrize("mode", MODES)
def test_the_programs_end_in_a_with_block_gives_the_batch_back(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", [1, 2])
    for error in (KeyboardInterrupt, SystemExit):
        batch = api.pop("q", "g")
        with suppress(error), batch:
            raise error
        assert api.claims("q") == []
    again = api.pop("q", "g")
    assert (values(again), again.messages[0].attempt) == ([1, 2], 1)


def test_an_error_is_not_hidden_by_a_lease_that_is_gone(api: Any) -> None:
    api.push("q", 1)
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])
    with pytest.raises(RuntimeError, match="the real one"), batch:
        raise RuntimeError("the real one")
    batch = api.pop("q", "g")
    api.release_claim(api.claims("q")[0])
    with pytest.raises(LeaseLost), batch:
        pass


def test_a_batch_that_was_not_settled_is_given_back_when_the_next_is_asked_for(api: Any) -> None:
    api.push("q", [1, 2])
    seen = []
    for batch in api.consume("q", "g", max_messages=2):
        seen.append((values(batch), batch.messages[0].attempt))
        if len(seen) == 3:
            batch.ack()
            break
    assert seen == [([1, 2], 1)] * 3
    assert api.lag("q", "g") == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_lease_of_a_slow_handler_is_kept_alive(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", 1)
    for batch in api.consume("q", "g", lease=1.0):
        (claim,) = api.claims("q")
        # The handler goes on until its lease has been renewed twice.
        renewed_after(api, renewed_after(api, claim))
        batch.ack()
        break
    assert api.lag("q", "g") == 0
    if mode == "ordered":
        assert [step.state for step in api.history("q", "g", "0")].count("claimed") > 1


def test_a_short_lease_is_renewed_in_time_beside_a_long_one(api: Any) -> None:
    api.push("long", 1)
    api.push("q", 1)
    for long in api.consume("long", "g", lease=600):
        for batch in api.consume("q", "g", lease=1.0):
            (claim,) = api.claims("q")
            renewed_after(api, claim)
            batch.ack()
            break
        long.ack()
        break
    assert (api.lag("q", "g"), api.lag("long", "g")) == (0, 0)


def renewed_after(api: Any, before: Any) -> Any:
    """Wait until the lease of a claim ends later than before, and return the claim as it is then."""

    def renewed() -> Any:
        (claim,) = api.claims("q")
        assert claim.lease_id == before.lease_id
        return claim if claim.expires_at > before.expires_at else None

    return until(renewed)


@pytest.mark.parametrize("mode", MODES)
def test_process_calls_a_function_for_each_message_and_counts(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push_many("q", [(f"p{number % 3}", number) for number in range(30)])
    seen: list[Any] = []
    handled = api.process(
        "q", lambda message: seen.append(message.json()), group="g", concurrency=3, idle_timeout=0, max_messages=4
    )
    assert (handled, sorted(seen), api.lag("q", "g")) == (30, list(range(30)), 0)


@pytest.mark.parametrize("mode", MODES)
def test_process_retries_what_fails_and_finally_buries_it(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode, max_attempts=3, backoff_initial=0)
    api.push("q", list(range(6)))
    seen: list[int] = []

    def handler(message: Any) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            raise ValueError(f"attempt {message.attempt}")

    assert api.process("q", handler, group="g", idle_timeout=0) == 5
    assert seen.count(2) == 3
    (letter,) = api.dead_letters("q")
    assert (letter.offset, letter.attempts, letter.reason) == (2, 3, "ValueError")
    assert (letter.first_error, letter.last_error) == ("ValueError: attempt 1", "ValueError: attempt 3")
    assert sorted(set(seen)) == list(range(6))
    assert [offset for offset in seen if offset != 2] == [0, 1, 3, 4, 5]


def test_partitions_that_were_done_before_a_failure_are_not_done_again(api: Any) -> None:
    api.create_group("q", "g", max_attempts=1)
    api.push_many("q", [(name, name) for name in "abc"])
    seen: list[str] = []

    def handler(message: Any) -> None:
        seen.append(message.json())
        if len(seen) == 2:
            raise ValueError("the second one")

    assert api.process("q", handler, group="g", idle_timeout=0, max_partitions=3) == 2
    assert sorted(seen) == ["a", "b", "c"]
    assert len(api.dead_letters("q")) == 1


def test_what_process_cannot_do_is_raised_as_it_is(api: Any) -> None:
    for concurrency in (0, 10_001, 2**31):
        with pytest.raises(InvalidInput, match="concurrency"):
            api.process("q", print, concurrency=concurrency)
    with pytest.raises(InvalidInput, match="max_messages"):
        api.process("q", print, max_messages=0)
    assert drain(api, "q") == []


def test_a_loop_ends_when_nothing_came_for_a_while(open_api: Callable[..., Any]) -> None:
    api = open_api()
    assert list(api.consume("q", "g", idle_timeout=0.1)) == []
    assert api.process("q", print, group="g", idle_timeout=0.1) == 0


@pytest.mark.parametrize("prefetch", [0, 10])
def test_a_group_that_was_deleted_elsewhere_comes_back_as_the_loop_wants_it(
    api: Any, sql: Connection, prefetch: int
) -> None:
    api.push("q", [1, 2])
    found: list[Any] = []
    for batch in api.consume("q", "g", mode="shared", prefetch=prefetch, idle_timeout=2):
        with batch:
            found += values(batch)
        if len(found) == 2:
            # By another client, which this one hears nothing of.
            sql.execute("SELECT penstock.delete_group('q', 'g')")
        if len(found) >= 4:
            break
    assert sorted(found) == [1, 1, 2, 2]
    assert [group.mode for group in api.groups("q")] == ["shared"]


def test_a_subscription_holds_for_a_group_that_was_deleted_elsewhere(api: Any, sql: Connection) -> None:
    api.push("q", 1)
    assert api.pop("q", "g", mode="shared", subscription="new") is None
    sql.execute("SELECT penstock.delete_group('q', 'g')")
    assert api.pop("q", "g", mode="shared", subscription="new") is None
    api.push("q", 2)
    assert values(api.pop("q", "g", mode="shared", subscription="new")) == [2]
