"""An ack and the next pop in one call: each does what it does alone, and the pop never undoes the ack."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from log.interleaving import Running
from psycopg import errors
from psycopg.sql import SQL, Identifier

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Ack, Release
from penstock.postgres.migrate import grant

from .steps import (
    MODES,
    create_group,
    drain,
    must_pop,
    newest,
    offsets,
    pop,
    pop_call,
    push_some,
    push_to_many,
    run,
    violations,
)

QUERY = (
    "SELECT acked, partition_id, claimed_from, claimed_to, lease_id FROM penstock.ack_and_pop("
    "%s::integer[], %s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[], {})"
)


def ack_and_pop(sql: Connection, claims: Sequence[Claim], rest: str = "'q', 'g', max_messages => 1") -> list[Any]:
    """Acknowledge claims, pop what is next, and return the rows."""
    arrays = [[getattr(claim, name) for claim in claims] for name in ("group_id", "partition_id", "lease_id")]
    nulls = [None] * len(claims)
    return sql.execute(QUERY.format(rest).encode(), (*arrays, nulls, nulls)).fetchall()


@pytest.mark.parametrize("mode", MODES)
def test_it_acknowledges_one_claim_and_returns_the_next(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    first = must_pop(sql, most=1)

    ((acked, partition_id, start, stop, _),) = ack_and_pop(sql, [first])

    assert (acked, partition_id, start, stop) == ([True], first.partition_id, 1, 2)
    assert violations(sql) == {}


def test_every_row_of_a_claim_says_what_was_acknowledged(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    first, second = must_pop(sql), must_pop(sql)
    push_some(sql, 3, "more")
    rows = ack_and_pop(sql, [first, second], "'q', 'g', max_partitions => 5")
    assert {tuple(row[0]) for row in rows} == {(True, True)}
    assert len({row[1] for row in rows}) == 2


@pytest.mark.parametrize("mode", MODES)
def test_with_a_lost_lease_it_says_so_and_pops_all_the_same(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_to_many(sql, 2)
    lost = must_pop(sql, most=1)
    lost.lease_id = uuid4()
    ((acked, partition_id, *_),) = ack_and_pop(sql, [lost])
    assert acked == [False]
    assert partition_id not in (None, lost.partition_id)


@pytest.mark.parametrize("mode", MODES)
def test_of_several_claims_each_is_judged_by_its_own_lease(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_to_many(sql, 4)
    first, second, third, fourth = (must_pop(sql, most=1) for _ in range(4))
    foreign = replace(second, lease_id=uuid4())

    ((acked, *_),) = ack_and_pop(sql, [third, foreign, first, third])

    assert acked == [True, False, True, True]
    held = sql.execute("SELECT lease_id FROM penstock.list_claims('q')").fetchall()
    assert {lease for (lease,) in held} == {second.lease_id, fourth.lease_id}
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_of_several_claims_one_that_another_session_has_just_ended_is_lost(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_to_many(sql, 3)
    claims = [must_pop(sql, most=1) for _ in range(3)]
    other, holder = connections.open(), connections.open(autocommit=True)
    run(other, Release(claims[1].lease))
    arrays = [[getattr(claim, name) for claim in claims] for name in ("group_id", "partition_id", "lease_id")]
    nulls = [None] * 3
    acking = Running(holder, QUERY.format("'q', 'g', max_messages => 1"), *arrays, nulls, nulls)
    assert acking.waits(sql)
    other.commit()
    assert [row[0] for row in acking.rows()] == [[True, False, True]]
    assert violations(sql) == {}


def test_with_nothing_to_claim_one_row_says_what_was_acknowledged(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 1)
    assert ack_and_pop(sql, [must_pop(sql)]) == [([True], None, None, None, None)]
    assert drain(sql) == []


def test_with_nothing_to_acknowledge_it_is_a_pop(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 1)
    assert [row[:1] + row[2:4] for row in ack_and_pop(sql, [])] == [([], 0, 1)]


@pytest.mark.parametrize("wrong", ["max_messages => 0", "max_bytes => NULL", "lease_time => 0", "max_partitions => -1"])
def test_wrong_arguments_are_refused_before_anything_is_done(sql: Connection, wrong: str) -> None:
    create_group(sql)
    push_some(sql, 2)
    claim = must_pop(sql, most=1)
    with pytest.raises(errors.InvalidParameterValue):
        ack_and_pop(sql, [claim], f"'q', 'g', {wrong}")
    assert newest(sql)[1] == "c"
    ((acked, *_),) = ack_and_pop(sql, [claim])
    assert acked == [True]


@pytest.mark.parametrize("names", ["'q', 'unknown'", "'unknown', 'g'", "'q', 'external'", "'~', '~'"])
def test_where_there_is_nothing_to_pop_from_the_ack_holds_and_nothing_is_created(sql: Connection, names: str) -> None:
    create_group(sql)
    create_group(sql, "external", mode="external")
    push_some(sql, 1)
    assert ack_and_pop(sql, [must_pop(sql)], names) == [([True], None, None, None, None)]
    assert sql.execute("SELECT name FROM penstock.list_groups() ORDER BY name").fetchall() == [("external",), ("g",)]
    assert pop(sql) is None


def test_the_pop_gets_what_the_ack_has_just_put_into_the_ready_list(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 5)
    claims = [must_pop(sql, most=1)]
    seen = []
    holder = connections.open()
    for _ in range(4):
        ((acked, partition_id, start, _, lease),) = ack_and_pop(holder, claims)
        assert acked == [True]
        claims[0].partition_id, claims[0].lease_id = partition_id, lease
        seen.append(start)
    holder.commit()
    assert seen == [1, 2, 3, 4]
    assert offsets(drain(sql)) == []
    assert violations(sql) == {}


def test_a_lease_of_a_shared_group_that_was_lost_is_told(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 4)
    lost, kept = must_pop(sql, most=1), must_pop(sql, most=1)
    run(sql, Release(lost.lease))
    assert [row[0] for row in ack_and_pop(sql, [lost])] == [[False]]
    assert [row[0] for row in ack_and_pop(sql, [kept])] == [[True]]
    assert violations(sql) == {}


def test_what_is_left_of_a_shared_claim_is_acknowledged_with_it(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 8)
    claim = must_pop(sql, most=4)
    run(sql, Ack([claim.done(claim.start + 1, claim.start + 2)]))
    assert ack_and_pop(sql, [claim])[0][0] == [True]
    assert sql.execute("SELECT count(*) FROM penstock.claims WHERE lease_id = %s", (claim.lease_id,)).fetchall() == [
        (0,)
    ]


def test_a_pop_of_several_takes_one_range_of_a_partition_and_leaves_the_others_to_others(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 20)
    (first,) = ack_and_pop(sql, [], "'q', 'g', max_messages => 2, max_partitions => 5")
    assert first[2:4] == (0, 2)
    rows = ack_and_pop(sql, [], "'q', 'g', max_messages => 2, max_partitions => 5")
    assert [row[2:4] for row in rows] == [(start, start + 2) for start in range(2, 12, 2)]
    assert violations(sql) == {}


@pytest.mark.parametrize("together", [False, True], ids=["one", "two"])
def test_the_acks_of_a_busy_partition_leave_little_to_the_sweep_and_enough_history(
    sql: Connection, together: bool
) -> None:
    create_group(sql)
    push_some(sql, 110)
    rows: list[Any] = []
    claim = must_pop(sql, most=1)
    for _ in range(100):
        # An ack of several claims is another statement; the second is of nobody.
        claims = [claim, replace(claim, partition_id=0)] if together else [claim]
        ((_, claim.partition_id, _, _, claim.lease_id),) = ack_and_pop(sql, claims)
        rows += sql.execute("SELECT count(*) FROM penstock.journal").fetchall()
    assert max(rows) <= (64,)
    assert len(sql.execute("SELECT * FROM penstock.history('q', 'g', 'p')").fetchall()) > 16
    assert violations(sql) == {}


def test_if_it_is_rolled_back_neither_has_happened(connections: Connections, sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 2)
    claim = must_pop(sql, most=1)
    holder = connections.open()
    ack_and_pop(holder, [claim])
    holder.rollback()
    assert newest(sql)[1] == "c"
    assert [row[:1] for row in ack_and_pop(sql, [claim])] == [([True],)]


@pytest.mark.parametrize(("role", "allowed"), [("consumer", True), ("producer", False)])
def test_it_is_for_consumers(penstock_dsn: str, role: str, allowed: bool) -> None:
    user = f"user_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_dsn, autocommit=True) as sql:
        sql.execute(SQL("CREATE ROLE {}").format(Identifier(user)))
        grant(sql, role, user)
        create_group(sql)
        push_some(sql, 2)
        claim = must_pop(sql, most=1)
        sql.execute(SQL("SET ROLE {}").format(Identifier(user)))
        if allowed:
            assert ack_and_pop(sql, [claim])[0][0] == [True]
        else:
            with pytest.raises(errors.InsufficientPrivilege):
                ack_and_pop(sql, [claim])
        sql.execute("RESET ROLE")
        sql.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(Identifier(user)))


def test_of_several_claims_one_that_was_taken_away_during_the_wait_is_lost(fresh: Connections) -> None:
    sql, other, holder = (fresh.open(autocommit=True) for _ in range(3))
    create_group(sql)
    for partition in ("first", "second"):
        push_some(sql, 5, partition)
    claims = run(sql, pop_call(most=3, partitions=2))
    arrays = [[getattr(claim, name) for claim in claims] for name in ("group_id", "partition_id", "lease_id")]

    with holder.transaction(force_rollback=True):
        run(holder, Ack([claims[0].done()]))
        acking = Running(other, QUERY.format("'q', 'g', 'first'"), *arrays, [None] * 2, [None] * 2)
        assert acking.waits(fresh.open(autocommit=True))
        run(sql, Release(claims[1].lease))
        # What was behind the claim is gone from the journal after this: the rows after it have no neighbour any more.
        assert must_pop(sql, partition="second", most=1, auto_ack=True).start == 0

    assert [row[0] for row in acking.rows()] == [[True, False]]
    assert violations(sql) == {}
    assert offsets(drain(sql), "second") == [1, 2, 3, 4]


def test_acks_and_renewals_of_claims_of_one_partition_do_not_deadlock(fresh: Connections) -> None:
    sql, acker, renewer, holder = (fresh.open(autocommit=True) for _ in range(4))
    observer = fresh.open(autocommit=True)
    create_group(sql, mode="shared")
    push_some(sql, 3)
    first, middle, last = sorted((must_pop(sql, most=1) for _ in range(3)), key=lambda claim: str(claim.lease_id))
    places = (first, middle, last)
    arrays = [[getattr(claim, name) for claim in places] for name in ("group_id", "partition_id", "lease_id")]

    with holder.transaction(force_rollback=True):
        run(holder, Ack([middle.done()]))
        renewing = Running(
            renewer, "SELECT penstock.renew_claims(%s::integer[], %s::bigint[], %s::uuid[], 60)", *arrays
        )
        assert renewing.waits(observer)
        two = [[values[2], values[0]] for values in arrays]
        acking = Running(acker, "SELECT penstock.ack_claims(%s::integer[], %s::bigint[], %s::uuid[])", *two)
        assert acking.waits(observer)

    assert None not in renewing.value()
    assert acking.value() == [True, True]
    assert violations(sql) == {}
