"""A timer that fails holds up no other: it is put off, shown, and forgotten when it works again."""

import logging
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from log.interleaving import mutate, push

from databases import Connection, Connections
from penstock import AsyncClient, Client
from penstock.broker.operations.groups import ListFailingTimers, Seek
from penstock.operations import group_checks

from .steps import MODES, create_group, drain, must_pop, newest, pass_time, pop, run, sweep, violations

# What old versions stored: nothing refuses it any more, so it is written to the log itself.
SPOIL = (
    "UPDATE penstock.segments SET keys = %s, key_ends = penstock.int32_pack(length(%s)), headers = %s,"
    " header_ends = penstock.int32_pack(length(%s))"
)
# Whoever buries a message of partition "bad" fails, with an error that nothing can be done about.
FAILING_BURY = (
    "CREATE OR REPLACE FUNCTION penstock.bury(claim penstock.journal, failing bigint, error text, reason text,"
    " traceback text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
    " IF EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = claim.partition_id AND p.name = 'bad')"
    " THEN RAISE EXCEPTION 'cannot be buried' USING ERRCODE = 'data_corrupted'; END IF; END $$"
)

# Whoever buries a message takes longer than the mutated sweeps have.
SLOW_BURY = (
    "CREATE OR REPLACE FUNCTION penstock.bury(claim penstock.journal, failing bigint, error text, reason text,"
    " traceback text DEFAULT NULL) RETURNS void LANGUAGE sql AS $$"
    " INSERT INTO penstock.dead_letters (queue_id, group_id, partition_id, message_offset, created_at, payload, reason,"
    " attempts, first_error, last_error)"
    " SELECT p.queue_id, claim.group_id, claim.partition_id, failing, clock_timestamp(), 'x', reason, 1, error, error"
    " FROM penstock.partitions p, pg_sleep(0.06) WHERE p.partition_id = claim.partition_id $$"
)
MAINTAIN = "SELECT merged_segments, next_partition FROM penstock.maintain(min_segments => 2)"


def spoil(sql: Connection, key: bytes, headers: bytes) -> None:
    sql.execute(SPOIL.encode(), (key, key, headers, headers))


def held_by(sql: Connection) -> tuple[int, int, UUID]:
    ((group, partition, lease),) = sql.execute(
        "SELECT group_id, partition_id, lease_id FROM penstock.claims"
    ).fetchall()
    return group, partition, lease


def retry_now(sql: Connection) -> None:
    sql.execute("UPDATE penstock.failing_timers SET retry_at = clock_timestamp()")


def failing(sql: Connection) -> list[tuple[str, str | None, int]]:
    return [(timer.kind, timer.partition, timer.failures) for timer in run(sql, ListFailingTimers())]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        (b'{"a": 1', {"penstock-undecoded": '{"a": 1'}),
        (b'{"trace":"a\\u0000b"}', {"penstock-undecoded": '{"trace":"a\\\\u0000b"}'}),
        (b'{"trace":"\\ud800"}', {"penstock-undecoded": '{"trace":"\\\\ud800"}'}),
        (b'{"a": 1}', {"penstock-undecoded": '{"a": 1}'}),
        (b"\xff\0", {"penstock-undecoded": "\\377\\000"}),
        (b"[" * 20000, {"penstock-undecoded": "[" * 20000}),
    ],
    ids=["cut off", "NUL", "half a surrogate pair", "a number", "no text", "deep"],
)
def test_a_message_of_any_bytes_becomes_a_dead_letter(
    sql: Connection, mode: str, headers: bytes, shown: dict[str, str]
) -> None:
    create_group(sql, mode=mode, max_attempts=1)
    push(sql)
    spoil(sql, b"k\xfe\\", headers)
    must_pop(sql)
    pass_time(sql)
    sweep(sql)
    letters = sql.execute("SELECT key, headers, payload FROM penstock.list_dead_letters('q')").fetchall()
    assert letters == [("k\\376\\\\", shown, b"x")]
    assert failing(sql) == []
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_timer_that_fails_is_put_off_and_the_others_are_served(fresh: Connections, mode: str) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, mode=mode, max_attempts=1)
    for partition in ("good", "bad", "fine"):
        push(sql, partition)
        must_pop(sql)
    sql.execute("SELECT penstock.push('q', ARRAY['later'::bytea], 'later', delay => 0)")
    pass_time(sql)
    sql.execute(FAILING_BURY)

    swept = sweep(sql)

    assert swept is not None
    assert swept.woken >= 3
    kind = "journal" if mode == "ordered" else "claim"
    assert failing(sql) == [(kind, "bad", 1)]
    (timer,) = run(sql, ListFailingTimers())
    assert (timer.queue, timer.group, timer.sqlstate, timer.error) == ("q", "g", "XX001", "cannot be buried")
    assert violations(sql) == {"timers_put_off": 1}
    assert pop(sql, partition="later") is not None

    # Sweeps that follow pass it over, without failing as a whole first.
    retry_now(sql)
    sweep(sql)
    assert failing(sql) == [(kind, "bad", 2)]
    ((longer,),) = sql.execute(
        "SELECT retry_at - clock_timestamp() > interval '1 second' FROM penstock.failing_timers"
    ).fetchall()
    assert longer
    sweep(sql)
    assert failing(sql) == [(kind, "bad", 2)]

    # It works again.
    mutate(sql, "bury")
    retry_now(sql)
    sweep(sql)
    assert failing(sql) == []
    assert sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall() == [(1,)]
    assert violations(sql) == {}


def test_what_was_put_off_and_is_gone_is_forgotten(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, max_attempts=1)
    push(sql, "bad")
    must_pop(sql)
    pass_time(sql)
    sql.execute(FAILING_BURY)
    sweep(sql)
    sql.execute("SELECT penstock.delete_partition('q', 'bad')")
    sweep(sql)
    assert failing(sql) == []


def test_a_scheduled_push_a_wake_up_and_an_enrolment_that_fail_are_put_off_too(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql)
    push(sql, "bad")
    push(sql, "good")
    assert len(drain(sql)) == 2
    for partition in ("bad", "good"):
        sql.execute("SELECT penstock.push('q', ARRAY['y'::bytea], %s, delay => 0)", (partition,))
        sql.execute(
            "INSERT INTO penstock.late_wakeups SELECT partition_id, 0 FROM penstock.partitions WHERE name = %s",
            (partition,),
        )
    sql.execute("UPDATE penstock.consumer_groups SET enrolled_to = 0")
    mutate(
        sql,
        "wake_partitions",
        (
            "BEGIN\n",
            "BEGIN IF EXISTS (SELECT 1 FROM penstock.partitions WHERE partition_id = ANY (targets) AND name = 'bad')"
            " THEN RAISE EXCEPTION 'cannot be woken'; END IF;\n",
        ),
    )
    sweep(sql)
    assert {(kind, partition) for kind, partition, _ in failing(sql)} == {("late_wakeup", "bad"), ("scheduled", "bad")}
    assert newest(sql, partition="good")[1] == "r"
    mutate(sql, "wake_partitions")
    retry_now(sql)
    sweep(sql)
    assert failing(sql) == []
    assert drain(sql) == [("good", 1), ("bad", 1)]
    assert violations(sql) == {}


def test_a_sweep_that_fails_for_no_timer_says_so_until_it_works(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql)
    push(sql)
    must_pop(sql)
    pass_time(sql)
    mutate(sql, "sweep_together", ("    woken := 0;", "    RAISE EXCEPTION 'out of order'; woken := 0;"))
    sweep(sql)
    assert newest(sql)[1] == "r"
    assert failing(sql) == [("sweep", None, 1)]
    mutate(sql, "sweep_together")
    sweep(sql)
    assert failing(sql) == []


def test_doctor_shows_a_timer_that_fails(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, max_attempts=1)
    assert group_checks.failing_timers(sql, False) == ("ok", "none")
    push(sql, "bad")
    must_pop(sql)
    pass_time(sql)
    sql.execute(FAILING_BURY)
    sweep(sql)
    outcome, found, *_ = group_checks.failing_timers(sql, False)
    assert outcome == "fail"
    assert found.startswith("the timer of partition bad of group g of queue q since")
    assert "cannot be buried (XX001)" in found


@pytest.mark.parametrize("mode", MODES)
def test_more_failing_timers_than_a_sweep_serves_hold_up_no_other(fresh: Connections, mode: str) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, mode=mode, max_attempts=1)
    for number in range(4):
        push(sql, f"bad {number}")
        must_pop(sql)
    push(sql, "good")
    must_pop(sql)
    pass_time(sql)
    sql.execute("SELECT penstock.push('q', ARRAY['later'::bytea], 'later', delay => 0)")
    sql.execute(FAILING_BURY.replace("p.name = 'bad'", "p.name LIKE 'bad%'").encode())

    for _ in range(4):
        sql.execute("SELECT penstock.sweep(2)")

    assert len(failing(sql)) == 4
    assert sql.execute("SELECT count(*) FROM penstock.scheduled").fetchall() == [(0,)]
    assert pop(sql, partition="later") is not None
    ((left,),) = sql.execute("SELECT count(*) FROM penstock.list_claims('q') WHERE partition_name = 'good'").fetchall()
    assert left == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failing_as_a_whole", [False, True], ids=["together", "apart"])
def test_a_sweep_ends_while_timers_take_long_and_the_next_one_goes_on(
    fresh: Connections, mode: str, failing_as_a_whole: bool
) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, mode=mode, max_attempts=1)
    for number in range(3):
        push(sql, f"slow {number}")
        must_pop(sql)
    pass_time(sql)
    sql.execute("SELECT penstock.push('q', ARRAY['later'::bytea], 'later', delay => 0)")
    # What takes long takes longer than a sweep may.
    sql.execute(SLOW_BURY)
    short = ("interval '2 seconds';", "interval '50 milliseconds';")
    broken = [("    woken := 0;", "    RAISE EXCEPTION 'out of order'; woken := 0;")] * failing_as_a_whole
    mutate(sql, "sweep_together", short, *broken)
    mutate(sql, "sweep_apart", short)

    buried: list[tuple[int]] = []
    for _ in range(3):
        swept = sweep(sql)
        assert swept is not None
        assert swept.swept_to is None or len(buried) == 2
        buried += sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall()

    assert buried == [(1,), (2,), (3,)]
    assert pop(sql, partition="later") is not None
    assert violations(sql) == ({"timers_put_off": 1} if failing_as_a_whole else {})


def test_timers_that_are_tried_again_end_while_they_take_long(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, max_attempts=1)
    for number in range(2):
        push(sql, f"bad {number}")
        must_pop(sql)
    pass_time(sql)
    sql.execute(FAILING_BURY.replace("p.name = 'bad'", "p.name LIKE 'bad%'").encode())
    sweep(sql)
    assert len(failing(sql)) == 2
    sql.execute(SLOW_BURY)
    mutate(sql, "retry_timers", ("interval '2 seconds';", "interval '50 milliseconds';"))
    for left in (1, 0):
        retry_now(sql)
        sweep(sql)
        assert len(failing(sql)) == left


def test_a_claim_is_not_put_off_for_one_that_began_at_its_place_before(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    create_group(sql, mode="shared", max_attempts=1)
    push(sql, "bad")
    must_pop(sql)
    pass_time(sql)
    sql.execute(FAILING_BURY)
    sweep(sql)
    assert failing(sql) == [("claim", "bad", 1)]
    sql.execute("UPDATE penstock.failing_timers SET retry_at = clock_timestamp() + interval '10 minutes'")
    mutate(sql, "bury")
    run(sql, Seek("q", "g", position="earliest"))
    must_pop(sql)

    sweep(sql)
    assert failing(sql) == []
    pass_time(sql)
    sweep(sql)
    assert sql.execute("SELECT count(*) FROM penstock.dead_letters").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "call",
    [
        "sweep(NULL)",
        "sweep(0)",
        "sweep(since => NULL)",
        "pop_claims('q', 'g', max_messages => NULL)",
        "pop_claims('q', 'g', max_bytes => NULL)",
        "pop_claims('q', 'g', max_partitions => NULL)",
        "pop('q', 'g', max_messages => NULL)",
        "maintain(NULL)",
        "maintain(max_partitions => NULL)",
        "maintain(max_partitions => 0)",
        "maintain(max_seconds => NULL)",
        "resync(max_partitions => NULL)",
        "drop_archived('q', max_partitions => NULL)",
    ],
)
def test_a_limit_of_null_is_refused(sql: Connection, call: str) -> None:
    create_group(sql)
    push(sql)
    sql.execute("SET statement_timeout = '5s'")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        sql.execute(f"SELECT * FROM penstock.{call}".encode())
    sql.execute("RESET statement_timeout")


@pytest.mark.parametrize("function", ["merge_segments", "retain_partition", "sweep_stages"])
def test_maintenance_that_fails_in_one_partition_goes_on_in_the_others(fresh: Connections, function: str) -> None:
    sql = fresh.open(autocommit=True)
    sql.execute("SELECT penstock.create_queue('q', '{\"retention_bytes\": 1000000}')")
    for partition in ("before", "bad", "behind"):
        for _ in range(4):
            push(sql, partition)
    condition = (
        "true"
        if function == "sweep_stages"
        else ("EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = $1 AND p.name = 'bad')")
    )
    mutate(
        sql,
        function,
        ("BEGIN\n", f"BEGIN IF {condition} THEN RAISE EXCEPTION 'broken' USING ERRCODE = 'data_corrupted'; END IF;\n"),
    )

    ((merged, left),) = sql.execute(MAINTAIN).fetchall()

    where = None if function == "sweep_stages" else "bad"
    assert (merged, left) == (9 if where is None else 6, None)
    assert failing(sql) == [("maintenance", where, 1)]
    outcome, found, *_ = group_checks.failing_timers(sql, False)
    assert (outcome, found.startswith("maintenance")) == ("fail", True)
    # No sweep tries it, and none goes slower for it.
    retry_now(sql)
    sweep(sql)
    assert failing(sql) == [("maintenance", where, 1)]

    mutate(sql, function)
    ((merged, left),) = sql.execute(MAINTAIN).fetchall()
    assert (merged, left) == (0 if where is None else 3, None)
    assert failing(sql) == []


def test_a_partition_that_is_gone_is_not_shown_as_failing_maintenance(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    push(sql, "bad")
    mutate(sql, "merge_segments", ("BEGIN\n", "BEGIN RAISE EXCEPTION 'broken';\n"))
    sql.execute(MAINTAIN)
    assert failing(sql) == [("maintenance", "bad", 1)]
    sql.execute("SELECT penstock.delete_partition('q', 'bad')")
    sql.execute(MAINTAIN)
    assert failing(sql) == []


def test_doctor_shows_who_keeps_others_from_sweeping(fresh: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = fresh.open(autocommit=True)
    left_open = fresh.open()
    sweep(left_open)
    # For a while, that is what a sweep at work looks like.
    assert group_checks.held_sweep(sql, False)[0] == "ok"
    monkeypatch.setattr(group_checks, "_SWEEP_HELD", timedelta(0))

    outcome, found, *advice = group_checks.held_sweep(sql, False)

    pid = left_open.info.backend_pid
    assert outcome == "fail"
    assert found.startswith(f"no timer fires: pid {pid} of ")
    assert f"pg_terminate_backend({pid})" in advice[0]
    left_open.commit()
    assert group_checks.held_sweep(sql, False)[0] == "ok"


def break_the_sweep(sql: Connection) -> None:
    for function in ("sweep_together", "sweep_apart"):
        mutate(sql, function, ("    woken := 0;", "    RAISE EXCEPTION 'out of order'; woken := 0;"))


def test_a_sweep_that_fails_fails_no_pop(fresh: Connections, caplog: pytest.LogCaptureFixture) -> None:
    sql = fresh.open(autocommit=True)
    break_the_sweep(sql)
    push(sql)
    with caplog.at_level(logging.WARNING, "penstock"), Client(fresh.dsn) as client:
        batch = client.pop("q", "g")
        assert client.pop("q", "g", wait=0.01) is None
    assert batch is not None
    assert any("a sweep failed" in message for message in caplog.messages)


async def test_a_sweep_that_fails_fails_no_async_pop(fresh: Connections, caplog: pytest.LogCaptureFixture) -> None:
    sql = fresh.open(autocommit=True)
    break_the_sweep(sql)
    push(sql)
    with caplog.at_level(logging.WARNING, "penstock"):
        async with AsyncClient(fresh.dsn) as client:
            batch = await client.pop("q", "g")
            assert await client.pop("q", "g", wait=0.01) is None
    assert batch is not None
    assert any("a sweep failed" in message for message in caplog.messages)
