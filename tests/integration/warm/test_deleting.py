"""Heartbeats of windows beside somebody who deletes the group: no lease of nothing stays."""

import pytest
from groups.steps import create_group, violations
from log.interleaving import Running

from databases import Connection, Connections
from penstock import Client

DELETE = {
    "group": "SELECT penstock.delete_group('q', 'g')",
    "queue": "SELECT penstock.delete_queue('q')",
}
HOLD = "SELECT epoch FROM penstock.hold_warm_lease(%s, 'me', %s)"


def group_id_of(sql: Connection) -> int:
    create_group(sql, warm=True)
    ((group_id,),) = sql.execute("SELECT group_id FROM penstock.consumer_groups").fetchall()
    return int(group_id)


@pytest.mark.parametrize("what", DELETE)
@pytest.mark.parametrize("held", [True, False], ids=["held", "not held"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
def test_a_heartbeat_waits_for_whoever_deletes_the_group_and_looks_again(
    connections: Connections, sql: Connection, what: str, held: bool, committed: bool
) -> None:
    group_id = group_id_of(sql)
    if held:
        sql.execute(HOLD, (group_id, None))
    one, other = connections.open(), connections.open(autocommit=True)
    one.execute(DELETE[what].encode())

    beat = Running(other, HOLD, group_id, 1 if held else None)
    assert beat.waits(sql)
    one.commit() if committed else one.rollback()

    assert beat.rows() == ([] if committed else [(1,)])
    assert violations(sql) == {}


@pytest.mark.parametrize("what", DELETE)
def test_whoever_deletes_the_group_waits_for_a_heartbeat_and_removes_its_lease(
    connections: Connections, sql: Connection, what: str
) -> None:
    group_id = group_id_of(sql)
    one, other = connections.open(), connections.open(autocommit=True)
    one.execute(HOLD, (group_id, None))

    deleting = Running(other, DELETE[what])
    assert deleting.waits(sql)
    # The same again, while the other one waits: it holds nothing that a heartbeat needs.
    assert one.execute(HOLD, (group_id, 1)).fetchall() == [(1,)]
    one.commit()

    deleting.rows()
    assert violations(sql) == {}


def test_maintenance_removes_the_lease_of_no_group(client: Client, sql: Connection) -> None:
    sql.execute(
        "INSERT INTO penstock.warm_leases (group_id, epoch, dispatcher, deadline) VALUES (77, 1, 'me', 'infinity')"
    )
    assert violations(sql) == {"orphan_warm_leases": 1}

    list(client.maintain())

    assert violations(sql) == {}
