"""Everybody gets a turn: a partition with a mountain of messages waits its turn like the others."""

import pytest
from log.interleaving import PUSHES, Running

from databases import Connection, Connections

from .steps import MODES, ack_of, create_group, drain, must_pop, pop_call, push_some, push_to_many, run, violations

SMALL, MOUNTAIN = 299, 400_000


@pytest.mark.parametrize("mode", MODES)
def test_one_partition_with_a_mountain_of_messages_delays_the_others_by_one_turn(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, MOUNTAIN, "mountain")
    push_to_many(sql, SMALL)
    waiting = {f"n{number}" for number in range(1, SMALL + 1)}
    pops = 0
    while waiting:
        claims = run(sql, pop_call(most=1000))
        pops += 1
        assert claims, "nothing was ready"
        waiting.discard(claims[0].partition)
        run(sql, ack_of(claims))
        # A shared group lays eight ranges of the mountain in the ready list at once, and its frontier.
        assert pops <= SMALL + 1 + 2 * 9, f"{len(waiting)} partitions were not served in one turn"


@pytest.mark.parametrize("mode", MODES)
def test_the_mountain_is_served_too_once_a_turn(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1000, "mountain")
    push_to_many(sql, 9)
    served: list[str] = []
    for turn in range(4):
        for _ in range(10):
            claims = run(sql, pop_call(most=10))
            served.append(claims[0].partition)
            run(sql, ack_of(claims))
        push_to_many(sql, 9)
        assert served.count("mountain") > turn


@pytest.mark.parametrize("mode", MODES)
def test_places_with_nothing_to_give_do_not_hide_the_work_behind_them(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_to_many(sql, 50)
    sql.execute("SELECT penstock.purge('q')")
    push_some(sql, 1)
    claims = run(sql, pop_call())
    assert [claim.partition for claim in claims] == ["p"]


def serve(sql: Connection, mode: str, pops: int) -> list[str]:
    """Pop and acknowledge so often, one message at a time; return where from."""
    served = []
    for _ in range(pops):
        claims = run(sql, pop_call(most=1))
        if claims:
            served.append(claims[0].partition)
            run(sql, ack_of(claims))
    return served


@pytest.mark.parametrize("mode", MODES)
def test_a_higher_priority_is_served_first(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    for name, priority in (("high", 5), ("middle", 0), ("low", -3)):
        sql.execute("SELECT penstock.create_partition('q', %s, %s)", (name, priority))
        push_some(sql, 200, name)
    served = serve(sql, mode, 160)
    # Seven of eight pops begin at the top: with 160 of them fewer than 100 have a chance below 1 in 10^12.
    assert served.count("high") >= 100
    assert served.count("middle") < 60


@pytest.mark.parametrize("mode", MODES)
def test_every_priority_has_its_share_and_a_higher_one_a_larger_one(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    names = [f"level {level}" for level in range(4)]
    for level, name in enumerate(names):
        sql.execute("SELECT penstock.create_partition('q', %s, %s)", (name, -level))
        push_some(sql, 1000, name)
    # The same random numbers each time: the shares are 875, 69, 42 and 14 of a thousand.
    sql.execute("SELECT setseed(0.5)")
    served = serve(sql, mode, 800)
    shares = [served.count(name) for name in names]
    assert min(shares) > 0
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("mode", MODES)
def test_the_lowest_priority_does_not_starve(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    for name, priority in (("high", 5), ("middle", 0), ("low", -3)):
        sql.execute("SELECT penstock.create_partition('q', %s, %s)", (name, priority))
    push_some(sql, 1000, "high")
    push_some(sql, 1, "low")
    # Each pop begins at the bottom with a chance of 1/8: 220 that do not are a chance of 2 in 10^13.
    assert "low" in serve(sql, mode, 220)


@pytest.mark.parametrize("push", PUSHES)
def test_a_push_that_waited_for_a_new_priority_puts_the_partition_in_line_with_it(
    fresh: Connections, push: str
) -> None:
    sql, busy = fresh.open(autocommit=True), fresh.open(autocommit=True)
    groups = [create_group(sql, name) for name in ("g", "h")]
    push_some(sql, 1)
    for name in ("g", "h"):
        drain(sql, name)
    with sql.transaction():
        sql.execute("SELECT penstock.configure_partition('q', 'p', 5)")
        pushing = Running(busy, push, "p")
        assert pushing.waits(fresh.open(autocommit=True))
    pushing.rows()
    entries = sql.execute("SELECT group_id, priority FROM penstock.ready ORDER BY 1").fetchall()
    assert entries == [(group, 5) for group in groups]
    assert violations(sql) == {}
    assert [must_pop(sql, name).start for name in ("g", "h")] == [1, 1]
