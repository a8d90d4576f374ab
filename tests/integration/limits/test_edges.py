"""Limits beside everything else that a group does: retention, priorities, failures, timers that fail, prefetching."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from groups.steps import (
    MODES,
    ack,
    create_group,
    drain,
    must_pop,
    nack,
    pass_time,
    pop,
    pop_call,
    push_some,
    run,
    sweep,
    violations,
)
from log.interleaving import mutate

from databases import Connection, Connections
from penstock import Client, StoredMessage
from penstock.broker.operations.claiming import Nack, Pop, PopMany
from penstock.broker.operations.groups import ListFailingTimers

from .steps import FUNCTIONS, Clock, configure, group_id, one, push_keys


@pytest.mark.parametrize("mode", MODES)
def test_what_retention_drops_while_it_waits_is_passed_over(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10)
    push_some(sql, 3)
    ack(sql, must_pop(sql))
    assert pop(sql) is None
    sql.execute("SELECT penstock.purge('q', 'p')")
    push_some(sql, 1)
    clock.set(10)
    assert drain(sql) == [("p", 3)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_of_what_waits_the_highest_priority_goes_first_when_it_is_woken(
    sql: Connection, clock: Clock, mode: str
) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10, rate_by="key")
    sql.execute("SELECT penstock.configure_partition('q', 'high', 9)")
    push_keys(sql, "low", "b")
    push_keys(sql, "high", "aa")
    came = [must_pop(sql), must_pop(sql)]
    assert sorted(claim.partition for claim in came) == ["high", "low"]
    for claim in came:
        ack(sql, claim)
    assert pop(sql) is None
    clock.set(10)
    sweep(sql)
    assert must_pop(sql).partition == "high"


def test_messages_that_come_alone_after_a_failure_are_limited_too(sql: Connection, clock: Clock) -> None:
    create_group(sql, rate_limit=3, rate_period=3)
    push_some(sql, 3)
    run(sql, Nack(must_pop(sql).lease, None, "oops", None, 0.0))
    assert pop(sql) is None
    offsets = []
    for second in range(1, 4):
        clock.set(second)
        sweep(sql)
        claim = must_pop(sql)
        offsets += [(message.offset, claim.attempt) for message in claim.messages]
        ack(sql, claim)
    assert offsets == [(0, 2), (1, 2), (2, 2)]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_pops_that_are_sent_together_share_a_limit(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=2, rate_period=10, rate_by="key")
    for partition in "pqrs":
        push_keys(sql, partition, "a")
    pops = [Pop("q", "g", name, 10, 1 << 20, 1, None, "c", False) for name in ("p", None, None, "s")]
    answers = run(sql, PopMany(pops))
    assert sorted(len(claims or ()) for claims in answers) == [0, 0, 1, 1]
    clock.set(100)
    sweep(sql)
    assert len(run(sql, pop_call(partitions=10))) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_that_is_seen_by_a_probe_counts_it(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10)
    push_some(sql, 3)
    sql.execute("SELECT penstock.hold_group(%s, penstock.policy_clock(), true)", (group_id(sql),))
    assert len(must_pop(sql).messages) == 1
    sql.execute("SELECT penstock.unhold_group(%s)", (group_id(sql),))
    assert pop(sql) is None


def test_a_conflating_group_with_a_rate_gets_the_newest_when_its_time_comes(sql: Connection, clock: Clock) -> None:
    create_group(sql, conflate=True, rate_limit=1, rate_period=10)
    push_some(sql, 3)
    ack(sql, must_pop(sql))
    push_some(sql, 2)
    assert pop(sql) is None
    push_some(sql, 2)
    clock.set(10)
    assert drain(sql) == [("p", 6)]
    assert violations(sql) == {}


@pytest.fixture
def broken_look(sql: Connection) -> Iterator[None]:
    """A look at the keys of one group fails."""
    mutate(
        sql,
        "look_at_key",
        ("BEGIN\n", "BEGIN\n    IF limited.key = 'bad' THEN RAISE EXCEPTION 'oops'; END IF;\n"),
    )
    yield
    sql.execute(FUNCTIONS["look_at_key"].text.encode())


@pytest.mark.usefixtures("broken_look")
def test_a_look_that_fails_holds_up_no_other_group_and_is_shown(sql: Connection, clock: Clock) -> None:
    for group in ("g", "other"):
        create_group(sql, group, rate_limit=1, rate_period=10, rate_by="key")
    sql.execute("SELECT penstock.push('q', ARRAY['x', 'x']::bytea[], 'p', ARRAY['bad', 'bad'])")
    configure(sql, '{"rate_by": "partition"}', "other")
    for group in ("g", "other"):
        ack(sql, must_pop(sql, group))
        assert pop(sql, group) is None
    clock.set(10)
    for _ in range(2):
        sweep(sql)
    assert pop(sql, "g") is None
    assert pop(sql, "other") is not None
    assert [(timer.kind, timer.group) for timer in run(sql, ListFailingTimers())] == [("limits", "g")]
    sql.execute(FUNCTIONS["look_at_key"].text.encode())
    sql.execute("UPDATE penstock.failing_timers SET retry_at = clock_timestamp()")
    sweep(sql)
    assert pop(sql, "g") is not None
    assert violations(sql) == {}


def test_an_open_transaction_elsewhere_does_not_stop_what_waits(
    sql: Connection, clock: Clock, connections: Connections
) -> None:
    create_group(sql, rate_limit=1, rate_period=1)
    push_some(sql, 30)
    other = connections.open()
    other.execute("SELECT count(*) FROM penstock.limited_keys, penstock.journal")
    came = []
    for second in range(30):
        clock.set(second)
        sweep(sql)
        claim = must_pop(sql)
        came += [message.offset for message in claim.messages]
        ack(sql, claim)
        assert pop(sql) is None or second == 29
    assert came == list(range(30))


def test_prefetching_workers_keep_a_limit_of_the_whole_group(dsn: str, sql: Connection) -> None:
    create_group(sql, concurrency_limit=2, concurrency_by="group")
    for number in range(6):
        push_some(sql, 5, f"p{number}")
    lock, at_work, most, handled = threading.Lock(), Counter[str](), 0, 0

    def handle(message: object) -> None:
        nonlocal most, handled
        with lock:
            at_work["claims"] = one(sql, "SELECT count(*) FROM penstock.list_claims('q', 'g')")
            most = max(most, at_work["claims"])
            handled += 1

    with Client(dsn) as client:
        done = client.process("q", handle, group="g", concurrency=4, prefetch=100, idle_timeout=1, handle_signals=False)
    assert (done, handled) == (30, 30)
    assert most <= 2
    pass_time(sql)
    sweep(sql)
    assert one(sql, "SELECT count(*) FROM penstock.slots") == 0
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_takes_its_place_behind_a_limit_and_keeps_its_error(sql: Connection, clock: Clock, mode: str) -> None:
    create_group(sql, mode=mode, rate_limit=1, rate_period=10, max_attempts=2)
    push_some(sql, 1)
    nack(sql, must_pop(sql))
    assert pop(sql) is None
    clock.set(10)
    sweep(sql)
    assert nack(sql, must_pop(sql)) == "dead letter"
    assert sql.execute("SELECT attempts, first_error FROM penstock.dead_letters").fetchall() == [(2, "oops")]


def test_handlers_of_a_shared_group_get_claims_with_gaps_and_settle_each_message(dsn: str, sql: Connection) -> None:
    create_group(sql, mode="shared", concurrency_limit=2, concurrency_by="key", backoff_initial=0)
    for partition in ("p", "q"):
        push_keys(sql, partition, "abaacabbadab" * 3)
    lock, at_work, handled, failed = (
        threading.Lock(),
        Counter[str](),
        Counter[tuple[str, int]](),
        set[tuple[str, int]](),
    )
    most = 0

    def handle(message: StoredMessage) -> None:
        nonlocal most
        place = (message.partition, message.offset)
        with lock:
            at_work[message.key or ""] += 1
            most = max(most, *at_work.values())
        try:
            if message.offset % 7 == 3 and place not in failed:
                failed.add(place)
                raise ValueError("once")
            with lock:
                handled[place] += 1
        finally:
            with lock:
                at_work[message.key or ""] -= 1

    with Client(dsn) as client:
        client.process("q", handle, group="g", concurrency=3, max_messages=10, idle_timeout=1, handle_signals=False)
    assert handled == Counter((partition, offset) for partition in ("p", "q") for offset in range(36))
    assert most <= 2
    assert violations(sql) == {}
