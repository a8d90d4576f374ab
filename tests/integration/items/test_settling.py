"""Items of a claim are settled one by one: done, failed, snoozed, dead, given back, or left under the lease."""

from uuid import uuid4

import psycopg
import pytest
from groups.steps import (
    MODES,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    pass_time,
    pop,
    push_some,
    push_to_many,
    run,
    sweep,
    violations,
)
from psycopg import errors

from databases import Connection, Connections
from penstock import DeadLetterInfo, InvalidInput
from penstock.broker.claims import Claim, Lease
from penstock.broker.items import ItemOutcome, SettledClaim
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.groups import ListDeadLetters
from penstock.broker.operations.items import SettleItems

from .steps import ALL, dead, failed, settle, settle_one, settled, snoozed


def of(claim: Claim) -> tuple[int, int, int]:
    return claim.start, claim.stop, claim.attempt


def letters(sql: Connection) -> list[DeadLetterInfo]:
    return run(sql, ListDeadLetters("q", "g"))


@pytest.fixture(params=MODES)
def claim(request: pytest.FixtureRequest, sql: Connection) -> Claim:
    """A claim of ten messages, of a group of either mode."""
    create_group(sql, mode=request.param, max_attempts=3)
    push_some(sql, 10)
    return must_pop(sql)


def test_what_is_done_is_done_and_the_rest_stays_under_its_lease(sql: Connection, claim: Claim) -> None:
    assert settle_one(sql, claim, done=[(0, 4)]) == "settled"
    assert pop(sql) is None
    assert settle_one(sql, claim, done=ALL) == "settled"
    assert drain(sql) == []
    assert violations(sql) == {}


def test_what_is_done_goes_and_the_rest_is_given_back_without_an_attempt(sql: Connection, claim: Claim) -> None:
    assert settle_one(sql, claim, done=[(0, 4)], release=True) == "settled"
    assert of(must_pop(sql)) == (4, 10, 1)
    assert settle_one(sql, claim, done=ALL) is None
    assert violations(sql) == {}


def test_all_of_it_can_be_given_back(sql: Connection, claim: Claim) -> None:
    assert settle_one(sql, claim, release=True) == "settled"
    assert of(must_pop(sql)) == (0, 10, 1)


def test_one_that_failed_comes_alone_and_counts_and_those_behind_it_do_not(sql: Connection, claim: Claim) -> None:
    reply = settle(sql, settled(claim, failed(3), done=[(0, 3)], release=True))
    assert (reply.settled, reply.outcomes) == (["settled"], [["retry"]])
    came = sorted([of(must_pop(sql))] + ([of(must_pop(sql))] if claim.shared else []))
    assert came == ([(3, 4, 2), (4, 10, 1)] if claim.shared else [(3, 4, 2)])
    assert violations(sql) == {}


def test_one_whose_attempts_are_used_up_becomes_a_dead_letter(sql: Connection, claim: Claim) -> None:
    answers = []
    for _ in range(3):
        reply = settle(sql, settled(claim, failed(claim.start, traceback="at line 1"), release=True))
        answers += reply.outcomes[0]
        while (found := pop(sql)) is not None and found.start != 0:
            settle_one(sql, found, done=ALL)
        if found is not None:
            claim = found
    assert answers == ["retry", "retry", "dead letter"]
    ((offset, attempts, error, traceback),) = [(x.offset, x.attempts, x.last_error, x.traceback) for x in letters(sql)]
    assert (offset, attempts, error, traceback) == (0, 3, "oops", "at line 1")
    assert violations(sql) == {}


def test_one_that_failed_waits_for_the_groups_backoff_or_as_long_as_is_said(sql: Connection, claim: Claim) -> None:
    settle_one(sql, claim, failed(0, wait=None), release=True)
    came = must_pop(sql) if claim.shared else pop(sql)
    assert came is None or came.start == 1
    pass_time(sql, "t", "c")
    sweep(sql)
    assert 0 in offsets(drain(sql))


def test_a_snoozed_one_comes_back_when_its_time_is_up_and_counts_no_attempt(sql: Connection, claim: Claim) -> None:
    reply = settle(sql, settled(claim, snoozed(2, 60), done=[(0, 2)], release=True))
    assert reply.outcomes == [["snoozed"]]
    if claim.shared:
        settle_one(sql, must_pop(sql), done=ALL)
    assert pop(sql) is None
    assert violations(sql) == {}
    pass_time(sql, "t", "c")
    sweep(sql)
    again = must_pop(sql)
    assert (again.start, again.attempt) == (2, 1)


def test_snoozing_does_not_forget_earlier_failures(sql: Connection, claim: Claim) -> None:
    settle_one(sql, claim, failed(0), done=[(1, 10)] if claim.shared else (), release=not claim.shared)
    second = must_pop(sql)
    assert of(second) == (0, 1, 2)
    settle_one(sql, second, snoozed(0))
    third = must_pop(sql)
    assert of(third) == (0, 1, 2)
    settle_one(sql, third, dead(0, "no hope"))
    assert [(letter.attempts, letter.first_error) for letter in letters(sql)] == [(2, "oops")]


def test_a_change_of_the_groups_delay_does_not_end_a_snooze(sql: Connection, claim: Claim) -> None:
    settle_one(sql, claim, snoozed(0, 60), done=[(1, 10)] if claim.shared else (), release=not claim.shared)
    sql.execute("SELECT penstock.configure_group('q', 'g', '{\"delay\": 0.001}')")
    sweep(sql)
    assert pop(sql) is None


def test_a_dead_one_is_a_dead_letter_at_once_and_those_behind_it_go_on(sql: Connection, claim: Claim) -> None:
    reply = settle(sql, settled(claim, dead(1, "bad", error="why", traceback="where"), done=[(0, 1), (2, 5)]))
    assert (reply.settled, reply.outcomes) == (["settled"], [["dead letter"]])
    (letter,) = letters(sql)
    assert (letter.offset, letter.reason, letter.last_error, letter.traceback) == (1, "bad", "why", "where")
    assert (letter.attempts, letter.consumer) == (1, "c")
    assert settle_one(sql, claim, done=[(5, 10)]) == "settled"
    assert drain(sql) == []
    assert violations(sql) == {}


def test_all_but_what_has_an_outcome_can_be_done(sql: Connection, claim: Claim) -> None:
    assert settle_one(sql, claim, dead(4), dead(7), done=ALL) == "settled"
    assert sorted(letter.offset for letter in letters(sql)) == [4, 7]
    assert drain(sql) == []


def test_items_of_a_shared_claim_are_settled_in_any_order(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 10)
    claim = must_pop(sql)
    reply = settle(sql, settled(claim, failed(8), snoozed(2), dead(5), ItemOutcome(0, "done"), done=[(3, 4), (6, 7)]))
    assert reply.outcomes == [["retry", "snoozed", "dead letter", "done"]]
    held = sql.execute("SELECT lo, hi FROM penstock.claims WHERE lease_id IS NOT NULL ORDER BY lo").fetchall()
    assert held == [(1, 2), (4, 5), (7, 8), (9, 10)]
    assert sorted(offsets(drain(sql))) == [2, 8]
    assert settle_one(sql, claim, done=ALL) == "settled"
    assert violations(sql) == {}


def test_what_was_settled_before_is_not_settled_again(sql: Connection, claim: Claim) -> None:
    assert settle_one(sql, claim, done=[(0, 4)]) == "settled"
    before = newest(sql)
    for again in ({"done": [(0, 4)]}, {"done": [(2, 6)]}):
        assert settle_one(sql, claim, **again) == "repeated"
    assert settle_one(sql, claim, failed(3)) == "repeated"
    assert newest(sql) == before
    assert settle_one(sql, claim, done=[(4, 10)]) == "settled"
    assert settle_one(sql, claim, done=[(4, 10)]) is None


@pytest.mark.parametrize("how", ["foreign", "expired", "gone", "no such group"])
def test_a_lease_that_is_not_live_changes_nothing(sql: Connection, claim: Claim, how: str) -> None:
    lease = {
        "foreign": claim.lease._replace(lease_id=uuid4()),
        "no such group": claim.lease._replace(group_id=claim.group_id + 1000),
    }.get(how, claim.lease)
    if how == "expired":
        pass_time(sql, "c")
    if how == "gone":
        sql.execute("SELECT penstock.delete_group('q', 'g')")
    before = sql.execute("SELECT * FROM penstock.journal ORDER BY version").fetchall()
    for settling in (
        SettledClaim(lease, ALL),
        SettledClaim(lease, [(0, 1)], [failed(1)]),
        SettledClaim(lease, release_rest=True),
    ):
        reply = settle(sql, settling)
        assert (reply.settled, reply.claims) == ([None], [])
        assert reply.outcomes == [[None] * len(settling.outcomes)]
    assert sql.execute("SELECT * FROM penstock.journal ORDER BY version").fetchall() == before


def test_a_lost_claim_does_not_keep_others_from_being_settled(sql: Connection) -> None:
    create_group(sql)
    create_group(sql, "s", "shared")
    push_to_many(sql, 3)
    claims = [must_pop(sql), must_pop(sql), must_pop(sql, "s"), must_pop(sql, "s")]
    for lost in claims[1::2]:
        lost.lease_id = uuid4()
    reply = settle(sql, *[settled(claim, failed(0, "no"), release=True) for claim in claims])
    assert reply.settled == ["settled", None, "settled", None]
    assert reply.outcomes == [["retry"], [None], ["retry"], [None]]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partial", [False, True])
def test_it_claims_what_is_next_in_the_same_call(sql: Connection, mode: str, partial: bool) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    claim = must_pop(sql, most=2)
    one = settled(claim, done=[(0, 1)], release=True) if partial else settled(claim, done=ALL)
    reply = settle(sql, one, pop=Pop("q", "g", max_messages=2))
    assert reply.settled == ["settled"]
    (found,) = reply.claims
    assert (found.start, found.stop, len(found.messages)) in [(1, 3, 2), (2, 4, 2)]
    rest = settle(sql, settled(found, done=ALL), pop=Pop("q", "nobody"))
    assert (rest.settled, rest.claims) == (["settled"], [])


def test_a_claim_of_an_ordered_group_is_settled_in_order(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 10)
    claim = must_pop(sql)
    wrong = [
        settled(claim, done=[(1, 2)]),
        settled(claim, done=[(0, 2), (3, 4)]),
        settled(claim, failed(1)),
        settled(claim, failed(2), snoozed(3), done=[(0, 2)]),
        settled(claim, failed(2), done=[(0, 4)]),
        settled(claim, failed(2), done=ALL),
        settled(claim, done=[(0, 11)]),
        settled(claim, failed(10), done=[(0, 10)]),
    ]
    before = newest(sql)
    for one in wrong:
        with pytest.raises(errors.InvalidParameterValue):
            settle(sql, one)
    assert newest(sql) == before


LEASE = Lease(1, 1, uuid4())


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [SettledClaim(LEASE)],
        [SettledClaim(LEASE._replace(lease_id=None), ALL)],
        [SettledClaim(LEASE, ALL), SettledClaim(LEASE, [(0, 1)])],
        [SettledClaim(LEASE, [(1, 1)])],
        [SettledClaim(LEASE, [(2, 1)])],
        [SettledClaim(LEASE, [(None, 1)])],
        [SettledClaim(LEASE, [(-1, 1)])],
        [SettledClaim(LEASE, [(0, 1 << 63)])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(0, "lost")])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(-1, "failed")])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(0, "snoozed")])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(0, "failed", float("nan"))])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(0, "failed", -1)])],
        [SettledClaim(LEASE, outcomes=[ItemOutcome(0, "failed", 1e12)])],
    ],
)
def test_what_says_nothing_or_too_much_is_refused_before_it_is_sent(claims: list[SettledClaim]) -> None:
    with pytest.raises(InvalidInput):
        SettleItems(claims)


@pytest.mark.parametrize(
    "rest",
    [
        "ARRAY[1], ARRAY[1], ARRAY[]::uuid[]",
        "ARRAY[1], ARRAY[1], NULL",
        "ARRAY[1], ARRAY[1, 2], ARRAY[gen_random_uuid()]",
        "ONE",
        "ONE, done_claims => ARRAY[1]",
        "ONE, done_claims => ARRAY[2], done_starts => '{null}', done_stops => '{null}'",
        "ONE, done_claims => ARRAY[1], done_starts => '{5}', done_stops => '{5}'",
        "ONE, done_claims => ARRAY[1], done_starts => '{5}', done_stops => '{null}'",
        "ONE, done_claims => '{null}', done_starts => '{5}', done_stops => '{6}'",
        "ONE, '{t}', item_claims => '{1}', item_offsets => '{1}'",
        "ONE, item_claims => '{1}', item_offsets => '{1}', outcomes => '{x}'",
        "ONE, item_claims => '{1}', item_offsets => '{1}', outcomes => '{null}'",
        "ONE, item_claims => '{1}', item_offsets => '{null}', outcomes => '{dead}'",
        "ONE, item_claims => '{1,1}', item_offsets => '{1,1}', outcomes => '{dead,done}'",
        "ONE, item_claims => '{1}', item_offsets => '{1}', outcomes => '{snoozed}'",
        "ONE, item_claims => '{1}', item_offsets => '{1}', outcomes => '{failed}', waits => '{NaN}'",
        "ONE, item_claims => '{1}', item_offsets => '{1}', outcomes => '{dead}',"
        " done_claims => ARRAY[1], done_starts => '{0}', done_stops => '{2}'",
        "ARRAY[1, 1], ARRAY[1, 1], array_fill('a0000000-0000-0000-0000-000000000000'::uuid, ARRAY[2]), '{t,t}'",
    ],
)
def test_wrong_arguments_in_sql_are_refused(sql: Connection, rest: str) -> None:
    one = "ARRAY[1], ARRAY[1], ARRAY[gen_random_uuid()]"
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute(f"SELECT * FROM penstock.settle_items({rest.replace('ONE', one)})".encode())


def test_above_read_committed_it_is_refused(connections: Connections, sql: Connection, claim: Claim) -> None:
    other = connections.open()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(errors.Error, match="READ COMMITTED"):
        settle_one(other, claim, done=[(0, 1)])


EVIL = ["\0", "\ud800", "'; DROP TABLE", "{}", '{"a', "%s", "x" * 100_000, "\u202e", ""]


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_any_text_is_stored_with_a_dead_letter(sql: Connection, claim: Claim, text: str) -> None:
    settle_one(sql, claim, ItemOutcome(0, "dead", None, text, text, text), done=[(1, 10)])
    (letter,) = letters(sql)
    expected = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    assert (letter.reason, letter.last_error, letter.traceback) == (expected, expected, expected)
    assert violations(sql) == {}


@pytest.mark.parametrize("outcome", [failed(0, wait=3600.0), snoozed(0, 3600.0), dead(0), ItemOutcome(0, "done")])
def test_an_item_of_a_shared_claim_frees_its_own_slot(sql: Connection, outcome: ItemOutcome) -> None:
    create_group(sql, mode="shared", concurrency_limit=2, concurrency_by="group", max_attempts=9)
    push_some(sql, 6)
    claim = must_pop(sql)
    assert (claim.start, claim.stop) == (0, 2)
    assert pop(sql) is None
    settle_one(sql, claim, outcome)
    second = must_pop(sql)
    assert (second.start, second.stop) == (2, 3)
    assert pop(sql) is None
    settle_one(sql, claim, done=[(1, 2)])
    third = must_pop(sql)
    assert third.stop - third.start == 1
    assert violations(sql) == {}


@pytest.mark.parametrize("how", ["done", "part", "failed", "given back"])
def test_whatever_ends_a_claim_of_an_ordered_group_frees_its_slots(sql: Connection, how: str) -> None:
    create_group(sql, concurrency_limit=1, concurrency_by="group", max_attempts=9)
    push_to_many(sql, 2)
    claim = must_pop(sql)
    assert pop(sql) is None
    if how == "done":
        settle_one(sql, claim, done=ALL)
    elif how == "part":
        settle_one(sql, claim, done=[(0, 1)])
    elif how == "failed":
        settle_one(sql, claim, failed(0, wait=3600.0))
    else:
        settle_one(sql, claim, release=True)
    assert pop(sql) is not None
