"""Ages of claims count from the hand-out: neither renewals nor partial acknowledgements nor sweeps reset them."""

from collections.abc import Callable
from datetime import datetime

import pytest

from databases import Connection
from penstock.broker.claims import Claim

from .steps import MODES, ack_of, create_group, must_pop, push_some, renew, run, sweep

AGES: list[Callable[[Connection], list[tuple[datetime]]]] = [
    lambda sql: sql.execute("SELECT acquired_at FROM penstock.list_claims()").fetchall(),
    lambda sql: sql.execute("SELECT oldest_since FROM penstock.list_groups()").fetchall(),
]


def renew_it(sql: Connection, claim: Claim) -> None:
    renew(sql, claim)


def acknowledge_a_part(sql: Connection, claim: Claim) -> None:
    run(sql, ack_of([claim], claim.start + 1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("do", [renew_it, acknowledge_a_part])
def test_a_claim_is_as_old_as_its_hand_out_however_long_it_is_kept(
    sql: Connection, mode: str, do: Callable[[Connection, Claim], None]
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 5)
    ((before,),) = sql.execute("SELECT clock_timestamp()").fetchall()
    claim = must_pop(sql)
    ((after,),) = sql.execute("SELECT clock_timestamp()").fetchall()

    do(sql, claim)
    for _ in range(3):
        renew(sql, claim)
        # The timers of all but the newest row are due: the sweep trims those.
        sql.execute(
            "UPDATE penstock.journal j SET due_at = due_at - interval '1 day' WHERE EXISTS"
            " (SELECT 1 FROM penstock.journal n WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id"
            " AND n.version > j.version)"
        )
        sweep(sql)

    for ages in AGES:
        ((since,),) = ages(sql)
        assert before <= since <= after


def test_the_view_of_consumers_says_when_the_lease_was_acquired(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 5)
    claim = must_pop(sql)
    acquired = "SELECT lease_acquired_at FROM penstock.partition_consumers"
    before = sql.execute(acquired).fetchall()
    renew(sql, claim)
    assert sql.execute(acquired).fetchall() == before
