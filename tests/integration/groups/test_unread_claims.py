"""What cannot be read is not claimed: a purge beside a pop leaves no claim that nobody knows of."""

import pytest
from log.interleaving import mutate, push

from databases import Connections

from .steps import MODES, create_group, must_pop, newest, pop_call, push_some, start, violations

STOP = (
    "CREATE OR REPLACE FUNCTION public.stopped(bigint, bigint, stop_offset bigint, bigint) RETURNS bigint"
    " LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN stop_offset; END $$"
)
CLAIM = {"ordered": "claim_partition", "shared": "claim_range"}


@pytest.mark.parametrize("auto_ack", [False, True], ids=["leased", "auto_ack"])
@pytest.mark.parametrize("mode", MODES)
def test_a_pop_whose_messages_are_purged_meanwhile_claims_nothing(
    fresh: Connections, mode: str, auto_ack: bool
) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, mode=mode)
    for _ in range(3):
        push_some(sql, 1)
    sql.execute(STOP)
    for function in ("ack_and_pop", CLAIM[mode]):
        mutate(sql, function, ("penstock.stop_after_bytes(", "public.stopped("))
    gate, popper = fresh.open(), fresh.open(autocommit=True)
    gate.execute("SELECT pg_advisory_xact_lock(4711)")
    popping = start(popper, pop_call(auto_ack=auto_ack))
    assert popping.waits(sql)
    sql.execute("SELECT penstock.purge('q')")
    gate.commit()

    assert popping.rows() == []
    assert newest(sql)[1] == "p"
    assert sql.execute("SELECT count(*) FROM penstock.claims").fetchall() == [(0,)]
    assert sql.execute("SELECT sum(lag) FROM penstock.list_groups()").fetchall() == [(0,)]
    push(sql)
    assert must_pop(sql).start == 3
    assert sql.execute("SELECT skipped FROM penstock.partition_consumers").fetchall() == [(3,)]
    assert violations(sql) == {}
