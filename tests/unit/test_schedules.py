"""What a schedule has due is decided from its state and the time; and what cannot be declared is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import penstock
from penstock import InvalidInput, Schedule, ScheduleInfo
from penstock.broker.schedules import schedule_cron, schedule_every
from penstock.scheduling import declaring
from penstock.scheduling.firing import MOST_MISSED, onwards, plan

NINE = datetime(2026, 11, 17, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def schedule(missed: str = "last", **options: Any) -> Schedule:
    return schedule_every("5 minutes", queue="q", value=1, missed=missed, **options)


def state(of: Schedule, done_to: datetime = NINE) -> ScheduleInfo:
    times = {"last_slot": None, "last_at": None, "failed_at": None, "undeclared_at": None, "created_at": NINE}
    return msgspec.convert(
        {
            "schedule": of,
            "source": "command",
            "origin": None,
            "paused": False,
            "declared": True,
            "last_id": None,
            "done_to": done_to,
            "next_at": done_to + 5 * MINUTE,
            "error": None,
            "revision": 1,
            "changed_at": NINE,
            **times,
        },
        ScheduleInfo,
    )


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
def test_a_slot_that_is_due_is_pushed(missed: str) -> None:
    found = plan(state(schedule(missed)), NINE + 5 * MINUTE + timedelta(seconds=1))
    assert found == ([NINE + 5 * MINUTE], NINE + 5 * MINUTE, NINE + 10 * MINUTE)


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
def test_before_its_slot_nothing_is_pushed_and_nothing_moves(missed: str) -> None:
    assert plan(state(schedule(missed)), NINE + 4 * MINUTE) == ([], NINE, NINE + 5 * MINUTE)
    # Nor when the clock stepped back.
    assert plan(state(schedule(missed)), NINE - timedelta(days=1)) == ([], NINE, NINE + 5 * MINUTE)


def test_of_missed_slots_none_the_last_or_all_are_pushed() -> None:
    now = NINE + 18 * MINUTE
    slots = [NINE + 5 * MINUTE, NINE + 10 * MINUTE, NINE + 15 * MINUTE]
    after = (slots[-1], NINE + 20 * MINUTE)
    assert plan(state(schedule("skip")), now) == ([], *after)
    assert plan(state(schedule("last")), now) == (slots[-1:], *after)
    assert plan(state(schedule("all")), now) == (slots, *after)


def test_with_skip_the_latest_slot_counts_for_a_minute() -> None:
    in_time, late = NINE + 16 * MINUTE, NINE + 16 * MINUTE + timedelta(microseconds=1)
    assert plan(state(schedule("skip")), in_time).slots == [NINE + 15 * MINUTE]
    assert plan(state(schedule("skip")), late).slots == []


def test_all_is_bounded_in_number_and_bytes() -> None:
    years_later = NINE + timedelta(days=3650)
    small = plan(state(schedule("all")), years_later)
    assert len(small.slots) == MOST_MISSED
    assert small.slots[-1] <= years_later < small.slots[-1] + 5 * MINUTE
    large = schedule_every("5 minutes", queue="q", value="x" * 300_000, missed="all")
    first = plan(state(large), NINE + 60 * MINUTE)
    assert len(first.slots) == 3
    # The next round goes on where this one ended.
    assert plan(state(large, first.done_to), NINE + 60 * MINUTE).slots[0] == first.next_at


def test_what_is_resumed_goes_on_with_the_first_slot_from_now_on() -> None:
    assert onwards(state(schedule("all")), NINE + 18 * MINUTE) == ([], NINE + 18 * MINUTE, NINE + 20 * MINUTE)
    assert onwards(state(schedule("all")), NINE - timedelta(days=1)) == ([], NINE, NINE + 5 * MINUTE)


def test_a_slot_is_computed_by_the_rules_of_today() -> None:
    nine_in_berlin = schedule_cron("0 9 * * *", tz="Europe/Berlin", queue="q", value=1)
    wrong = msgspec.structs.replace(state(nine_in_berlin), next_at=NINE + timedelta(hours=2))
    assert plan(wrong, NINE + timedelta(hours=3)) == ([], NINE, datetime(2026, 11, 18, 8, tzinfo=UTC))


@pytest.mark.parametrize(
    "bad",
    [
        *({"queue": ""}, {"queue": "~a"}, {"queue": "a\nb"}, {"queue": 7}, {"name": ""}, {"name": "a\x07b"}),
        *({"name": "x" * 256}, {"name": 5}, {"name": "\ud800"}, {"missed": "maybe"}, {"missed": None}),
        *({"partition": ""}, {"partition": "*"}, {"key": ""}, {"headers": {"a": 1}}, {"headers": "a"}),
        *({"headers": {"penstock-slot": "x"}}, {"value": object}, {"value": float("nan")}),
        *({"start": datetime(2026, 1, 1)}, {"start": "now"}),
    ],
    ids=repr,
)
def test_what_cannot_be_a_schedule_is_refused_when_it_is_declared(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        penstock.every("5 minutes", **{"queue": "q", "value": 1, **bad})
    assert declaring.declared_schedules() == []


@pytest.fixture(autouse=True)
def forgetting() -> Any:
    declaring.forget_declared()
    yield
    declaring.forget_declared()


def test_what_is_declared_is_kept_by_name_and_declared_once() -> None:
    first = penstock.every("5 minutes", queue="q", value=1)
    second = penstock.cron("0 9 * * MON-FRI", tz="Europe/Berlin", queue="q", value={"a": 1}, name="report")
    assert penstock.every("300 s", queue="q", value=1) == first
    assert declaring.declared_schedules() == [first, second]
    assert (first.name, second.value) == ("q", b'{"a":1}')
    with pytest.raises(InvalidInput, match=r"two schedules named 'q'.*give each a name"):
        penstock.every("6 minutes", queue="q", value=1)
