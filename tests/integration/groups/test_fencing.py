"""A lease that is over, or another's, changes nothing and says so, whoever settles the claim at the same time."""

from uuid import uuid4

import psycopg
import pytest
from log.interleaving import mutate, push
from psycopg import errors

from databases import Connection, Connections
from penstock.broker.operations.claiming import Release

from .steps import (
    MODES,
    SETTLING,
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    outcome,
    pass_time,
    pop,
    push_some,
    release,
    renew,
    reply,
    run,
    start,
    sweep,
    violations,
)

# Where each way of settling checks the lease id and the deadline, by mode.
LEASE_CHECKS = {
    ("ordered", "ack"): ("ack_claims", "j.lease_id = u.lease_id AND "),
    ("ordered", "nack"): ("live_claim", "found.lease_id = lease AND "),
    ("ordered", "renew"): ("renew_ordered", "j.lease_id = u.lease_id AND "),
    ("shared", "ack"): ("ack_shared", "AND c.lease_id = wanted.lease_id "),
    ("shared", "nack"): ("nack_shared", "AND c.lease_id = nack_shared.lease_id "),
    ("shared", "renew"): ("renew_shared", " AND c.lease_id = u.lease_id"),
}
DEADLINE_CHECKS = {
    ("ordered", "ack"): ("ack_claims", " AND j.due_at > clock_timestamp()"),
    ("ordered", "nack"): ("live_claim", " AND found.due_at > clock_timestamp()"),
    ("ordered", "renew"): ("renew_ordered", " AND j.due_at > clock_timestamp()"),
    ("shared", "ack"): ("ack_shared", " AND c.due_at > clock_timestamp()"),
    ("shared", "nack"): ("nack_shared", " AND c.due_at > clock_timestamp()"),
    ("shared", "renew"): ("renew_shared", "          AND c.due_at > clock_timestamp()\n"),
}
# An ack of one claim, whole, is done by end_claim, or by ack_claims itself.
WHOLE_ACKS = {"ordered": "end_claim", "shared": "ack_claims"}
WHOLE_ACK_CHECKS = {
    ("ordered", "lease"): " AND held.lease_id = lease",
    ("ordered", "deadline"): "AND held.due_at > clock_timestamp() ",
    ("shared", "lease"): " AND c.lease_id = lease",
    ("shared", "deadline"): "\n                  AND c.due_at > clock_timestamp()",
}
EVERY_WAY = pytest.mark.parametrize(("mode", "way"), sorted(LEASE_CHECKS))


def held_by_another(sql: Connection, mode: str, way: str) -> tuple[str, str]:
    """Settle a claim that expired and went to somebody else; say how that ended, and how their ack ends then."""
    create_group(sql, mode=mode)
    push_some(sql, 1)
    late = must_pop(sql)
    pass_time(sql)
    sweep(sql)
    current = must_pop(sql)
    assert current.lease_id != late.lease_id
    settled = outcome(lambda: run(sql, SETTLING[way](late)))
    if way == "renew" and settled == "done":
        return settled, "renewed by a stranger"
    return settled, outcome(lambda: ack(sql, current))


@EVERY_WAY
def test_settling_late_does_not_touch_the_claim_of_whoever_came_next(sql: Connection, mode: str, way: str) -> None:
    assert held_by_another(sql, mode, way) == ("lost", "done")
    assert drain(sql) == []
    assert violations(sql) == {}


@EVERY_WAY
def test_without_the_lease_id_it_ends_their_claim(fresh: Connections, mode: str, way: str) -> None:
    sql = fresh.open(autocommit=True)
    function, check = LEASE_CHECKS[mode, way]
    mutate(sql, function, (check, ""))
    assert held_by_another(sql, mode, way) in [("done", "lost"), ("done", "renewed by a stranger")]


def past_its_deadline(sql: Connection, mode: str, way: str) -> str:
    """Settle a claim whose deadline has passed, before any sweep came."""
    create_group(sql, mode=mode)
    push_some(sql, 1)
    claim = must_pop(sql)
    pass_time(sql)
    return outcome(lambda: run(sql, SETTLING[way](claim)))


@EVERY_WAY
def test_past_its_deadline_a_claim_cannot_be_settled_even_if_no_sweep_came(
    sql: Connection, mode: str, way: str
) -> None:
    assert past_its_deadline(sql, mode, way) == "lost"
    sweep(sql)
    assert offsets(drain(sql)) == [0]
    assert violations(sql) == {}


@EVERY_WAY
def test_without_the_deadline_check_it_can(fresh: Connections, mode: str, way: str) -> None:
    sql = fresh.open(autocommit=True)
    function, check = DEADLINE_CHECKS[mode, way]
    mutate(sql, function, (check, ""))
    assert past_its_deadline(sql, mode, way) == "done"


@pytest.mark.parametrize(("mode", "check"), WHOLE_ACK_CHECKS)
def test_without_its_own_checks_an_ack_of_a_whole_claim_ends_what_is_not_its_own(
    fresh: Connections, mode: str, check: str
) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, WHOLE_ACKS[mode], (WHOLE_ACK_CHECKS[mode, check], ""))
    if check == "lease":
        assert held_by_another(sql, mode, "ack") == ("done", "lost")
    else:
        assert past_its_deadline(sql, mode, "ack") == "done"


@EVERY_WAY
def test_a_lease_id_that_nobody_was_given_changes_nothing(sql: Connection, mode: str, way: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    claim = must_pop(sql)
    before = newest(sql)
    own, claim.lease_id = claim.lease_id, uuid4()
    assert outcome(lambda: run(sql, SETTLING[way](claim))) == "lost"
    assert newest(sql) == before
    claim.lease_id = own
    assert outcome(lambda: ack(sql, claim)) == "done"


def test_a_lease_of_another_group_changes_nothing(sql: Connection) -> None:
    other = create_group(sql, "other")
    create_group(sql)
    push(sql)
    claim, theirs = must_pop(sql), must_pop(sql, "other")
    claim.group_id = other
    assert outcome(lambda: ack(sql, claim)) == "lost"
    assert outcome(lambda: ack(sql, theirs)) == "done"


def test_the_plain_functions_say_that_the_lease_is_lost(sql: Connection) -> None:
    create_group(sql)
    push(sql)
    for call in ("ack('q', 'g', 'p', %s)", "nack('q', 'g', 'p', %s)", "renew('q', 'g', 'p', %s)"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="nothing was changed"):
            sql.execute(f"SELECT penstock.{call}".encode(), (uuid4(),))


def settled_while_it_is_taken_away(connections: Connections, sql: Connection, way: str) -> str:
    """An operator takes a claim away and has not committed; its holder settles it; say how that ends."""
    create_group(sql)
    push_some(sql, 2)
    claim = must_pop(sql)
    operator, holder = connections.open(), connections.open(autocommit=True)
    release(operator, claim)
    call = SETTLING[way](claim)
    settling = start(holder, call)
    assert settling.waits(sql)
    operator.commit()
    try:
        return outcome(lambda: reply(call, settling.rows()))
    except psycopg.Error as error:
        return type(error).__name__


@pytest.mark.parametrize("way", SETTLING)
def test_settling_waits_for_whoever_takes_the_claim_away_and_then_looks_again(
    connections: Connections, sql: Connection, way: str
) -> None:
    assert settled_while_it_is_taken_away(connections, sql, way) == "lost"
    assert newest(sql)[1] == "r"
    assert offsets(drain(sql)) == [0, 1]
    assert violations(sql) == {}


UNLOCKED = [
    ("ack", "end_claim", [("    LIMIT 1\n    FOR UPDATE;", "    LIMIT 1;")]),
    ("renew", "renew_ordered", [("PERFORM penstock.lock_newest(group_ids, partition_ids);", "")]),
    ("nack", "live_claim", [("PERFORM penstock.lock_newest(ARRAY[target_group], ARRAY[target]);", "")]),
]


@pytest.mark.parametrize(("way", "function", "changes"), UNLOCKED, ids=[way for way, *_ in UNLOCKED])
def test_without_the_lock_settling_goes_on_from_a_state_that_is_over(
    fresh: Connections, way: str, function: str, changes: list[tuple[str, str]]
) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, function, *changes)
    assert settled_while_it_is_taken_away(fresh, sql, way) == "UniqueViolation"


def test_without_a_new_look_after_the_lock_an_ack_goes_on_from_a_state_that_is_over(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "end_claim", ("AND j.version > held.version", "AND false"))
    assert settled_while_it_is_taken_away(fresh, sql, "ack") == "UniqueViolation"


def third_after_a_renewal(connections: Connections, sql: Connection, way: str) -> str:
    """An ack or nack that waited for a renewal has not committed; an operator takes the claim; say how that ends."""
    create_group(sql)
    push(sql)
    claim = must_pop(sql)
    renewer, holder, operator = connections.open(), connections.open(), connections.open(autocommit=True)
    renew(renewer, claim)
    settling = start(holder, SETTLING[way](claim))
    assert settling.waits(sql)
    renewer.commit()
    assert settling.value()
    call = Release(claim.lease._replace(lease_id=None))
    taking = start(operator, call)
    assert taking.waits(sql)
    holder.commit()
    try:
        return str(reply(call, taking.rows()))
    except psycopg.Error as error:
        return type(error).__name__


@pytest.mark.parametrize("way", ["ack", "nack"])
def test_whoever_comes_after_a_renewal_and_another_waits_and_finds_nothing_to_take(
    connections: Connections, sql: Connection, way: str
) -> None:
    assert third_after_a_renewal(connections, sql, way) == "False"
    assert violations(sql) == {}


def test_without_locking_the_newest_row_itself_they_get_into_each_others_way(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "lock_newest", ("IF locked IS NOT DISTINCT FROM seen THEN", "IF true THEN"))
    assert third_after_a_renewal(fresh, sql, "nack") == "UniqueViolation"


def test_an_ack_waits_for_the_sweep_that_ends_its_claim_and_is_refused(
    connections: Connections, sql: Connection
) -> None:
    create_group(sql)
    push(sql)
    claim = must_pop(sql)
    pass_time(sql)
    sweeper, holder = connections.open(), connections.open(autocommit=True)
    sweep(sweeper)
    call = ack_of([claim])
    acking = start(holder, call)
    assert acking.waits(sql)
    sweeper.commit()
    assert outcome(lambda: reply(call, acking.rows())) == "lost"
    assert must_pop(sql).attempt == 2


@pytest.mark.parametrize("mode", MODES)
def test_two_acks_of_one_claim_at_once_count_once(connections: Connections, sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 2)
    claim = must_pop(sql)
    first, second = connections.open(), connections.open(autocommit=True)
    ack(first, claim)
    call = ack_of([claim])
    again = start(second, call)
    assert again.waits(sql)
    first.commit()
    assert outcome(lambda: reply(call, again.rows())) == "lost"
    assert pop(sql) is None
    assert violations(sql) == {}
