"""Schedules: what is defined, listed, paused, fired and deleted is the same through every client and transport."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from penstock import InvalidInput, NotFound, Schedule
from penstock.broker.schedules import schedule_cron, schedule_every

pytestmark = pytest.mark.usefixtures("sound")
HOUR = timedelta(hours=1)


def come_due(dsn: str, name: str = "s", ago: timedelta = timedelta(seconds=1)) -> datetime:
    """Let the next slot of a schedule be a little while ago; return it. Slots are those of every second."""
    with psycopg.connect(dsn) as sql:
        ((slot,),) = sql.execute(
            "UPDATE penstock.schedules SET next_at = date_trunc('second', clock_timestamp() - %s),"
            " done_to = date_trunc('second', clock_timestamp() - %s) - interval '1 second' WHERE name = %s"
            " RETURNING next_at",
            (ago, ago, name),
        ).fetchall()
    assert isinstance(slot, datetime)
    return slot.astimezone(UTC)


def pushed(api: Any, partition: str = "0") -> list[Any]:
    return [message.json() for message in api.read("q", partition)]


def test_a_schedule_is_listed_with_all_that_was_said(api: Any) -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    made = api.schedule(
        *("clean", "q", {"a": 1}),
        every="90 seconds",
        start=start,
        partition="p",
        key=7,
        headers={"h": "1"},
        missed="all",
    )
    assert made.schedule == Schedule(
        "clean", "every", "1 minute 30 seconds", "UTC", start, "q", b'{"a":1}', "p", "7", {"h": "1"}, "all"
    )
    assert (made.source, made.origin, made.paused, made.declared, made.revision) == ("command", None, False, True, 1)
    assert (made.last_at, made.last_slot, made.last_id, made.error) == (None, None, None, None)
    assert made.done_to < made.next_at <= made.done_to + timedelta(seconds=90)
    other = api.schedule("report", "q", b"\0\xff", cron="0 9 * * MON-FRI", tz="Europe/Berlin")
    assert api.schedules() == [made, other]
    assert (made.words, other.words) == (
        "every 1 minute 30 seconds, from 2026-01-01 12:00:00 UTC",
        "at 09:00 on Monday through Friday (Europe/Berlin)",
    )
    # Nothing is pushed before the first slot.
    assert [queue.name for queue in api.queues()] == []


def test_a_due_slot_is_pushed_once_with_its_time_and_name(api: Any, dsn: str) -> None:
    api.schedule("s", "q", {"n": 1}, every=1, key="k", headers={"mine": "1"}, missed="skip")
    slot = come_due(dsn)
    before = datetime.now(UTC)
    fired = api.fire_schedules()
    assert (fired.pushed, fired.queues) == (1, ("q",))
    (message,) = api.read("q", "0")
    assert (message.json(), message.key) == ({"n": 1}, "k")
    assert message.headers is not None
    assert message.headers["mine"] == "1"
    assert message.headers["penstock-schedule"] == "s"
    assert datetime.fromisoformat(message.headers["penstock-slot"]) >= slot
    (info,) = api.schedules()
    assert info.last_id == message.id
    assert info.last_slot == info.done_to == datetime.fromisoformat(message.headers["penstock-slot"])
    assert before <= info.last_at
    assert info.next_at == info.last_slot + timedelta(seconds=1)


def test_with_nothing_due_it_says_when_to_come_again(api: Any) -> None:
    assert api.fire_schedules() == (0, (), 5.0)
    api.schedule("s", "q", every="1 hour")
    assert 0 <= api.fire_schedules().next_in <= 5
    api.schedule("soon", "q", every=1)
    assert 0 <= api.fire_schedules().next_in <= 1


def test_a_schedule_without_a_value_pushes_a_null_value(api: Any, dsn: str) -> None:
    api.schedule("s", "q", every=1)
    come_due(dsn)
    api.fire_schedules()
    assert api.read("q", "0")[0].value is None


def test_a_paused_schedule_pushes_nothing_and_does_not_make_up_for_it(api: Any, dsn: str) -> None:
    api.schedule("s", "q", 1, every=1, missed="all")
    come_due(dsn, ago=HOUR)
    api.pause_schedule("s")
    api.pause_schedule("s")
    assert api.schedules()[0].paused
    assert api.fire_schedules().pushed == 0
    resumed = api.resume_schedule("s")
    assert not resumed.paused
    assert resumed.next_at > datetime.now(UTC) - timedelta(seconds=2)
    assert api.resume_schedule("s") == resumed
    assert api.queues() == []


def test_run_now_pushes_beside_the_slots_also_when_it_is_paused(api: Any) -> None:
    made = api.schedule("s", "q", "x", every="1 hour", partition="p")
    api.pause_schedule("s")
    result = api.run_schedule_now("s")
    (message,) = api.read("q", "p")
    assert (result.queue, result.partition, result.count, result.ids) == ("q", "p", 1, [message.id])
    assert message.headers is not None
    assert message.headers["penstock-schedule"] == "s"
    (info,) = api.schedules()
    assert (info.next_at, info.last_slot, info.last_id) == (made.next_at, None, message.id)


def test_what_is_deleted_is_gone_and_what_it_pushed_stays(api: Any, dsn: str) -> None:
    api.schedule("s", "q", 1, every=1)
    come_due(dsn)
    api.fire_schedules()
    api.delete_schedule("s")
    assert api.schedules() == []
    assert api.fire_schedules().pushed == 0
    assert pushed(api) == [1]


def test_a_schedule_that_is_not_there_is_not_found(api: Any) -> None:
    for method in (api.pause_schedule, api.resume_schedule, api.run_schedule_now, api.delete_schedule):
        with pytest.raises(NotFound, match=r"there is no schedule .nope."):
            method("nope")
        with pytest.raises(InvalidInput):
            method("a\0b")


def test_a_change_of_the_value_keeps_the_slots_and_one_of_the_times_begins_anew(api: Any, dsn: str) -> None:
    api.schedule("s", "q", "old", every=1, missed="all")
    slot = come_due(dsn, ago=timedelta(seconds=3))
    changed = api.schedule("s", "q", "new", every=1, missed="last")
    assert (changed.next_at, changed.revision) == (slot, 2)
    assert api.fire_schedules().pushed == 1
    assert pushed(api) == ["new"]
    come_due(dsn)
    again = api.schedule("s", "q", "new", every="1 hour")
    assert again.next_at > datetime.now(UTC)
    assert api.fire_schedules().pushed == 0
    assert (again.last_id, again.created_at) == (api.read("q", "0")[0].id, changed.created_at)


def test_what_is_defined_again_as_it_is_changes_nothing(api: Any) -> None:
    first = api.schedule("s", "q", {"a": 1}, cron="0 9 * * *", tz="America/New_York")
    assert api.schedule("s", "q", {"a": 1}, cron="0 9 * * *", tz="America/New_York") == first
    moved = api.schedule("s", "q", {"a": 1}, cron="0 9 * * *", tz="Europe/Berlin")
    assert moved.revision == 2
    assert moved.next_at != first.next_at


def test_what_a_program_declares_is_defined_and_what_it_declares_no_more_is_marked(api: Any, dsn: str) -> None:
    hourly = schedule_every("1 hour", queue="q", value=1)
    report = schedule_cron("0 9 * * *", queue="r", value=2)
    found = api.declare_schedules([hourly, report], origin="app.py")
    assert [(each.schedule, each.source, each.origin) for each in found] == [
        (hourly, "code", "app.py"),
        (report, "code", "app.py"),
    ]
    assert api.declare_schedules([hourly, report], origin="app.py") == found
    api.declare_schedules([schedule_every("1 day", queue="other", value=1)], origin="other.py")
    api.schedule("by hand", "q", every=60)
    api.declare_schedules([hourly], origin="app.py")
    states = {each.name: (each.declared, each.undeclared_at is None) for each in api.schedules()}
    assert states == {"by hand": (True, True), "other": (True, True), "q": (True, True), "r": (False, False)}
    # It goes on until somebody deletes it.
    with psycopg.connect(dsn) as sql:
        sql.execute(
            "UPDATE penstock.schedules SET next_at = clock_timestamp() - interval '1 s', done_to = '2026-01-01'"
        )
    api.fire_schedules()
    assert [message.json() for message in api.read("r", "0")] == [2]
    api.declare_schedules([hourly, report], origin="app.py")
    assert all(each.declared for each in api.schedules())


def test_what_cannot_be_is_refused_and_changes_nothing(api: Any) -> None:
    for bad in (
        *({}, {"every": 1, "cron": "* * * * *"}, {"every": 0}, {"every": "soon"}, {"cron": "nine o'clock"}),
        *({"cron": "* * * * *", "tz": "Mars/Olympus"}, {"every": 1, "tz": "Europe/Berlin"}),
        *({"cron": "* * * * *", "start": datetime(2026, 1, 1, tzinfo=UTC)}, {"every": 1, "missed": "some"}),
        *({"every": 1, "headers": {"h": 1}}, {"every": 1, "partition": "~x"}, {"every": 1, "key": ""}),
    ):
        with pytest.raises(InvalidInput):
            api.schedule("s", "q", 1, **bad)
    for name in ("", "a\nb", "a\x7fb", "x" * 256, "\ud800", 7):
        with pytest.raises(InvalidInput):
            api.schedule(name, "q", 1, every=1)
    assert api.schedules() == []


def test_a_schedule_whose_queue_cannot_be_pushed_to_says_so_and_holds_up_no_other(api: Any, dsn: str) -> None:
    api.schedule("bad", "missing", 1, every=1)
    api.schedule("s", "q", 1, every=1)
    api.create("q")
    api.configure_database(create_on_first_use=False)
    come_due(dsn, "bad"), come_due(dsn)
    fired = api.fire_schedules()
    assert (fired.pushed, fired.queues) == (1, ("q",))
    bad, good = api.schedules()
    assert "there is no queue" in bad.error
    assert (bad.last_at, good.error) == (None, None)
    # It is tried again later, and not at once.
    assert api.fire_schedules().next_in <= 1
    api.configure_database(create_on_first_use=True)
    api.schedule("bad", "missing", 2, every=1)
    assert api.schedules()[0].error is None


@pytest.mark.parametrize(
    "bad",
    [
        "spec = 'every other moon'",
        "kind = 'cron', spec = '61 * * * *'",
        "kind = 'cron', spec = '@daily', tz = 'Moon/Base'",
        "key = ''",
    ],
)
def test_one_that_cannot_be_read_is_listed_as_such_and_holds_up_no_other(api: Any, dsn: str, bad: str) -> None:
    for name in ("bad", "good"):
        api.schedule(name, name, {"n": 1}, every="1 second")
    # What another version might write, or somebody in SQL.
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute(f"UPDATE penstock.schedules SET {bad} WHERE name = 'bad'".encode())
    wrong, right = api.schedules()
    assert (wrong.name, right.name) == ("bad", "good")
    assert (right.problem, right.words) == (None, "every 1 second")
    if "spec" in bad:
        assert wrong.problem
        assert wrong.schedule.spec in wrong.words
    come_due(dsn, "bad", HOUR)
    come_due(dsn, "good")
    api.fire_schedules()
    assert api.pop("good", "g") is not None
    api.run_schedule_now("good")
    api.delete_schedule("bad")
    assert [info.name for info in api.schedules()] == ["good"]
