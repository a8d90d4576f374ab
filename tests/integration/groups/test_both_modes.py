"""One call settles claims of ordered and of shared groups: each is settled as its group's mode says."""

from uuid import uuid4

from databases import Connection

from .steps import create_group, drain, must_pop, push_some, violations

ARRAYS = "ARRAY[%s, %s, %s]::integer[], ARRAY[%s, %s, %s]::bigint[], ARRAY[%s, %s, %s]::uuid[]"


def claims_of_both(sql: Connection) -> list[object]:
    """Return ids of a shared claim, of an ordered one, and of one with a lease that nobody has, as three arrays."""
    create_group(sql, "shared", mode="shared")
    create_group(sql, "ordered")
    push_some(sql, 3)
    shared, ordered = must_pop(sql, "shared"), must_pop(sql, "ordered")
    ids = [shared.group_id, ordered.group_id, ordered.group_id]
    ids += [shared.partition_id, ordered.partition_id, ordered.partition_id]
    return [*ids, shared.lease_id, ordered.lease_id, uuid4()]


def test_one_call_acknowledges_claims_of_both_modes_in_the_order_given(sql: Connection) -> None:
    claims = claims_of_both(sql)
    row = sql.execute(f"SELECT penstock.ack_claims({ARRAYS})".encode(), claims).fetchone()
    assert row == ([True, True, False],)
    assert drain(sql, "shared") == drain(sql, "ordered") == []
    assert violations(sql) == {}


def test_a_part_of_a_claim_is_acknowledged_as_the_mode_says(sql: Connection) -> None:
    claims = claims_of_both(sql)
    query = f"SELECT penstock.ack_claims({ARRAYS}, ARRAY[1, 1, NULL]::bigint[], ARRAY[2, 2, NULL]::bigint[])"
    assert sql.execute(query.encode(), claims).fetchone() == ([True, True, False],)
    ranges = sql.execute("SELECT lo, hi FROM penstock.claims ORDER BY lo").fetchall()
    assert ranges == [(0, 1), (2, 3)]
    newest = sql.execute(
        "SELECT committed, claimed_to FROM penstock.journal WHERE state = 'c' ORDER BY version DESC LIMIT 1"
    ).fetchone()
    assert newest == (2, 3)


def test_one_call_renews_claims_of_both_modes_in_the_order_given(sql: Connection) -> None:
    claims = claims_of_both(sql)
    row = sql.execute(f"SELECT penstock.renew_claims({ARRAYS}, 600)".encode(), claims).fetchone()
    assert row is not None
    assert [until is not None for until in row[0]] == [True, True, False]
    deadlines = sql.execute("SELECT expires_at FROM penstock.list_claims()").fetchall()
    assert sorted(until for (until,) in deadlines) == sorted(row[0][:2])


def test_without_a_lease_id_every_claim_of_a_partition_in_a_shared_group_is_taken_away(sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 2)
    first, _ = must_pop(sql, most=1), must_pop(sql, most=1)
    query = "SELECT penstock.release_claim(%s, %s)"
    assert sql.execute(query, (first.group_id, first.partition_id)).fetchone() == (True,)
    assert sql.execute("SELECT * FROM penstock.list_claims()").fetchall() == []
    assert sorted(drain(sql)) == [("p", 0), ("p", 1)]
