"""A held group gets nothing until the time has come; then all, or one message as a probe, whoever asks."""

import pytest
from groups.steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    pop,
    pop_call,
    push_some,
    push_to_many,
    run,
    violations,
)

from databases import Connection, Connections

from .steps import Clock, hold, is_pending, unhold, writing_nothing


@pytest.mark.parametrize("mode", MODES)
def test_a_hold_ends_by_itself(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 3)
    hold(sql, 10, probing=False)
    with writing_nothing(sql):
        assert (pop(sql), is_pending(sql)) == (None, False)
    clock.set(9.9)
    assert (pop(sql), is_pending(sql)) == (None, False)
    clock.set(10)
    assert is_pending(sql)
    assert len(drain(sql)) == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("named", [None, "n1"])
def test_a_probe_is_one_message_and_the_next_one_comes_after_as_long(
    sql: Connection, clock: Clock, mode: str, named: str | None
) -> None:
    create_group(sql, mode=mode)
    push_to_many(sql, 2)
    push_some(sql, 3, "n1")
    hold(sql, 10, probing=True)
    clock.set(11)
    (probe,) = run(sql, pop_call(partitions=5, partition=named))
    assert len(probe.messages) == 1
    assert (run(sql, pop_call(partitions=5)), is_pending(sql)) == ([], False)
    clock.set(20.9)
    assert pop(sql) is None
    clock.set(21)
    second = must_pop(sql)
    assert len(second.messages) == 1
    assert pop(sql) is None
    assert unhold(sql) is True
    ack(sql, probe)
    ack(sql, second)
    assert len(drain(sql)) == 3
    assert unhold(sql) is False
    assert violations(sql) == {}


def test_a_probe_waits_for_a_message_and_writes_nothing_until_then(sql: Connection, clock: Clock) -> None:
    create_group(sql)
    hold(sql, 10, probing=True)
    clock.set(50)
    with writing_nothing(sql):
        assert (pop(sql), is_pending(sql)) == (None, False)
    push_some(sql, 2)
    assert len(must_pop(sql).messages) == 1
    assert pop(sql) is None


def test_of_two_who_ask_at_the_same_time_one_gets_the_probe(
    sql: Connection, clock: Clock, connections: Connections
) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    hold(sql, 10, probing=True)
    clock.set(10)
    first, second = connections.open(), connections.open()
    got = [pop(first), pop(second)]
    first.commit()
    got.append(pop(second))
    second.commit()
    assert [claim is not None for claim in got] == [True, False, False]


def test_a_probe_that_was_rolled_back_is_given_again(sql: Connection, clock: Clock, connections: Connections) -> None:
    create_group(sql)
    push_to_many(sql, 2)
    hold(sql, 10, probing=True)
    clock.set(10)
    first = connections.open()
    assert pop(first) is not None
    first.rollback()
    assert pop(sql) is not None
    assert pop(sql) is None


def test_a_clock_that_goes_back_holds_nobody_for_longer(sql: Connection, clock: Clock) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    clock.set(1000)
    hold(sql, 10, probing=True)
    clock.set(0)
    assert is_pending(sql)
    assert len(must_pop(sql).messages) == 1
    assert pop(sql) is None
    clock.set(10)
    assert len(must_pop(sql).messages) == 1


def test_a_hold_without_end_outlasts_a_clock_that_goes_back(sql: Connection, clock: Clock) -> None:
    create_group(sql)
    push_some(sql, 1)
    clock.set(1000)
    sql.execute("SELECT penstock.hold_group(group_id, 'infinity') FROM penstock.consumer_groups")
    clock.set(0)
    assert (pop(sql), is_pending(sql)) == (None, False)
    assert unhold(sql)
    assert pop(sql) is not None
