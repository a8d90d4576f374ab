"""When schedules push: intervals, cron expressions, the two days a year on which clocks change, and bad input."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import InvalidInput
from penstock.broker.slots import Cron, Every, cron_fields, interval, interval_text, slots, zone

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
SPECS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "15 1-3 * * *", "0 */2 * * *", "0 9 * * MON-FRI", "59 23 L * *"]
SPECS += ["5 0 29 2 *", "0 0 1 1 *", "*/20 2 * 3,10,11 SUN", "0 3 * * 7#1"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(slot: datetime, tz: str) -> str:
    return slot.astimezone(ZoneInfo(tz)).strftime("%d %H:%M %z")


@pytest.mark.parametrize(
    ("given_as", "words"),
    [
        ("5 minutes", "5 minutes"),
        ("90 seconds", "1 minute 30 seconds"),
        ("1h30m", "1 hour 30 minutes"),
        ("1 hour, 30 minutes", "1 hour 30 minutes"),
        ("day", "1 day"),
        (7 * 86_400, "1 week"),
        ("8 days", "8 days"),
        (1.5, "1.5 seconds"),
        (timedelta(hours=25), "1 day 1 hour"),
    ],
)
def test_an_interval_is_written_in_words_that_are_read_again(given_as: Any, words: str) -> None:
    assert interval_text(interval(given_as)) == words
    assert interval(words) == interval(given_as)


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=3660)))
def test_any_interval_survives_being_written(step: timedelta) -> None:
    assert interval(interval_text(step)) == step


@pytest.mark.parametrize(
    "bad",
    [
        *(
            "",
            "5",
            "five minutes",
            "5 parsecs",
            "-5 minutes",
            "5 minutes ago",
            "1e3 s",
            "٣ minutes",
            "1 month",
            "a" * 300,
        ),
        *("9" * 200 + " s", 0, 0.5, -1, float("nan"), float("inf"), 1e300, True, None, b"5 minutes", [5]),
        *(timedelta(0), timedelta(days=3661), "3661 days", "0.5 s"),
    ],
)
def test_what_is_no_interval_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        interval(bad)


@pytest.mark.parametrize(
    "bad",
    [
        *(
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "a b c d e",
        ),
        *(
            "*/0 * * * *",
            "5-1 * * * *",
            "0 0 30 2 *",
            "0 0 31 4 *",
            "@never",
            "1\0 * * * *",
            "* * * * MON#6",
            "1," * 200,
        ),
        *(None, 5, ["* * * * *"], b"* * * * *"),
    ],
)
def test_what_is_no_cron_expression_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        cron_fields(bad)


@pytest.mark.parametrize(
    "bad",
    ["", "Europe/Nowhere", "Europe", "../../etc/passwd", "/etc/localtime", "localtime", "a\0b", "x" * 5000, None, 1],
)
def test_what_is_no_time_zone_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        zone(bad)


def test_intervals_are_aligned_so_that_everybody_agrees_where_slots_are() -> None:
    five = Every(timedelta(minutes=5))
    assert five.after(at("2026-11-17 09:02:30")) == at("2026-11-17 09:05")
    assert five.after(at("2026-11-17 09:05")) == at("2026-11-17 09:10")
    assert five.latest(at("2026-11-17 09:00"), at("2026-11-17 09:14"), 9) == [
        at("2026-11-17 09:05"),
        at("2026-11-17 09:10"),
    ]
    week = Every(timedelta(days=7)).after(at("2026-11-17 09:00"))
    assert week == at("2026-11-23 00:00")
    assert week.weekday() == 0


def test_an_interval_with_a_start_begins_there() -> None:
    daily = Every(timedelta(days=1), at("2026-11-17 06:30"))
    assert daily.after(at("2020-01-01 00:00")) == at("2026-11-17 06:30")
    assert daily.latest(at("2020-01-01 00:00"), at("2026-11-16 00:00"), 5) == []
    assert daily.after(at("2026-11-17 06:30")) == at("2026-11-18 06:30")


@pytest.mark.parametrize(
    ("tz", "night", "expected"),
    [
        (BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        (NEW_YORK, "2026-03-07 12:00", ["08 03:00 -0400", "09 02:30 -0400"]),
    ],
)
def test_a_fixed_time_in_the_gap_is_made_up_for_when_the_gap_ends(tz: str, night: str, expected: list[str]) -> None:
    found = Cron("30 2 * * *", tz).latest(at(night), at(night) + timedelta(days=2), 5)
    assert [local(slot, tz) for slot in found] == expected


@pytest.mark.parametrize(
    ("tz", "night", "expected"),
    [
        (BERLIN, "2026-10-24 12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        (NEW_YORK, "2026-10-31 12:00", ["01 01:30 -0400", "02 01:30 -0500"]),
    ],
)
def test_a_fixed_time_that_exists_twice_counts_the_first_time(tz: str, night: str, expected: list[str]) -> None:
    hour = expected[0][4]
    cron = Cron(f"30 {hour} * * *", tz)
    assert [local(slot, tz) for slot in cron.latest(at(night), at(night) + timedelta(days=2), 5)] == expected
    # Asked between the two, it does not come again.
    first = cron.after(at(night))
    assert first is not None
    between = first + timedelta(minutes=45)
    assert local(cron.after(between) or first, tz) == expected[1]


@pytest.mark.parametrize(
    ("tz", "spring", "autumn"), [(BERLIN, "2026-03-29", "2026-10-25"), (NEW_YORK, "2026-03-08", "2026-11-01")]
)
def test_an_hourly_expression_goes_by_instants(tz: str, spring: str, autumn: str) -> None:
    for day in (spring, autumn):
        found = Cron("15 * * * *", tz).latest(at(f"{day} 00:00"), at(f"{day} 12:00"), 20)
        assert [slot - before for before, slot in itertools.pairwise(found)] == [timedelta(hours=1)] * 11


def test_days_keep_their_wall_clock_time_through_the_year() -> None:
    found = Cron("0 9 * * *", BERLIN).latest(at("2025-12-31 12:00"), at("2026-12-31 12:00"), 400)
    assert len(found) == 365
    assert {slot.astimezone(ZoneInfo(BERLIN)).strftime("%H:%M") for slot in found} == {"09:00"}
    assert {slot.hour for slot in found} == {7, 8}


@settings(max_examples=60)
@given(
    st.sampled_from(SPECS),
    st.sampled_from([BERLIN, NEW_YORK, "UTC", "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"]),
    st.datetimes(datetime(2009, 1, 1), datetime(2027, 1, 1)),
    st.timedeltas(timedelta(0), timedelta(days=3)),
    st.integers(1, 50),
)
def test_the_latest_slots_are_the_last_of_those_that_follow_one_another(
    spec: str, tz: str, begin: datetime, span: timedelta, limit: int
) -> None:
    cron, after = Cron(spec, tz), begin.replace(tzinfo=UTC)
    found, slot = [], cron.after(after)
    while slot is not None and slot <= after + span:
        found.append(slot)
        following = cron.after(slot)
        assert following is None or following > slot
        slot = following
    assert cron.latest(after, after + span, limit) == found[-limit:]
    assert found == sorted(set(found))


def test_slots_end_with_the_calendar() -> None:
    assert Cron("0 0 1 1 *", BERLIN).after(datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert Every(timedelta(days=3660)).after(datetime(9999, 6, 1, tzinfo=UTC)) is None


def test_spec_in_words() -> None:
    assert slots("every", "5 minutes").words == "every 5 minutes"
    assert slots("cron", "0 9 * * MON-FRI", BERLIN).words == "at 09:00 on Monday through Friday (Europe/Berlin)"
    with pytest.raises(InvalidInput):
        slots("sometimes", "5 minutes")
