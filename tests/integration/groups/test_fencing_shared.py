"""The messages of a shared claim may be settled by several at once: none of them loses a lease that is live."""

from collections.abc import Callable
from typing import Any

import pytest
from log.interleaving import mutate

from databases import Connection, Connections
from penstock import InvalidInput, LeaseLost
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Ack, Nack, Release, Renew, Sweep
from penstock.broker.operations.operation import Operation
from penstock.postgres.failures import translated

from .steps import (
    ack,
    ack_of,
    create_group,
    drain,
    must_pop,
    offsets,
    outcome,
    pass_time,
    pop,
    push_some,
    reply,
    run,
    start,
    sweep,
    violations,
)

BESIDE: dict[str, Callable[[Claim], Operation[Any]]] = {
    "ack of another message": lambda claim: Ack([claim.done(7, 8)]),
    "ack of the rest": lambda claim: ack_of([claim]),
    "renew": lambda claim: Renew([claim.lease]),
    "nack": lambda claim: Nack(claim.lease, None, "oops", None, 0.0),
    "release": lambda claim: Release(claim.lease),
}
LEFT = {
    "ack of another message": [0, 1, 2, 4, 5, 6, 8, 9],
    "ack of the rest": [],
    "renew": [0, 1, 2, 4, 5, 6, 7, 8, 9],
    "nack": [0, 1, 2, 4, 5, 6, 7, 8, 9],
    "release": [0, 1, 2, 4, 5, 6, 7, 8, 9],
}


def beside_an_ack(connections: Connections, sql: Connection, what: str) -> str:
    """Message 3 of a claim of ten is acknowledged and not committed; say how another call for the claim ends."""
    create_group(sql, mode="shared", max_attempts=9)
    push_some(sql, 10)
    claim = must_pop(sql)
    one, other = connections.open(), connections.open(autocommit=True)
    run(one, Ack([claim.done(3, 4)]))
    call = BESIDE[what](claim)
    settling = start(other, call)
    assert settling.waits(sql)
    one.commit()
    return outcome(lambda: require(reply(call, settling.rows())))


def require(answer: object) -> None:
    """Take a claim that could not be given back for one whose lease is lost."""
    if answer is False:
        raise LeaseLost("release says so by its answer")


def left_by_an_ack_of_all(connections: Connections, sql: Connection) -> list[tuple[int, int]]:
    """Of a claim in two parts one is being split while all of it is acknowledged; return what is held then."""
    create_group(sql, mode="shared")
    push_some(sql, 10)
    claim = must_pop(sql)
    run(sql, Ack([claim.done(5, 6)]))
    one, other = connections.open(), connections.open(autocommit=True)
    run(one, Ack([claim.done(7, 8)]))
    call = Ack([claim.done()])
    settling = start(other, call)
    assert settling.waits(sql)
    one.commit()
    assert reply(call, settling.rows()) == [True]
    return sql.execute("SELECT lo, hi FROM penstock.claims ORDER BY lo").fetchall()


def test_an_ack_of_all_looks_again_for_what_others_left(connections: Connections, sql: Connection) -> None:
    assert left_by_an_ack_of_all(connections, sql) == []
    assert violations(sql) == {}


def test_without_looking_again_it_leaves_a_part(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "ack_claims", (" AND c.whole", ""))
    assert left_by_an_ack_of_all(fresh, sql) == [(6, 7), (8, 10)]


# An ack of the rest waits for the rows themselves, and looks again.
@pytest.mark.parametrize("what", [what for what in BESIDE if what != "ack of the rest"])
def test_without_the_lock_of_the_whole_lease_it_is(fresh: Connections, what: str) -> None:
    sql = fresh.open(autocommit=True)
    mutate(
        sql,
        "lock_leases",
        ("        EXIT WHEN locked = (", "        RETURN; EXIT WHEN locked = ("),
        ("            FOR UPDATE\n", ""),
    )
    assert beside_an_ack(fresh, sql, what) == "lost"


@pytest.mark.parametrize("what", BESIDE)
def test_a_live_lease_is_not_lost_to_an_ack_of_another_of_its_messages(
    connections: Connections, sql: Connection, what: str
) -> None:
    assert beside_an_ack(connections, sql, what) == "done"
    assert violations(sql) == {}
    pass_time(sql)
    sweep(sql)
    assert sorted(offsets(drain(sql))) == LEFT[what]


def test_an_ack_of_all_takes_every_part_of_a_claim_that_others_are_acknowledging(
    connections: Connections, sql: Connection
) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 10)
    claim = must_pop(sql)
    run(sql, Ack([claim.done(3, 4)]))
    one, other = connections.open(), connections.open(autocommit=True)
    run(one, Ack([claim.done(6, 7)]))
    call = ack_of([claim])
    acking = start(other, call)
    assert acking.waits(sql)
    one.commit()
    assert outcome(lambda: reply(call, acking.rows())) == "done"
    pass_time(sql)
    sweep(sql)
    assert drain(sql) == []
    assert violations(sql) == {}


def test_an_ack_waits_for_the_sweep_that_ends_its_claim_and_is_refused(
    connections: Connections, sql: Connection
) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 1)
    claim = must_pop(sql)
    pass_time(sql)
    sweeper, holder = connections.open(), connections.open(autocommit=True)
    sweep(sweeper)
    call = ack_of([claim])
    acking = start(holder, call)
    assert acking.waits(sql)
    sweeper.commit()
    assert outcome(lambda: reply(call, acking.rows())) == "lost"
    again = must_pop(sql)
    assert (again.attempt, again.lease_id != claim.lease_id) == (2, True)


def test_a_sweep_passes_over_a_claim_that_is_being_acknowledged(connections: Connections, sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 1)
    claim = must_pop(sql)
    holder, sweeper = connections.open(), connections.open(autocommit=True)
    ack(holder, claim)
    sweeping = start(sweeper, Sweep())
    assert not sweeping.waits(sql)
    holder.commit()
    assert pop(sql) is None
    assert violations(sql) == {}


def test_a_nack_at_an_offset_outside_the_claim_is_refused_and_changes_nothing(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 10)
    claim = must_pop(sql)
    for offset in (-1, 10, 999):
        with pytest.raises(InvalidInput, match="is not in the claim"), translated():
            run(sql, Nack(claim.lease, offset, "oops", None, None))
    assert outcome(lambda: ack(sql, claim)) == "done"
