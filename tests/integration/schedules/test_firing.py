"""One message per slot: however many processes fire, and whichever of them, or of their connections, are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from groups.steps import run, start, violations
from groups.test_idle import explained
from groups.test_plans import cost
from log.interleaving import gapless, mutate
from psycopg.sql import SQL, Identifier

from databases import Connection, Connections
from penstock import Client
from penstock.broker.operations.schedules import (
    DefineSchedule,
    DeleteSchedule,
    FindDueSchedules,
    FireSchedule,
    ListSchedules,
    PauseSchedule,
)
from penstock.broker.schedules import ScheduleInfo, Seen, schedule_every
from penstock.postgres.migrate import grant
from penstock.postgres.statements.call import call_for
from penstock.scheduling.firing import plan

from .clock import Clock, slots, utc

MINUTE = timedelta(minutes=1)
# Fires what is due, again and again, until it is killed.
PROGRAM = """
import sys, time
from penstock import Client, PenstockError

print("begun", flush=True)
with Client(sys.argv[1], pool_size=2, timeout=20) as client:
    while True:
        try:
            wait = client.fire_schedules().next_in
        except PenstockError as error:
            wait = 0.01
        time.sleep(min(wait, 0.01))
"""


@pytest.fixture
def clock(fresh: Connections) -> Clock:
    return Clock(fresh)


def define(connection: Connection, name: str = "s", missed: str = "all") -> None:
    """Define a schedule of every minute, to queue q, whose next slot is at 9:01."""
    schedule = schedule_every("1 minute", queue="q", value=1, name=name, missed=missed)
    defined = DefineSchedule(
        schedule, Seen(name, 0, None), "command", None, utc("2026-11-17 09:00"), utc("2026-11-17 09:01")
    )
    assert run(connection, defined)


def due(connection: Connection) -> tuple[ScheduleInfo, FireSchedule]:
    """Return the schedule that is due, and what a scheduler that sees it now sends."""
    found = run(connection, FindDueSchedules())
    (info,) = found.found
    planned = plan(info, found.now)
    return info, FireSchedule(info.seen, planned.slots, planned.done_to, planned.next_at)


def begin(clock: Clock, at: str = "2026-11-17 09:02:30") -> FireSchedule:
    """Define a schedule and let two slots be due."""
    define(clock.sql)
    clock.set(at)
    return due(clock.sql)[1]


def test_whoever_comes_second_finds_nothing_to_do(clock: Clock, fresh: Connections) -> None:
    firing = begin(clock)
    first, second = fresh.open(), fresh.open(autocommit=True)
    assert run(first, firing).count == 2
    # It does not wait for one who is just firing.
    assert run(second, firing).outcome == "busy"
    first.commit()
    assert run(second, firing).outcome == "stale"
    assert slots(clock.sql) == [utc("2026-11-17 09:01"), utc("2026-11-17 09:02")]
    assert run(clock.sql, FindDueSchedules()).found == []


def test_whoever_comes_second_fires_if_the_first_rolls_back_or_is_killed(clock: Clock, fresh: Connections) -> None:
    firing = begin(clock)
    first, second = fresh.open(), fresh.open()
    assert run(first, firing).count == 2
    first.rollback()
    assert run(second, firing).count == 2
    clock.sql.execute("SELECT pg_terminate_backend(%s, 5000)", (second.info.backend_pid,))
    assert slots(clock.sql) == []
    assert run(clock.sql, firing).count == 2
    assert slots(clock.sql) == [utc("2026-11-17 09:01"), utc("2026-11-17 09:02")]
    assert violations(clock.sql) == {}


def test_without_looking_at_what_is_done_a_slot_would_come_twice(clock: Clock) -> None:
    mutate(clock.sql, "fire_schedule", (" OR kept.done_to <> seen_done_to THEN", " THEN"))
    firing = begin(clock)
    assert [run(clock.sql, firing).count for _ in range(2)] == [2, 2]


def test_only_slots_that_are_due_are_fired_whoever_says_so(clock: Clock) -> None:
    firing = begin(clock)
    # Consumers may fire what is due. They must not be able to push whatever they like, nor end a schedule.
    for wrong in (
        [utc("1990-01-01 00:00")],
        [utc("2026-11-17 09:00")],
        [utc("2026-11-17 09:02"), utc("2026-11-17 09:01")],
        [utc("2026-11-17 09:01"), utc("2026-11-17 09:01")],
        [utc("2026-11-17 09:00") + timedelta(milliseconds=number) for number in range(1, 1002)],
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="slots are at most 1000"):
            clock.sql.execute(
                "SELECT penstock.fire_schedule('s', 1, %s, %s, %s, NULL)", (firing.seen.done_to, wrong, firing.done_to)
            )
    later = utc("2026-11-17 09:03")
    for wrong in ([], [later]):
        assert run(clock.sql, FireSchedule(firing.seen, wrong, later, later + MINUTE)).outcome == "stale"
    assert (slots(clock.sql), run(clock.sql, firing).count) == ([], 2)


@pytest.mark.parametrize(("role", "outcome"), [("consumer", "stale"), ("producer", "fired")])
def test_before_a_slot_is_due_a_consumer_cannot_move_a_schedule(
    clock: Clock, fresh: Connections, role: str, outcome: str
) -> None:
    define(clock.sql)
    (info,) = run(clock.sql, ListSchedules()).found
    user = f"user_{uuid4().hex[:12]}"
    clock.sql.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(user)))
    clock.sql.execute("GRANT SELECT ON clock TO PUBLIC")
    grant(clock.sql, role, user)
    other = fresh.open(autocommit=True)
    other.execute(SQL("SET SESSION AUTHORIZATION {}").format(Identifier(user)))
    # Nothing is pushed: only the next slot would be another one, or none.
    for next_at in (utc("2026-11-17 09:05"), None):
        assert run(other, FireSchedule(info.seen, (), info.done_to, next_at)).outcome == outcome
    (now,) = run(clock.sql, ListSchedules()).found
    assert (now.next_at == info.next_at) == (role == "consumer")
    clock.set("2026-11-17 09:01:30")
    planned = plan(info, utc("2026-11-17 09:01:30"))
    assert run(other, FireSchedule(info.seen, *planned)).count == 1
    clock.sql.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(Identifier(user)))


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"])
def test_a_moment_that_clients_cannot_read_is_refused(clock: Clock, moment: str) -> None:
    define(clock.sql)
    what = "'q', NULL, NULL, NULL, NULL, 'all', 'command', NULL, 0, NULL"
    sent = (
        f"define_schedule('evil', 'every', '1', 'UTC', {{0}}, {what}, '2026-11-17 09:00Z', NULL)",
        f"define_schedule('evil', 'every', '1', 'UTC', NULL, {what}, {{0}}, NULL)",
        "fire_schedule('s', 1, '2026-11-17 09:00Z', '{{}}', '2026-11-17 09:00Z', {0})",
        "fire_schedule('s', 1, '2026-11-17 09:00Z', ARRAY[{0}], '2026-11-17 09:00Z', NULL)",
        "resume_schedule('s', 1, '2026-11-17 09:00Z', {0}, NULL)",
    )
    for call in sent:
        said = call.format(f"timestamptz '{moment}'")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            clock.sql.execute(f"SELECT penstock.{said}".encode())
    assert [info.name for info in run(clock.sql, ListSchedules()).found] == ["s"]


def test_a_pause_waits_for_a_firing_and_nothing_fires_after_it(clock: Clock, fresh: Connections) -> None:
    firing = begin(clock)
    firer = fresh.open()
    assert run(firer, firing).outcome == "fired"
    pausing = start(fresh.open(autocommit=True), PauseSchedule("s"))
    assert pausing.waits(clock.sql)
    firer.commit()
    pausing.rows()
    clock.set("2026-11-17 09:05:00")
    assert run(clock.sql, FindDueSchedules()).found == []
    (info,) = run(clock.sql, ListSchedules()).found
    late = FireSchedule(info.seen, [utc("2026-11-17 09:05")], utc("2026-11-17 09:05"), None)
    assert run(clock.sql, late).outcome == "stale"


def test_one_that_is_deleted_or_changed_meanwhile_does_not_fire(clock: Clock) -> None:
    firing = begin(clock)
    (info,) = run(clock.sql, ListSchedules()).found
    other = schedule_every("1 minute", queue="elsewhere", value=2, name="s", missed="all")
    assert run(clock.sql, DefineSchedule(other, info.seen, "command"))
    assert run(clock.sql, firing).outcome == "stale"
    # The slots are still due, and go where the new definition says.
    assert run(clock.sql, due(clock.sql)[1]).count == 2
    assert (slots(clock.sql), len(slots(clock.sql, "elsewhere"))) == ([], 2)
    run(clock.sql, DeleteSchedule("s"))
    assert run(clock.sql, firing).outcome == "stale"


def test_of_two_definitions_at_once_one_is_told_to_look_again(clock: Clock, fresh: Connections) -> None:
    first, second = fresh.open(), fresh.open(autocommit=True)
    schedule = schedule_every("1 minute", queue="q", value=1, name="s")
    wanted = DefineSchedule(
        schedule, Seen("s", 0, None), "command", None, utc("2026-11-17 09:00"), utc("2026-11-17 09:01")
    )
    assert run(first, wanted)
    defining = start(second, wanted)
    assert defining.waits(clock.sql)
    first.commit()
    assert defining.value() is False


def test_with_nothing_due_a_scheduler_writes_nothing(clock: Clock) -> None:
    define(clock.sql)
    clock.set("2026-11-17 09:00:30")
    clock.sql.execute("VACUUM penstock.schedules")
    said = explained(clock.sql, FindDueSchedules())
    assert "WAL" not in said
    before = clock.sql.execute("SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())").fetchall()
    with Client(clock.dsn) as client:
        for _ in range(20):
            assert client.fire_schedules().pushed == 0
    after = clock.sql.execute("SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())").fetchall()
    assert after[0][1] == before[0][1]


def test_what_is_due_is_found_by_the_index_however_many_schedules_there_are(clock: Clock) -> None:
    define(clock.sql)
    clock.set("2026-11-17 09:00:30")
    call = call_for(FindDueSchedules())
    for _ in range(6):
        small = cost(clock.sql, call.sql, call.parameters)
    clock.sql.execute(
        "INSERT INTO penstock.schedules (name, kind, spec, tz, queue, missed, source, done_to, next_at, created_at,"
        " changed_at) SELECT 's' || n, 'every', '1 day', 'UTC', 'q', 'last', 'command', now(),"
        " now() + interval '1 year', now(), now() FROM generate_series(1, 20000) n"
    )
    clock.sql.execute("ANALYZE penstock.schedules")
    assert min(cost(clock.sql, call.sql, call.parameters) for _ in range(3)) <= small + 20


@pytest.fixture
def crowd(clock: Clock) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that fire what is due."""
    processes = [scheduler(clock) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def scheduler(clock: Clock) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, clock.dsn], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def until(clock: Clock, done_to: datetime) -> None:
    """Wait until all slots up to a time are done."""
    deadline = time.monotonic() + 60
    while clock.sql.execute("SELECT bool_and(done_to >= %s) FROM penstock.schedules", (done_to,)).fetchall() != [
        (True,)
    ]:
        assert time.monotonic() < deadline, "the schedules were not fired"
        time.sleep(0.005)


def test_many_processes_that_are_killed_push_each_slot_once(
    clock: Clock, crowd: list["subprocess.Popen[bytes]"]
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        define(clock.sql, name)
    generator = random.Random(11)
    for minute in range(60):
        clock.advance(MINUTE)
        if minute % 10 == 5:
            # A process at work, and a moment later its connections are gone, perhaps in the middle of a firing.
            victim = generator.randrange(len(crowd))
            os.kill(crowd[victim].pid, signal.SIGKILL)
            crowd[victim].wait(20)
            stdout = crowd[victim].stdout
            assert stdout is not None
            stdout.close()
            crowd[victim] = scheduler(clock)
        elif minute % 3 == 0:
            clock.sql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2"
            )
        if minute % 4 == 0:
            until(clock, utc("2026-11-17 09:00") + minute * MINUTE)
    until(clock, utc("2026-11-17 10:00"))
    expected = sorted([utc("2026-11-17 09:01") + n * MINUTE for n in range(60)] * len(names))
    with psycopg.connect(clock.dsn) as other:
        assert sorted(slots(other)) == expected
        per_schedule = other.execute(
            "SELECT headers ->> 'penstock-schedule', count(DISTINCT headers ->> 'penstock-slot') FROM penstock.messages"
            " GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert per_schedule == [(name, 60) for name in names]
    assert gapless(clock.sql)
    assert violations(clock.sql) == {}
