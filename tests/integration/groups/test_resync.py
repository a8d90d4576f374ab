"""Resync repairs readiness after a restore; at any other time, and beside live traffic, it changes nothing."""

import threading

import pytest
from log.interleaving import Running, mutate, push

from databases import Connection, Connections
from penstock import Client
from penstock.broker.operations.groups import Resync

from .steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    nack,
    offsets,
    pop,
    push_some,
    push_to_many,
    run,
    violations,
)

IDLE_WITH_WORK = "UPDATE penstock.journal SET committed = 0, claimed_to = 0 WHERE state = 'i'"
PLACES_LOST = "DELETE FROM penstock.ready"
PLACES_OF_NOBODY = (
    "INSERT INTO penstock.ready (group_id, priority, seq, partition_id)"
    " SELECT group_id, 0, 5000000 + partition_id, partition_id FROM penstock.consumer_groups, penstock.partitions"
)
LEVEL_LOST = "UPDATE penstock.ready SET priority = 77"
ALL_LOST = "DELETE FROM penstock.journal"


def resync(connection: Connection) -> int:
    """Repair, and return how much was repaired."""
    return run(connection, Resync()).repaired


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ([IDLE_WITH_WORK], "work_not_ready"),
        ([PLACES_LOST], "ready_without_entry"),
        ([PLACES_OF_NOBODY], "entries_of_nobody"),
        ([LEVEL_LOST], "entries_at_unknown_priority"),
        ([ALL_LOST, PLACES_LOST], "work_not_taken_up"),
    ],
    ids=["idle with work", "places lost", "places of nobody", "level lost", "all lost"],
)
def test_resync_repairs_what_verify_finds_and_then_finds_nothing_more_to_do(
    sql: Connection, mode: str, damage: list[str], found: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3, "done")
    drain(sql)
    push_some(sql, 3)
    for statement in damage:
        sql.execute(statement.encode())
    assert set(violations(sql)) == {found}
    assert resync(sql) > 0
    assert violations(sql) == {}
    assert resync(sql) == 0
    came = drain(sql)
    assert offsets(came) == [0, 1, 2]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_resync_gives_a_queue_the_priorities_of_its_partitions_and_of_ranges_back(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    sql.execute("SELECT penstock.configure_partition('q', 'p', 7)")
    push_some(sql, 30)
    claim = must_pop(sql, most=3)
    assert nack(sql, claim) == "retry"
    sql.execute("UPDATE penstock.queues SET priorities = '{0}'")
    assert set(violations(sql)) == {"entries_at_unknown_priority"}
    assert pop(sql) is None
    resync(sql)
    assert violations(sql) == {}
    assert sorted(offsets(drain(sql))) == list(range(30))


def test_resync_sets_the_sequence_past_the_places_that_were_given(sql: Connection) -> None:
    create_group(sql)
    push(sql, "a")
    sql.execute("SELECT setval('penstock.ready_seq', 1)")
    sql.execute("UPDATE penstock.ready SET seq = 1000"), sql.execute("UPDATE penstock.journal SET ready_seq = 1000")
    resync(sql)
    push(sql, "b")
    assert sql.execute("SELECT min(seq), max(seq) FROM penstock.ready").fetchall() == [(1000, 1001)]


def numbers_taken_during_resync(connections: Connections, sql: Connection, *change: tuple[str, str]) -> bool:
    """Others take numbers after resync took one, before it uses it; say whether the next number is a new one."""
    create_group(sql)
    push(sql)
    sql.execute(
        "CREATE OR REPLACE FUNCTION public.stopped() RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE taken bigint :="
        " nextval('penstock.ready_seq'); BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN taken; END $$"
    )
    mutate(sql, "resync", *change, ("nextval('penstock.ready_seq')", "public.stopped()"))
    gate, resyncer = connections.open(), connections.open(autocommit=True)
    gate.execute("SELECT pg_advisory_xact_lock(4711)")
    resyncing = Running(resyncer, "SELECT repaired FROM penstock.resync()")
    assert resyncing.waits(sql)
    ((given,),) = sql.execute("SELECT max(nextval('penstock.ready_seq')) FROM generate_series(1, 50)").fetchall()
    gate.commit()
    resyncing.rows()
    ((following,),) = sql.execute("SELECT nextval('penstock.ready_seq')").fetchall()
    return bool(following > given)


def test_resync_gives_no_number_twice_that_others_took_meanwhile(fresh: Connections) -> None:
    assert numbers_taken_during_resync(fresh, fresh.open(autocommit=True))


def test_setting_the_sequence_every_time_would_give_numbers_twice(fresh: Connections) -> None:
    always = (
        "IF given > nextval('penstock.ready_seq') THEN\n            PERFORM setval('penstock.ready_seq', given);",
        "IF true THEN PERFORM setval('penstock.ready_seq', greatest(given, nextval('penstock.ready_seq')));",
    )
    assert not numbers_taken_during_resync(fresh, fresh.open(autocommit=True), always)


@pytest.mark.parametrize("mode", MODES)
def test_a_partition_that_is_being_popped_is_not_put_in_line_again(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    popper = connections.open()
    claim = must_pop(popper)
    assert resync(sql) == 0
    popper.commit()
    assert resync(sql) == 0
    assert pop(sql) is None
    ack(sql, claim)
    assert violations(sql) == {}


def test_resync_again_and_again_beside_two_who_push_and_pop_changes_nothing(dsn: str, sql: Connection) -> None:
    create_group(sql), create_group(sql, "s", "shared")
    push_to_many(sql, 100)
    failures: list[BaseException] = []
    came: list[tuple[str, str, int]] = []

    def work(client: Client, group: str) -> None:
        try:
            for number in range(150):
                client.push("q", number, partition=f"n{number % 100 + 1}")
                batch = client.pop("q", group, max_partitions=3)
                if batch is not None:
                    came.extend((group, message.partition, message.offset) for message in batch.messages)
                    batch.ack()
        except BaseException as error:
            failures.append(error)

    with Client(dsn) as client:
        threads = [threading.Thread(target=work, args=(client, group)) for group in ("g", "s")]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert client.resync() == 0
            assert violations(sql) == {}
        for thread in threads:
            thread.join()
    assert failures == []
    for group in ("g", "s"):
        came.extend((group, *place) for place in drain(sql, group, partitions=20))
    assert len(came) == len(set(came)) == 2 * 400
    assert violations(sql) == {}
