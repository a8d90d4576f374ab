"""Who pays for a failure: the message that failed, and its neighbours only where nobody knows which one it was."""

from collections import Counter

import pytest

from databases import Connection
from penstock import Client
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Ack, Nack, Release

from .steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    offsets,
    pass_time,
    pop,
    push_some,
    run,
    sweep,
    violations,
)

PLACES = "SELECT lo, hi, attempt FROM penstock.ready WHERE lo IS NOT NULL ORDER BY lo"
WAITING = "SELECT lo, hi, attempt FROM penstock.claims WHERE lease_id IS NULL ORDER BY lo"
LETTERS = "SELECT message_offset, attempts FROM penstock.dead_letters ORDER BY message_offset"


def fail_at(sql: Connection, claim: Claim, offset: int | None, delay: float = 0.0) -> str | None:
    """Say that a claim failed, at a known offset or not."""
    return run(sql, Nack(claim.lease, offset, "oops", None, delay))


def seen(claim: Claim) -> tuple[list[int], int]:
    """Return the offsets of a claim and which attempt it is."""
    return [message.offset for message in claim.messages], claim.attempt


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [2, 5])
def test_of_messages_that_each_fail_once_none_becomes_a_dead_letter(client: Client, mode: str, limit: int) -> None:
    client.create_group("q", "g", mode=mode, max_attempts=limit, backoff_initial=0)
    client.push("q", list(range(10)))
    calls: Counter[int] = Counter()

    def fail_once(message: object) -> None:
        offset: int = message.offset  # type: ignore[attr-defined]
        calls[offset] += 1
        if calls[offset] == 1:
            raise ValueError("the first time")

    client.process("q", fail_once, group="g", idle_timeout=0.2)
    assert client.dead_letters("q") == []
    assert client.lag("q", "g") == 0
    assert calls == dict.fromkeys(range(10), 2)


@pytest.mark.parametrize("mode", MODES)
def test_messages_behind_a_known_failure_come_together_and_as_if_for_the_first_time(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 5)
    fail_at(sql, must_pop(sql), 1)
    found = []
    while (claim := pop(sql)) is not None:
        found.append(seen(claim))
        ack(sql, claim)
    assert sorted(found) == [([1], 2), ([2, 3, 4], 1)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_an_expired_lease_counts_for_every_message_of_its_claim_and_none_of_them_dies_with_it(
    sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    push_some(sql, 4)
    must_pop(sql)
    pass_time(sql)
    sweep(sql)
    found = []
    while (claim := pop(sql)) is not None:
        found.append(seen(claim))
        ack(sql, claim)
    assert sorted(found) == [([0], 2), ([1], 2), ([2], 2), ([3], 2)]
    assert sql.execute(LETTERS).fetchall() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_expires_alone_dies_at_its_limit_and_its_neighbours_do_not(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=2)
    push_some(sql, 4)
    must_pop(sql)
    pass_time(sql)
    sweep(sql)
    assert seen(must_pop(sql)) == ([0], 2)
    pass_time(sql)
    sweep(sql)
    assert sql.execute(LETTERS).fetchall() == [(0, 2)]
    assert offsets(drain(sql)) == [1, 2, 3]


def test_what_is_left_of_a_shared_claim_in_pieces_does_not_die_when_its_lease_expires(sql: Connection) -> None:
    create_group(sql, mode="shared", max_attempts=1)
    push_some(sql, 3)
    claim = must_pop(sql)
    run(sql, Ack([claim.done(1, 2)]))
    pass_time(sql)
    sweep(sql)
    assert sql.execute(LETTERS).fetchall() == []
    assert offsets(drain(sql)) == [0, 2]


def test_the_one_message_that_is_left_of_a_shared_claim_is_the_one_that_fails(sql: Connection) -> None:
    create_group(sql, mode="shared", max_attempts=1)
    push_some(sql, 3)
    claim = must_pop(sql)
    run(sql, Ack([claim.done(0, 1)]))
    run(sql, Ack([claim.done(2, 3)]))
    assert fail_at(sql, claim, None) == "dead letter"
    assert sql.execute(LETTERS).fetchall() == [(1, 1)]


def test_claims_that_expire_go_back_in_line_as_one_place_each_however_many_messages_they_have(
    sql: Connection,
) -> None:
    create_group(sql, mode="shared")
    for _ in range(30):
        push_some(sql, 10_000)
    claims = [must_pop(sql, most=10_000) for _ in range(30)]
    assert sum(len(claim.messages) for claim in claims) == 300_000
    pass_time(sql)
    swept = sweep(sql)
    assert swept is not None
    assert swept.woken >= 30
    assert sql.execute(PLACES).fetchall() == [(n * 10_000, (n + 1) * 10_000, 1) for n in range(30)]
    assert violations(sql) == {}


@pytest.mark.parametrize("delay", [0.0, 3600.0])
def test_a_shared_claim_that_fails_at_an_unknown_message_stays_one_row(sql: Connection, delay: float) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 1000)
    fail_at(sql, must_pop(sql, most=1000), None, delay)
    assert sql.execute((WAITING if delay else PLACES).encode()).fetchall() == [(0, 1000, 1)]
    pass_time(sql)
    sweep(sql)
    assert sql.execute(PLACES).fetchall() == [(0, 1000, 1)]
    assert seen(must_pop(sql, most=1000)) == ([0], 2)
    assert sql.execute(PLACES).fetchall() == [(1, 1000, 1)]
    assert violations(sql) == {}


def test_of_a_range_that_failed_several_take_one_message_each(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 6)
    fail_at(sql, must_pop(sql), None)
    held = [must_pop(sql) for _ in range(3)]
    assert [seen(claim) for claim in held] == [([0], 2), ([1], 2), ([2], 2)]
    run(sql, Release(held[1].lease))
    ack(sql, held[0])
    ack(sql, held[2])
    left = []
    while (claim := pop(sql)) is not None:
        left.append(seen(claim))
        ack(sql, claim)
    assert sorted(left) == [([1], 2), ([3], 2), ([4], 2), ([5], 2)]


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_that_is_given_back_after_its_lease_ended_counts_as_an_attempt(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=2, backoff_initial=0)
    push_some(sql, 1)
    attempts = []
    while claim := pop(sql):
        attempts.append(claim.attempt)
        pass_time(sql)
        assert not run(sql, Release(claim.lease))
        assert len(attempts) < 5
        sweep(sql)
    assert attempts == [1, 2]
    assert sql.execute(LETTERS.encode()).fetchall() == [(0, 2)]
