"""Nothing is claimed twice: thanks to the ready list entry, to the journal that names it, and in the end to its key."""

import pytest
from log.interleaving import mutate
from psycopg import errors

from databases import Connection, Connections

from .steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    offsets,
    pop,
    pop_call,
    push_some,
    run,
    start,
    violations,
)

# Of pops that take one partition, or several. One of an ordered group is written out in ack_and_pop.
CHECKS = {
    ("ordered", 1): ("ack_and_pop", ("j.state = 'r' AND j.ready_seq = entry.seq", "true")),
    ("ordered", 2): (
        "claim_partition",
        ("before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry_seq", "false"),
    ),
    ("shared", 1): ("claim_range", ("before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry.seq", "false")),
}


def repeat_places(sql: Connection) -> None:
    """Give every partition in the ready list a second entry, as a restore could."""
    sql.execute(
        "INSERT INTO penstock.ready (group_id, priority, seq, partition_id)"
        " SELECT group_id, priority, seq + 1000, partition_id FROM penstock.ready WHERE lo IS NULL"
    )


def pop_from_a_stale_place(sql: Connection, partitions: int) -> list[int]:
    """Hold a claim, and pop again from an entry that the partition had before; return what came."""
    create_group(sql)
    push_some(sql, 3)
    repeat_places(sql)
    held = must_pop(sql, partition="p", most=1)
    again = pop(sql, partitions=partitions)
    return [claim.start for claim in (held, again) if claim is not None]


@pytest.mark.parametrize("mode", MODES)
def test_a_second_pop_neither_waits_nor_claims_what_the_first_is_claiming(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 10)
    first, second = connections.open(), connections.open(autocommit=True)
    claim = must_pop(first)
    popping = start(second, pop_call())
    assert not popping.waits(sql)
    assert popping.rows() == []
    first.commit()
    assert pop(second) is None
    ack(sql, claim)
    assert drain(sql) == []


def test_without_skip_locked_a_second_pop_waits_for_the_first(fresh: Connections) -> None:
    sql, first, second = fresh.open(autocommit=True), fresh.open(), fresh.open(autocommit=True)
    create_group(sql)
    push_some(sql, 10)
    mutate(sql, "ack_and_pop", ("FOR UPDATE SKIP LOCKED", "FOR UPDATE"))
    must_pop(first)
    popping = start(second, pop_call())
    assert popping.waits(sql)
    first.commit()
    assert popping.rows() == []


@pytest.mark.parametrize("mode", MODES)
def test_what_a_pop_that_rolls_back_had_claimed_goes_to_the_next(
    connections: Connections, sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 10)
    first = connections.open()
    must_pop(first)
    first.rollback()
    assert offsets(drain(sql)) == list(range(10))


def test_pops_of_a_shared_group_get_ranges_that_do_not_overlap(connections: Connections, sql: Connection) -> None:
    create_group(sql, mode="shared")
    push_some(sql, 100)
    consumers = [connections.open() for _ in range(4)]
    first = must_pop(consumers[0], most=10)
    assert pop(consumers[1], most=10) is None
    consumers[0].commit()
    claims = [first, *(must_pop(consumer, most=10) for consumer in consumers[1:])]
    for consumer in consumers[1:]:
        consumer.commit()
    ranges = sorted((claim.start, claim.stop) for claim in claims)
    assert [start for start, _ in ranges] == [0, 10, 20, 30]
    assert violations(sql) == {}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_stale_entry_gives_nothing_while_a_claim_is_held(sql: Connection, partitions: int) -> None:
    assert pop_from_a_stale_place(sql, partitions) == [0]
    assert violations(sql) == {}


@pytest.mark.parametrize("partitions", [1, 2])
def test_without_the_look_at_the_journal_a_stale_place_gives_a_second_claim(
    fresh: Connections, partitions: int
) -> None:
    sql = fresh.open(autocommit=True)
    function, change = CHECKS["ordered", partitions]
    mutate(sql, function, change)
    assert pop_from_a_stale_place(sql, partitions) == [0, 0]


def two_places(connections: Connections, sql: Connection, mode: str, partitions: int) -> list[int]:
    """Two pops at once, from two places of the same partition; return what each was given."""
    create_group(sql, mode=mode)
    push_some(sql, 3)
    repeat_places(sql)
    first, second = connections.open(), connections.open(autocommit=True)
    # The first takes its entry by name: of several partitions it would take both entries.
    one = run(first, pop_call(most=1, partition="p" if partitions > 1 else None))
    popping = start(second, pop_call(most=1, partitions=partitions))
    popping.waits(sql)
    first.commit()
    # Column 6 is where the claim begins.
    return [*(claim.start for claim in one), *(row[6] for row in popping.rows())]


@pytest.mark.parametrize(("mode", "partitions"), CHECKS)
def test_of_two_places_of_a_partition_only_the_journals_own_gives_messages(
    connections: Connections, sql: Connection, mode: str, partitions: int
) -> None:
    assert two_places(connections, sql, mode, partitions) == [0]
    assert violations(sql) == {}


@pytest.mark.parametrize(("mode", "partitions"), CHECKS)
def test_without_that_look_the_journals_key_still_refuses_the_second_claim(
    fresh: Connections, mode: str, partitions: int
) -> None:
    sql = fresh.open(autocommit=True)
    function, change = CHECKS[mode, partitions]
    mutate(sql, function, change)
    with pytest.raises(errors.UniqueViolation):
        two_places(fresh, sql, mode, partitions)


def test_without_that_look_and_the_key_a_message_is_claimed_twice(penstock_dsn: str) -> None:
    with Connections(penstock_dsn) as connections:
        sql = connections.open(autocommit=True)
        function, change = CHECKS["ordered", 1]
        mutate(sql, function, change)
        sql.execute("ALTER TABLE penstock.journal DROP CONSTRAINT journal_pkey")
        assert two_places(connections, sql, "ordered", 1) == [0, 0]
