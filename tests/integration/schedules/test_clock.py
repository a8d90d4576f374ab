"""Schedules by an injected clock: one that jumps, goes back, and passes through the days when clocks change."""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from groups.steps import violations
from log.interleaving import mutate

from databases import Connections
from penstock import Client, Retryable
from penstock.operations.status import status

from .clock import Clock, slots, utc

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock(fresh: Connections) -> Clock:
    return Clock(fresh)


@pytest.fixture
def client(clock: Clock) -> Iterator[Client]:
    with Client(clock.dsn) as client:
        yield client


def fire(client: Client) -> int:
    """Fire until nothing is due; return how many messages were pushed."""
    total = 0
    while not (fired := client.fire_schedules()).next_in or fired.pushed:
        total += fired.pushed
    return total


def test_no_slot_comes_twice_however_the_clock_steps(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, every="1 minute")
    generator = random.Random(7)
    for _ in range(120):
        clock.advance(timedelta(seconds=generator.choice([-3600, -60, -1, 1, 20, 60, 61, 600, 3600])))
        fire(client)
    found = slots(clock.sql)
    assert len(found) > 20
    assert found == sorted(set(found))
    assert violations(clock.sql) == {}


def test_after_the_clock_stepped_back_slots_wait_until_it_is_where_it_was(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, every="1 minute")
    clock.set("2026-11-17 09:05:01")
    assert fire(client) == 1
    clock.set("2026-11-17 08:00:00")
    assert fire(client) == 0
    clock.set("2026-11-17 09:05:59")
    assert fire(client) == 0
    clock.set("2026-11-17 09:06:00")
    assert fire(client) == 1
    assert slots(clock.sql) == [utc("2026-11-17 09:05"), utc("2026-11-17 09:06")]


def test_a_change_after_the_clock_stepped_back_repeats_no_slot(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, every="1 minute")
    clock.set("2026-11-17 09:05:01")
    fire(client)
    clock.set("2026-11-17 08:00:00")
    assert client.schedule("s", "q", 1, every="30 seconds").next_at == utc("2026-11-17 09:05:30")
    client.pause_schedule("s")
    assert client.resume_schedule("s").next_at == utc("2026-11-17 09:05:30")


@pytest.mark.parametrize(("missed", "pushed"), [("skip", 0), ("last", 1), ("all", 10)])
def test_slots_of_an_outage_are_pushed_as_the_schedule_says(
    client: Client, clock: Clock, missed: str, pushed: int
) -> None:
    client.schedule("s", "q", 1, every="10 minutes", missed=missed)
    clock.set("2026-11-17 10:45:00")
    assert fire(client) == pushed
    assert slots(clock.sql) == [utc("2026-11-17 09:10") + n * 10 * MINUTE for n in range(10)][10 - pushed :]
    assert client.schedules()[0].next_at == utc("2026-11-17 10:50")
    clock.set("2026-11-17 10:50:00")
    assert fire(client) == 1


def test_a_clock_that_jumps_by_a_year_makes_a_thousand_messages_at_most(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", "x" * 5000, cron="* * * * *", missed="all")
    clock.set("2027-11-17 09:00:30")
    assert fire(client) == 1000
    found = slots(clock.sql)
    assert (found[0], found[-1]) == (utc("2027-11-17 09:00") - 999 * MINUTE, utc("2027-11-17 09:00"))
    assert len(set(found)) == 1000
    assert fire(client) == 0


@pytest.mark.parametrize(
    ("tz", "spec", "begin", "expected"),
    [
        # Berlin, spring: 2:30 does not exist, and comes at 3:00 (1:00 UTC). Autumn: it exists twice, and comes once.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28 00:00", ["28 01:30", "29 01:00", "30 00:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-24 00:00", ["24 00:30", "25 00:30", "26 01:30"]),
        ("America/New_York", "30 2 * * *", "2026-03-07 00:00", ["07 07:30", "08 07:00", "09 06:30"]),
        ("America/New_York", "30 1 * * *", "2026-10-31 00:00", ["31 05:30", "01 05:30", "02 06:30"]),
    ],
)
def test_the_days_when_clocks_change_have_one_message_each(
    client: Client, clock: Clock, tz: str, spec: str, begin: str, expected: list[str]
) -> None:
    clock.set(begin)
    client.schedule("s", "q", 1, cron=spec, tz=tz)
    for _ in range(3 * 24):
        clock.advance(60 * MINUTE)
        fire(client)
    assert [f"{slot:%d %H:%M}" for slot in slots(clock.sql)] == expected


def test_a_new_time_zone_counts_from_now_on(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, cron="0 10 * * *", tz="Europe/Berlin")
    clock.set("2026-11-17 10:00:00")
    # 9:00 UTC of today was before it was defined; tomorrow's is moved to another zone before it comes.
    assert fire(client) == 0
    client.schedule("s", "q", 1, cron="0 10 * * *", tz="America/New_York")
    for hour in range(48):
        clock.set(f"2026-11-{17 + (10 + hour) // 24} {(10 + hour) % 24:02}:00:00")
        fire(client)
    assert slots(clock.sql) == [utc("2026-11-17 15:00"), utc("2026-11-18 15:00")]


def test_slots_that_other_rules_of_a_zone_computed_are_moved(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, cron="0 10 * * *", tz="Europe/Berlin")
    for wrong, right in (("2026-11-18 08:00Z", "2026-11-18 09:00"), ("2026-11-18 10:00Z", "2026-11-18 09:00")):
        clock.sql.execute("UPDATE penstock.schedules SET next_at = %s", (wrong,))
        with Client(clock.dsn) as other:
            other.fire_schedules()
            assert other.schedules()[0].next_at == utc(right)
    # One that starts before the rules change notices when the slot is due.
    clock.sql.execute("UPDATE penstock.schedules SET next_at = '2026-11-18 08:00Z'")
    clock.set("2026-11-18 08:30:00")
    assert fire(client) == 0
    clock.set("2026-11-18 09:00:00")
    assert fire(client) == 1


def test_a_rare_date_waits_for_years(client: Client, clock: Clock) -> None:
    assert client.schedule("s", "q", 1, cron="0 0 29 2 MON").next_at == utc("2027-02-01 00:00")
    assert client.schedule("s", "q", 1, cron="0 0 29 2 *").next_at == utc("2028-02-29 00:00")
    clock.set("2032-02-29 00:00:01")
    assert fire(client) == 1
    assert slots(clock.sql) == [utc("2032-02-29 00:00")]


def redefine_while_it_fires(client: Client, clock: Clock) -> list[datetime]:
    """A definition with other times is written after a slot of the old times fired, from what was seen before."""
    client.schedule("s", "q", 1, every="10 minutes")
    clock.set("2026-11-17 09:10:00")
    transport: Any = client._transport
    run = transport.run
    fired: list[int] = []

    def fire_before_the_definition(operation: Any, *arguments: Any, **options: Any) -> Any:
        if type(operation).__name__ == "DefineSchedule" and not fired:
            clock.set("2026-11-17 09:20:00")
            fired.append(fire(client))
        return run(operation, *arguments, **options)

    transport.run = fire_before_the_definition
    try:
        client.schedule("s", "q", 1, every="5 minutes")
    finally:
        transport.run = run
    assert fired == [1]
    fire(client)
    return slots(clock.sql)


def test_a_change_that_meets_a_slot_does_not_repeat_it(client: Client, clock: Clock) -> None:
    assert redefine_while_it_fires(client, clock) == [utc("2026-11-17 09:20")]


def test_without_looking_at_what_is_done_it_would_go_back(client: Client, clock: Clock) -> None:
    mutate(
        clock.sql,
        "define_schedule",
        (" OR kept.done_to <> seen_done_to THEN", " THEN"),
        ("    IF new_done_to < kept.done_to THEN", "    IF false THEN"),
    )
    assert redefine_while_it_fires(client, clock) == [utc("2026-11-17 09:20")] * 2


def test_one_that_is_changed_again_and_again_gives_up_and_says_so(client: Client, clock: Clock) -> None:
    client.schedule("s", "q", 1, every="10 minutes")
    mutate(clock.sql, "define_schedule", ("IF NOT FOUND OR kept", "IF true OR kept"))
    with pytest.raises(Retryable, match="changed by others"):
        client.schedule("s", "q", 2, every="10 minutes")


def test_the_time_is_that_of_the_server(client: Client, clock: Clock) -> None:
    clock.set("2031-01-01 00:00:30")
    made = client.schedule("s", "q", 1, every="1 minute")
    assert made.created_at == datetime(2031, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert client.fire_schedules().next_in == 5.0
    clock.set("2031-01-01 00:00:59")
    assert client.fire_schedules().next_in == 1.0


def test_what_a_queue_takes_slowly_is_pushed_slowly_and_complete(client: Client, clock: Clock) -> None:
    client.create("q", push_rate_limit=2, push_rate_period=60)
    client.schedule("s", "q", 1, every="1 minute", missed="all")
    client.pause_schedule("s")
    client.resume_schedule("s")
    clock.set("2026-11-17 09:05:30")
    pushed = client.fire_schedules().pushed
    for _ in range(200):
        if len(slots(clock.sql)) == 5:
            break
        clock.advance(timedelta(seconds=1))
        # Whoever waits for a second of its own clock waits for it here.
        client._scheduler._failing = dict.fromkeys(client._scheduler._failing, (0.0, 1.0))
        pushed += client.fire_schedules().pushed
    assert pushed == len(slots(clock.sql)) >= 5
    assert slots(clock.sql)[:5] == [utc("2026-11-17 09:01") + n * MINUTE for n in range(5)]


def test_many_that_fail_hold_up_no_others(client: Client, clock: Clock) -> None:
    client.create("q")
    client.schedule("good", "q", 1, every="1 minute")
    clock.sql.execute(
        "INSERT INTO penstock.schedules (name, kind, spec, tz, queue, missed, source, done_to, next_at, created_at,"
        " changed_at) SELECT 'bad ' || n, 'every', '1 minute', 'UTC', 'missing', 'last', 'command',"
        " '2026-11-17 08:00Z', '2026-11-17 08:01Z', now(), now() FROM generate_series(1, 130) n"
    )
    client.configure_database(create_on_first_use=False)
    clock.set("2026-11-17 09:01:00")
    rounds = [client.fire_schedules() for _ in range(2)]
    assert [(each.pushed, each.next_in == 0) for each in rounds] == [(0, True), (1, True)]
    assert sum(info.error is not None for info in client.schedules()) == 130
    # They are tried again when their time comes, and not before.
    soon = time.monotonic() + 3
    client._scheduler._failing = dict.fromkeys(client._scheduler._failing, (soon, 1.0))
    assert 0 < client.fire_schedules().next_in <= 3
    clock.sql.execute("DELETE FROM penstock.schedules WHERE queue = 'missing'")
    client._scheduler._failing = dict.fromkeys(client._scheduler._failing, (0.0, 1.0))
    assert client.fire_schedules().next_in == 5.0


def test_the_status_finds_schedules_that_nobody_fires_and_those_that_fail(clock: Clock, client: Client) -> None:
    client.push("q", "so that there is a queue to pause")
    client.schedule("late", "q", 1, every="1 minute")
    client.schedule("paused", "q", 1, every="1 minute")
    client.pause_schedule("paused")

    def stuck() -> list[tuple[str, str]]:
        return [(each.subject, each.found) for each in status(client).problems if each.check == "schedule_stuck"]

    assert stuck() == []
    clock.advance(timedelta(minutes=5))
    assert stuck() == [("schedule late of queue q", "due for 4 min, and nobody pushes it")]
    client.pause_queue("q")
    client.fire_schedules()
    ((subject, found),) = stuck()
    assert subject == "schedule late of queue q"
    assert found.startswith("fails: ")
    client.resume_queue("q")
    # Another one, who does not wait before it tries again.
    with Client(clock.dsn) as other:
        other.fire_schedules()
    assert stuck() == []
