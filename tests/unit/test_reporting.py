"""When a client reports what it counted: never so that its background spins."""

import pytest

from penstock.consuming.reporting import Reports


@pytest.mark.parametrize("batches", [1, 299, 300, 5000])
def test_what_is_due_is_recorded_however_little_was_pushed(batches: int) -> None:
    now = [100.0]
    reports = Reports(lambda: now[0])
    for _ in range(batches):
        reports.pushed("orders", 1)

    looks = 0
    while (pause := reports.due_in()) is not None:
        looks += 1
        assert looks < 20, "it looks again and again, and records nothing"
        now[0] += pause
        if pause > 0:
            continue
        record = reports.metrics()
        # Nothing else lets the background wait: it would spin, and hold up all else of the process.
        assert record is not None
        reports.recorded(record)

    assert now[0] == (160.0 if batches >= 300 else 400.0)


def test_what_becomes_much_meanwhile_is_recorded_within_two_minutes() -> None:
    now = [100.0]
    reports = Reports(lambda: now[0])
    reports.pushed("orders", 1)
    now[0] = 159.0
    assert reports.due_in() == 60.0
    for _ in range(1000):
        reports.pushed("orders", 1)

    now[0] += 60.0

    assert reports.due_in() == 0.0
    assert reports.metrics() is not None


def test_the_first_failure_is_reported_at_once_because_the_answer_says_when_the_breaker_opens() -> None:
    reports = Reports(lambda: 100.0)
    tally = reports.enter("orders", "billing")
    assert reports.due_in() == 0.5
    tally.fail("no")
    assert reports.due_in() == 0.0
    assert reports.report("me") is not None
    # Where it did not arrive, it does not spin.
    assert reports.due_in() == 0.5


def test_whoever_pushed_first_is_seen_as_a_consumer_as_soon_as_any_other() -> None:
    reports = Reports(lambda: 100.0)
    due: list[float | None] = []
    reports.wake = lambda: due.append(reports.due_in())
    reports.pushed("orders", 1)
    assert reports.due_in() == 60.0

    reports.enter("orders", "billing")
    reports.enter("orders", "mail")

    assert due == [0.5]
