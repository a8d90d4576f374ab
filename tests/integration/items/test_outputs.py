"""What items give is pushed with their settlement, once: a claim that is not settled gives nothing."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from groups.steps import MODES, create_group, drain, must_pop, offsets, pop, push_some, push_to_many, violations
from psycopg import errors
from psycopg.sql import SQL, Identifier

from databases import Connection
from penstock import InvalidInput, MessageTooLarge
from penstock.broker.claims import Lease
from penstock.broker.items import Output, SettledClaim
from penstock.broker.messages import Message
from penstock.broker.operations.items import SettleItems
from penstock.broker.places import Place
from penstock.broker.pushing import Due, PushBatch, Uniqueness
from penstock.postgres.failures import translated
from penstock.postgres.migrate import grant

from .steps import ALL, dead, failed, output, segments, settle, settle_one, settled, snoozed, values


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_pushed_with_what_is_done(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    claim = must_pop(sql)
    reply = settle(sql, settled(claim, done=[(0, 2)]), outputs=[output(0, "a", "b")])
    assert reply.settled == ["settled"]
    assert values(sql) == ["a", "b"]
    assert settle(sql, settled(claim, done=ALL), outputs=[output(0, "c")]).settled == ["settled"]
    assert values(sql) == ["a", "b", "c"]
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", [False, True], ids=["all", "part"])
def test_a_repeated_call_pushes_nothing_twice(sql: Connection, mode: str, part: bool) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 4)
    claim = must_pop(sql)
    one = settled(claim, done=[(0, 2)] if part else ALL)
    answers = [settle(sql, one, outputs=[output(0, "a")]).settled for _ in range(3)]
    assert answers == [["settled"], *[["repeated" if part else None]] * 2]
    assert values(sql) == ["a"]


@pytest.mark.parametrize("mode", MODES)
def test_an_item_that_is_delivered_again_does_not_push_what_a_late_settlement_brings(
    sql: Connection, mode: str
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    late = must_pop(sql, lease=0.001)
    while pop(sql) is not None:
        pass
    sql.execute("SELECT pg_sleep(0.002)")
    sql.execute("SELECT penstock.sweep()")
    again = must_pop(sql)
    assert settle(sql, settled(again, done=ALL), outputs=[output(0, "once")]).settled == ["settled"]
    assert settle(sql, settled(late, done=ALL), outputs=[output(0, "twice")]).settled == [None]
    assert values(sql) == ["once"]


def test_outputs_of_many_claims_to_one_partition_are_one_segment(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 5)
    claims = [must_pop(sql) for _ in range(5)]
    outputs = [output(n, f"{n}a", f"{n}b", partition=name) for n in range(5) for name in ("x", "y")]
    settle(sql, *[settled(claim, done=ALL) for claim in claims], outputs=outputs)
    assert segments(sql) == [10, 10]
    expected = [f"{n}{letter}" for n in range(5) for letter in "ab"]
    assert (values(sql, partition="x"), values(sql, partition="y")) == (expected, expected)


@pytest.mark.parametrize("lost", [{0}, {2}, {4}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}], ids=str)
def test_outputs_of_claims_that_were_lost_are_left_out(sql: Connection, lost: set[int]) -> None:
    create_group(sql)
    push_to_many(sql, 5)
    claims = [must_pop(sql) for _ in range(5)]
    for number in lost:
        claims[number].lease_id = uuid4()
    messages = [
        [Message(b"%d" % n, key=f"k{n}", headers={"n": str(n)}), Message(None), Message(b"%d!" % n)] for n in range(5)
    ]
    outputs = [Output(n, PushBatch.of(Place("out", "o"), messages[n])) for n in range(5)]
    reply = settle(sql, *[settled(claim, done=ALL) for claim in claims], outputs=outputs)
    assert reply.settled == [None if n in lost else "settled" for n in range(5)]
    rows = sql.execute(
        "SELECT payload, key, headers FROM penstock.messages WHERE queue_name = 'out' ORDER BY message_offset"
    ).fetchall()
    assert [(value, key, headers) for value, key, headers in rows] == [
        (message.value, message.key, message.headers) for n in range(5) if n not in lost for message in messages[n]
    ]
    assert violations(sql) == {}


def test_outputs_may_wait_or_count_once(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 3)
    claims = [must_pop(sql) for _ in range(3)]
    claims[1].lease_id = uuid4()
    place = Place("out", "o")
    later = Due(None, datetime.now(UTC) + timedelta(hours=1))

    def of(claim: int, *messages: Message, due: Due | None = None) -> Output:
        return Output(claim, PushBatch.of(place, messages, due))

    sql.execute("SELECT penstock.create_queue('out', '{\"dedupe_window\": 60}')")
    outputs = [
        of(0, Message(b"plain")),
        of(0, Message(b"once", dedupe_id="i"), Message(b"without")),
        of(1, Message(b"lost", dedupe_id="j")),
        of(2, Message(b"twice", dedupe_id="i"), Message(b"other", dedupe_id="k")),
        of(2, Message(b"later"), due=later),
        of(1, Message(b"never"), due=later),
        of(2, Message(b"last")),
    ]
    reply = settle(sql, *[settled(claim, done=ALL) for claim in claims], outputs=outputs)
    assert reply.settled == ["settled", None, "settled"]
    assert values(sql) == ["plain", "once", "without", "other", "last"]
    rows = sql.execute("SELECT preview FROM penstock.list_scheduled('out')").fetchall()
    assert rows == [(b"later",)]


def test_outputs_of_no_claim_and_unique_ones_are_refused_before_they_are_sent() -> None:
    one = SettledClaim(Lease(1, 1, uuid4()), ALL)
    unique = PushBatch.of(Place("out", "o"), [Message(b"x", unique_key="k")], None, Uniqueness(60.0, None, False))
    for wrong in (output(1, "x"), output(-1, "x"), Output(0, unique)):
        with pytest.raises(InvalidInput):
            SettleItems([one], [wrong])


def test_outputs_without_messages_are_none(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 1)
    claim = must_pop(sql)
    empty = Output(0, PushBatch.of(Place("out", "o"), []))
    assert settle(sql, settled(claim, done=ALL), outputs=[empty]).settled == ["settled"]
    assert sql.execute("SELECT count(*) FROM penstock.queues WHERE name = 'out'").fetchall() == [(0,)]


@pytest.mark.parametrize("mode", MODES)
def test_failures_may_have_outputs_too(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    push_some(sql, 3)
    claim = must_pop(sql)
    outputs = [output(0, "for the dead"), output(0, "to be told", partition="p")]
    reply = settle(sql, settled(claim, failed(1), done=[(0, 1)], release=True), outputs=outputs)
    assert reply.outcomes == [["dead letter"]]
    assert values(sql) == ["for the dead"]


@pytest.mark.parametrize("mode", MODES)
def test_an_item_may_push_to_the_partition_that_it_came_from(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    claim = must_pop(sql)
    settle(sql, settled(claim, done=ALL), outputs=[output(0, "again", queue="q", partition="p")])
    assert offsets(drain(sql)) == [1]
    assert violations(sql) == {}


def test_a_message_that_is_too_large_undoes_all_of_it(sql: Connection) -> None:
    create_group(sql)
    push_to_many(sql, 2)
    claims = [must_pop(sql), must_pop(sql)]
    sql.execute("SELECT penstock.create_queue('out', '{\"max_message_bytes\": 100}')")
    settlings = [settled(claims[0], dead(0)), settled(claims[1], snoozed(0))]
    with pytest.raises(MessageTooLarge), translated():
        settle(sql, *settlings, outputs=[output(0, "small"), output(1, "x" * 101)])
    assert values(sql) == []
    assert sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall() == [(0,)]
    assert settle(sql, *settlings, outputs=[output(0, "small")]).settled == ["settled", "settled"]
    assert values(sql) == ["small"]


@pytest.mark.parametrize(
    "runs",
    [
        "'{1}', '{1}', '{2}'",
        "'{1}', '{1}', '{0}'",
        "'{1}', '{2}', '{1}'",
        "'{2}', '{1}', '{1}'",
        "'{1,1}', '{1,1}', '{2,-1}'",
        "NULL, NULL, NULL",
        "'{1}', '{null}', '{1}'",
    ],
)
def test_outputs_of_which_it_is_not_said_whose_they_are_are_refused(sql: Connection, runs: str) -> None:
    create_group(sql)
    push_some(sql, 1)
    claim = must_pop(sql)
    before = sql.execute("SELECT count(*) FROM penstock.journal").fetchall()
    run_segments, run_claims, run_counts = runs.split(", ") if runs.startswith("N") else runs.split("', '")
    parts = [part.strip("'") for part in (run_segments, run_claims, run_counts)]
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute(
            "SELECT penstock.settle_items(ARRAY[%s::integer], ARRAY[%s::bigint], ARRAY[%s::uuid], done_claims => '{1}',"
            " done_starts => '{null}', done_stops => '{null}', run_segments => %s, run_claims => %s, run_counts => %s,"
            " queue_names => '{out}', partition_names => '{o}', counts => '{1}', bodies => ARRAY['x'::bytea],"
            " ends => ARRAY['\\x01000000'::bytea])",
            (*claim.lease, *[None if part == "NULL" else part for part in parts]),
        )
    assert sql.execute("SELECT count(*) FROM penstock.journal").fetchall() == before


@pytest.mark.parametrize(
    ("roles", "allowed"), [(["consumer"], False), (["consumer", "producer"], True), (["admin"], True)]
)
def test_outputs_need_the_right_to_push(penstock_dsn: str, roles: list[str], allowed: bool) -> None:
    user = f"user_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_dsn, autocommit=True) as sql:
        sql.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(user)))
        for role in roles:
            grant(sql, role, user)
        create_group(sql)
        push_some(sql, 2)
        claim = must_pop(sql)
        with psycopg.connect(penstock_dsn, autocommit=True) as worker:
            worker.execute(SQL("SET SESSION AUTHORIZATION {}").format(Identifier(user)))
            if allowed:
                assert settle(worker, settled(claim, done=[(0, 1)]), outputs=[output(0, "a")]).settled == ["settled"]
            else:
                with pytest.raises(errors.InsufficientPrivilege):
                    settle(worker, settled(claim, done=[(0, 1)]), outputs=[output(0, "a")])
                assert settle_one(worker, claim, done=[(0, 1)]) == "settled"
        sql.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(Identifier(user)))


def test_outputs_to_a_queue_that_must_exist_are_refused_where_it_does_not(sql: Connection) -> None:
    create_group(sql)
    push_some(sql, 1)
    claim = must_pop(sql)
    sql.execute("SELECT penstock.configure_database(false)")
    try:
        with pytest.raises(errors.Error, match="out"):
            settle(sql, settled(claim, done=ALL), outputs=[output(0, "a")])
    finally:
        sql.execute("SELECT penstock.configure_database(true)")
    assert settle(sql, settled(claim, done=ALL), outputs=[output(0, "a")]).settled == ["settled"]
