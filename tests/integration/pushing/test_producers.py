"""A push under a producer's number is stored once, in whatever order its attempts reach the server."""

import random
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from groups.steps import reply, run, start, violations
from groups.test_plans import cost
from log.interleaving import gapless, mutate
from psycopg import IsolationLevel, errors

from conformance.proxy import CUT_ANSWER, CUT_REQUEST, PASS, Proxy
from databases import Connection, Connections
from penstock import Client, PushResult
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.places import Place
from penstock.broker.pushing import Producer, PushBatch, Stamp, due
from penstock.client import pushes
from penstock.postgres.statements.call import call_for

from .steps import LATER, values, waiting

ANNA, BERT = UUID(int=1), UUID(int=2)
Pushing = Callable[[Stamp], Operation[list[PushResult]]]


def one(stamp: Stamp) -> Operation[list[PushResult]]:
    return Push([PushBatch.of(Place("q", "p"), pushes.gather("x"))], stamp)


def many(stamp: Stamp) -> Operation[list[PushResult]]:
    return Push([PushBatch.of(Place("q", name), pushes.gather(["x", "y"])) for name in ("r", "p")], stamp)


def later(stamp: Stamp) -> Operation[list[PushResult]]:
    return Push([PushBatch.of(Place("q", "p"), pushes.gather("x"), due(LATER, None))], stamp)


def marked(stamp: Stamp) -> Operation[list[PushResult]]:
    return Push([PushBatch.of(Place("q", "p"), pushes.gather("x", dedupe_id="a"))], stamp)


PUSHES: dict[str, Pushing] = {"one": one, "many": many, "later": later, "marked": marked}
every_push = pytest.mark.parametrize("pushing", PUSHES.values(), ids=PUSHES)


@pytest.fixture(autouse=True)
def queue(request: pytest.FixtureRequest) -> None:
    if "sql" in request.fixturenames:
        create(request.getfixturevalue("sql"))


def create(sql: Connection) -> None:
    sql.execute("SELECT penstock.configure_queue('q', '{\"dedupe_window\": 3600}')")


def messages(sql: Connection) -> int:
    """Return how many messages there are, in the log or scheduled."""
    ((count,),) = sql.execute(
        "SELECT (SELECT coalesce(sum(count), 0) FROM penstock.segments)"
        " + (SELECT coalesce(sum(count), 0) FROM penstock.scheduled)"
    ).fetchall()
    return int(count)


@every_push
def test_a_push_that_comes_again_gets_the_first_answer_and_stores_nothing(sql: Connection, pushing: Pushing) -> None:
    first = run(sql, pushing(Stamp(ANNA, 7)))
    stored = messages(sql)
    run(sql, one(Stamp(ANNA, 8)))
    assert run(sql, pushing(Stamp(ANNA, 7))) == first
    assert messages(sql) == stored + 1
    assert gapless(sql)
    assert violations(sql) == {}


@pytest.mark.parametrize("pushing", [one, many, later], ids=lambda pushing: pushing.__name__)
def test_other_numbers_and_other_producers_are_other_pushes_in_any_order(sql: Connection, pushing: Pushing) -> None:
    for stamp in (Stamp(ANNA, 9), Stamp(ANNA, 2), Stamp(BERT, 9), Stamp(ANNA, 3)):
        run(sql, pushing(stamp))
    once = messages(sql) // 4
    for stamp in (Stamp(ANNA, 3), Stamp(ANNA, 9), Stamp(BERT, 9), Stamp(ANNA, 2)):
        run(sql, pushing(stamp))
    assert messages(sql) == 4 * once > 0


def two_attempts(connections: Connections, sql: Connection, pushing: Pushing, commit: bool = True) -> tuple[Any, Any]:
    """An attempt has not committed when the next one comes; return what each was answered."""
    run(sql, Push([PushBatch.of(Place("q", name), pushes.gather("old")) for name in ("p", "r")]))
    first = connections.open()
    one_answer = run(first, pushing(Stamp(ANNA, 1)))
    call = pushing(Stamp(ANNA, 1))
    second = start(connections.open(autocommit=True), call)
    assert second.waits(sql)
    if commit:
        first.commit()
    else:
        first.rollback()
    return one_answer, reply(call, second.rows())


@every_push
def test_an_attempt_that_meets_the_first_waits_for_it_and_gets_its_answer(
    connections: Connections, sql: Connection, pushing: Pushing
) -> None:
    first, second = two_attempts(connections, sql, pushing)
    assert first == second
    assert messages(sql) == 2 + sum(result.count for result in first)
    assert gapless(sql)


@every_push
def test_an_attempt_that_meets_one_that_rolls_back_is_stored(
    connections: Connections, sql: Connection, pushing: Pushing
) -> None:
    _, second = two_attempts(connections, sql, pushing, commit=False)
    assert messages(sql) == 2 + sum(result.count for result in second)
    assert run(sql, pushing(Stamp(ANNA, 1))) == second


WITHOUT_THE_LOOK = {
    "one": ("push_segment", "        ON CONFLICT ON CONSTRAINT producers_pkey DO NOTHING;\n", ";\n"),
    "many": (
        "push_segments",
        "    RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);\n    IF FOUND THEN",
        "    IF false THEN",
    ),
    "later": (
        "push_with_options",
        "        IF FOUND THEN\n            RETURN QUERY",
        "        IF false THEN\n            RETURN QUERY",
    ),
}


@pytest.mark.parametrize("what", WITHOUT_THE_LOOK)
def test_without_the_look_under_the_lock_only_the_key_keeps_it_from_being_stored_twice(
    fresh: Connections, what: str
) -> None:
    sql = fresh.open(autocommit=True)
    function, look, instead = WITHOUT_THE_LOOK[what]
    mutate(sql, function, (look, instead))
    with pytest.raises(errors.UniqueViolation, match="producers_pkey"):
        two_attempts(fresh, sql, PUSHES[what])
    sql.execute("ALTER TABLE penstock.producers DROP CONSTRAINT producers_pkey")
    try:
        run(sql, PUSHES[what](Stamp(ANNA, 2)))
        stored = messages(sql)
        run(sql, PUSHES[what](Stamp(ANNA, 2)))
        assert messages(sql) > stored
    finally:
        sql.execute("DELETE FROM penstock.producers")
        sql.execute("ALTER TABLE penstock.producers ADD CONSTRAINT producers_pkey PRIMARY KEY (producer, sequence)")


def test_without_the_partitions_lock_a_delayed_push_that_comes_again_fails_instead_of_being_answered(
    fresh: Connections,
) -> None:
    sql = fresh.open(autocommit=True)
    mutate(sql, "push_with_options", ("dedupe_ids IS NULL AND producer IS NULL", "dedupe_ids IS NULL"))
    with pytest.raises(errors.UniqueViolation, match="producers_pkey"):
        two_attempts(fresh, sql, later)


def test_at_a_higher_isolation_level_an_attempt_from_an_old_snapshot_is_refused(
    connections: Connections, sql: Connection
) -> None:
    run(sql, one(Stamp(ANNA, 1)))
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("SELECT 1 FROM penstock.queues")
    first = run(sql, one(Stamp(ANNA, 2)))
    with pytest.raises(errors.SerializationFailure):
        run(caller, one(Stamp(ANNA, 2)))
    caller.rollback()
    assert run(caller, one(Stamp(ANNA, 2))) == first
    assert messages(sql) == 2


def test_a_push_that_is_refused_leaves_its_number_free(client: Client, sql: Connection) -> None:
    sql.execute("SELECT penstock.configure_queue('q', '{\"max_message_bytes\": 1}')")
    with pytest.raises(errors.ProgramLimitExceeded):
        run(sql, one(Stamp(ANNA, 1)))
    sql.execute("SELECT penstock.configure_queue('q', '{\"max_message_bytes\": 100}')")
    run(sql, one(Stamp(ANNA, 1)))
    assert messages(sql) == 1


def test_answers_are_kept_for_an_hour_and_trimmed_by_maintenance(client: Client, sql: Connection) -> None:
    run(sql, one(Stamp(ANNA, 1)))
    run(sql, later(Stamp(ANNA, 2)))
    run(sql, one(Stamp(ANNA, 3)))
    sql.execute("UPDATE penstock.producers SET pushed_at = pushed_at - interval '59 minutes' WHERE sequence < 3")
    list(client.maintain())
    assert run(sql, one(Stamp(ANNA, 1)))[0].first_offset == 0
    assert messages(sql) == 3
    sql.execute("UPDATE penstock.producers SET pushed_at = pushed_at - interval '2 minutes' WHERE sequence < 3")
    list(client.maintain())
    assert sql.execute("SELECT sequence FROM penstock.producers ORDER BY 1").fetchall() == [(3,)]


def test_trimming_goes_on_until_nothing_old_is_left(client: Client, sql: Connection) -> None:
    sql.execute(
        "INSERT INTO penstock.producers (producer, sequence, pushed_at)"
        " SELECT %s, n, clock_timestamp() - interval '1 day' FROM generate_series(1, 25000) n",
        (ANNA,),
    )
    assert len(list(client.maintain())) == 3
    assert sql.execute("SELECT count(*) FROM penstock.producers").fetchall() == [(0,)]


@every_push
def test_a_push_looks_its_number_up_by_the_index_however_many_there_are(sql: Connection, pushing: Pushing) -> None:
    producer = Producer()

    def once() -> int:
        call = call_for(pushing(producer.stamp()))
        return cost(sql, call.sql, call.parameters)

    for _ in range(6):
        small = once()
    sql.execute(
        "INSERT INTO penstock.producers (producer, sequence, pushed_at)"
        " SELECT %s, n + 1000, clock_timestamp() FROM generate_series(1, 50000) n",
        (producer.id,),
    )
    # The first one may plan anew.
    assert min(once() for _ in range(3)) <= small + 50


def test_every_push_of_a_client_has_a_number_of_its_own_and_one_row(client: Client, sql: Connection) -> None:
    client.push("q", 1)
    client.push("q", [2, 3], key="k")
    client.push_many("q", [("a", 1), ("b", 2)])
    client.push("q", 1, delay=LATER)
    client.push("q", 1, dedupe_id="x")
    rows = sql.execute("SELECT producer, sequence FROM penstock.producers ORDER BY sequence").fetchall()
    assert [sequence for _, sequence in rows] == [1, 2, 3, 4, 5]
    assert len({producer for producer, _ in rows}) == 1
    with client.transaction() as tx:
        tx.push("q", 2)
    assert len(sql.execute("SELECT 1 FROM penstock.producers").fetchall()) == 5
    with Client(client.dsn) as other:
        other.push("q", 1)
    assert len(sql.execute("SELECT DISTINCT producer FROM penstock.producers").fetchall()) == 2


def test_clients_whose_connections_break_again_and_again_store_each_push_once_and_in_order(
    dsn: str, sql: Connection
) -> None:
    proxy = Proxy(dsn)
    dice = random.Random(7)
    failures: list[BaseException] = []
    pushed: dict[int, list[int]] = {number: [] for number in range(3)}
    proxy.plan(*dice.choices([PASS, CUT_ANSWER, CUT_REQUEST], [2, 2, 1], k=1000))

    def work(number: int) -> None:
        try:
            for turn in range(25):
                # A new client sends the text of its statements, which is what the proxy looks for.
                with Client(proxy.dsn, pool_size=1) as client:
                    value = number * 100 + turn
                    delay = 0.0 if turn % 5 == 0 else None
                    client.push_many("q", [("p", value), (f"own {number}", value)], delay=delay)
                    pushed[number].append(value)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in pushed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.close()
    assert failures == []
    assert len(proxy.followed) > 20
    while waiting(sql):
        sql.execute("SELECT penstock.sweep()")
    assert sorted(values(sql)) == sorted(value for values in pushed.values() for value in values)
    for number, own in pushed.items():
        in_order = [value for value in values(sql, f"own {number}") if value % 5]
        assert in_order == [value for value in own if value % 5]
        assert sorted(values(sql, f"own {number}")) == own
    assert gapless(sql)
    assert violations(sql) == {}


def test_stamps_are_never_repeated_by_threads() -> None:
    producer = Producer()
    stamps: list[Stamp] = []

    def draw() -> None:
        stamps.extend([producer.stamp() for _ in range(1000)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(stamps)) == 4000
    assert producer.id != Producer().id
