"""Retention drops nothing that is to be archived and is not."""

import psycopg
import pytest
from log.interleaving import mutate

from databases import Connection
from penstock import Client

from .steps import begin, push, record


def dropped(client: Client) -> int:
    return sum(done.dropped_messages for done in client.maintain())


def floor(client: Client) -> int:
    return client.partitions("q")[0].floor


def test_a_queue_that_was_never_archived_waits_for_nothing(client: Client, sql: Connection) -> None:
    client.create("q", retention_bytes=1)
    push(sql, 3)
    assert dropped(client) == 2


def test_from_the_first_archive_on_retention_waits(client: Client, sql: Connection) -> None:
    client.create("q", retention_bytes=1)
    push(sql, 4)
    # Begun is enough: what it reads must not go while it reads.
    run = begin(sql)
    assert dropped(client) == 0
    record(sql, run, (0, 2))
    assert dropped(client) == 2
    assert floor(client) == 2
    # It waits for groups as before, too.
    client.create_group("q", "slow")
    record(sql, begin(sql), (2, 4))
    assert dropped(client) == 0
    client.delete_group("q", "slow")
    assert dropped(client) == 1


@pytest.mark.parametrize(("rule", "expected"), [("on", 0), ("off", 3), ("auto", 3)])
def test_the_setting_decides_for_a_queue_without_an_archive(
    client: Client, sql: Connection, rule: str, expected: int
) -> None:
    client.create("q", retention_bytes=1, keep_until_archived=rule)
    push(sql, 4)
    assert dropped(client) == expected


def test_off_drops_what_is_not_archived(client: Client, sql: Connection) -> None:
    client.create("q", retention_bytes=1, keep_until_archived="off")
    push(sql, 4)
    record(sql, begin(sql), (0, 1))
    assert dropped(client) == 3


def test_private_lanes_do_not_wait(client: Client, sql: Connection) -> None:
    client.create("q", max_attempts=1, keep_until_archived="on", retention_rule="drop_and_count")
    push(sql)
    batch = client.pop("q", "g")
    assert batch is not None
    batch.nack(error="broken")
    assert client.redrive("q", "g") == 1
    client.configure("q", retention_bytes=1, max_attempts=None)
    lane = "(SELECT p.partition_id FROM penstock.partitions p WHERE p.lane_of IS NOT NULL)"
    bound = "SELECT penstock.archive_bound(%s, q.settings) > 0 FROM penstock.queues q"
    assert sql.execute(bound.replace("%s", lane).encode()).fetchall() == [(True,)]
    assert sql.execute(bound.replace("%s", "penstock.find_partition('q', 'p')").encode()).fetchall() == [(False,)]


def test_archived_segments_are_dropped_on_demand_but_for_what_groups_have_to_read(
    client: Client, sql: Connection
) -> None:
    push(sql, 4)
    push(sql, 4, partition="other")
    record(sql, begin(sql), (0, 3))
    client.create_group("q", "slow")
    drop = "SELECT dropped_segments, dropped_messages, next_partition FROM penstock.drop_archived('q')"
    assert sql.execute(drop).fetchall() == [(0, 0, None)]
    client.configure("q", retention_rule="drop_and_count")
    assert sql.execute(drop).fetchall() == [(3, 3, None)]
    assert {one.name: one.floor for one in client.partitions("q")} == {"p": 3, "other": 0}


def test_without_the_bound_retention_would_not_wait(penstock_dsn: str) -> None:
    with Client(penstock_dsn) as client:
        client.create("q", retention_bytes=1, keep_until_archived="on")
        client.push("q", [b"a"], partition="p")
        client.push("q", [b"b"], partition="p")
        assert dropped(client) == 0
        with psycopg.connect(penstock_dsn, autocommit=True) as connection:
            bound = "least(cutoff, penstock.archive_bound(partition_id, settings))"
            mutate(connection, "retain_partition", (bound, "cutoff"))
        assert dropped(client) == 1
