"""A timer that fails holds up no other: it is put off, shown, and forgotten when it works again."""

import logging

import pytest
from log.interleaving import mutate, push

from databases import Connection, Connections
from penstock import AsyncClient, Client
from penstock.cli import group_checks
from penstock.engine import group_calls

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

MAINTAIN = "SELECT merged_segments, next_partition FROM penstock.maintain(min_segments => 2)"


def spoil(sql: Connection, key: bytes, headers: bytes) -> None:
    sql.execute(SPOIL.encode(), (key, key, headers, headers))


def retry_now(sql: Connection) -> None:
    sql.execute("UPDATE penstock.failing_timers SET retry_at = clock_timestamp()")


def failing(sql: Connection) -> list[tuple[str, str | None, int]]:
    return [(timer.kind, timer.partition, timer.failures) for timer in run(sql, group_calls.failing_timers())]


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
    (timer,) = run(sql, group_calls.failing_timers())
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
            "INSERT INTO penstock.doorbells SELECT partition_id, 0 FROM penstock.partitions WHERE name = %s",
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
    assert {(kind, partition) for kind, partition, _ in failing(sql)} == {("doorbell", "bad"), ("scheduled", "bad")}
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
    assert (outcome, found.startswith("the maintenance")) == ("fail", True)
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
