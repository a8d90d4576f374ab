"""A group that conflates gets the newest message of each partition; the older ones are done."""

import pytest
from groups.steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    nack,
    newest,
    pass_time,
    pop,
    push_some,
    run,
    sweep,
    violations,
)

from databases import Connection
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Release
from penstock.broker.operations.groups import ListGroups
from penstock.broker.operations.items import CancelMessages

from .steps import configure


def offsets_of(claim: Claim) -> list[int]:
    return [message.offset for message in claim.messages]


def lags(connection: Connection) -> tuple[int, int]:
    (group,) = run(connection, ListGroups("q"))
    return group.lag, group.effective_lag


@pytest.mark.parametrize("mode", MODES)
def test_only_the_newest_message_is_delivered_and_the_rest_is_done(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    for _ in range(3):
        push_some(sql, 7)
    push_some(sql, 2, "other")
    assert lags(sql) == (23, 2)
    assert sorted(drain(sql)) == [("other", 1), ("p", 20)]
    assert lags(sql) == (0, 0)
    push_some(sql, 1)
    assert drain(sql) == [("p", 21)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_counts_as_done_at_once_is_conflated_too(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 7)
    assert offsets_of(must_pop(sql, auto_ack=True)) == [6]
    push_some(sql, 2)
    pass_time(sql, "p")
    sweep(sql)
    assert offsets_of(must_pop(sql, auto_ack=True)) == [8]
    assert drain(sql) == []
    assert lags(sql) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_what_comes_while_one_is_in_work_is_conflated_too(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 3)
    claim = must_pop(sql)
    assert offsets_of(claim) == [2]
    push_some(sql, 4)
    pass_time(sql, "p")
    sweep(sql)
    assert lags(sql) == (5, 2)
    ack(sql, claim)
    assert drain(sql) == [("p", 6)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_failed_comes_again_only_if_it_is_still_the_newest(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 3)
    first = must_pop(sql)
    nack(sql, first)
    again = must_pop(sql)
    assert (offsets_of(again), again.attempt) == ([2], 2)
    nack(sql, again)
    push_some(sql, 1)
    pass_time(sql, "p")
    sweep(sql)
    newer = must_pop(sql)
    assert (offsets_of(newer), newer.attempt) == ([3], 1)
    ack(sql, newer)
    assert drain(sql) == []
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_one_that_was_given_back_makes_room_for_a_newer_one(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 3)
    claim = must_pop(sql)
    push_some(sql, 3)
    assert run(sql, Release(claim.lease))
    assert drain(sql) == [("p", 5)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_group_that_stops_to_conflate_gets_all_that_comes_after(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 3)
    assert drain(sql) == [("p", 2)]
    configure(sql, '{"conflate": null}')
    push_some(sql, 3)
    assert sorted(drain(sql)) == [("p", 3), ("p", 4), ("p", 5)]


def test_conflated_messages_are_not_counted_as_skipped(sql: Connection) -> None:
    create_group(sql, conflate=True)
    push_some(sql, 5)
    must_pop(sql)
    assert newest(sql)[2:4] == (4, 5)
    assert sql.execute("SELECT skipped FROM penstock.partition_consumers").fetchall() == [(0,)]


def test_messages_that_wait_alone_after_a_failure_are_conflated(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 5)
    nack(sql, must_pop(sql))
    configure(sql, '{"conflate": true}')
    claim = must_pop(sql)
    assert (offsets_of(claim), claim.attempt) == ([4], 2)
    push_some(sql, 1)
    nack(sql, claim)
    claim = must_pop(sql)
    assert (offsets_of(claim), claim.attempt) == ([5], 1)
    ack(sql, claim)
    assert pop(sql) is None
    assert violations(sql) == {}


def cancel(connection: Connection, *offsets: int) -> None:
    rows = connection.execute(
        "SELECT m.id FROM penstock.messages m WHERE m.queue_name = 'q' AND m.message_offset = ANY (%s)",
        (list(offsets),),
    ).fetchall()
    assert len(run(connection, CancelMessages([found for (found,) in rows]))) == len(offsets)


@pytest.mark.parametrize("mode", MODES)
def test_the_newest_message_that_was_not_cancelled_is_delivered(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 300)
    cancel(sql, 3, *range(150, 300))
    assert drain(sql) == [("p", 149)]
    assert lags(sql) == (0, 0)
    push_some(sql, 2)
    cancel(sql, 300, 301)
    assert drain(sql) == []
    assert lags(sql) == (0, 0)
    push_some(sql, 1)
    assert drain(sql) == [("p", 302)]
    assert violations(sql) == {}


@pytest.mark.parametrize("pops_between", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_one_that_failed_comes_again_if_all_that_are_newer_were_cancelled(
    sql: Connection, mode: str, pops_between: bool
) -> None:
    create_group(sql, mode=mode, conflate=True)
    push_some(sql, 3)
    claim = must_pop(sql)
    assert offsets_of(claim) == [2]
    push_some(sql, 2)
    cancel(sql, 3, 4)
    if pops_between:
        assert drain(sql) == []
    nack(sql, claim)
    assert drain(sql) == [("p", 2)]
    assert lags(sql) == (0, 0)
    assert violations(sql) == {}
