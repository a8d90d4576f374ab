"""The checks of `penstock status`, each on facts that are made up: what it takes to find something, and since when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import sql
from penstock.broker.health import BreakerInfo, ConsumerInfo
from penstock.broker.metrics import (
    MOST_LETTERS,
    CheckSettings,
    DeadLettersFact,
    Facts,
    FlowState,
    ScheduleFact,
    WorkInfo,
)
from penstock.operations.status import CHECKS, Problem, judge

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def minutes_ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def work(lag: int = 10, cold: int | None = None, **fields: Any) -> WorkInfo:
    series = fields.pop("series", [])
    values: dict[str, Any] = {
        "queue": "q",
        "group": "g",
        "flow": None,
        "flow_type": "UNKNOWN",
        "action": None,
        "action_class": None,
        "ready": 1,
        "claimed": 0,
        "waiting": 0,
        "oldest_at": minutes_ago(5),
        "oldest_age": 300.0,
        "oldest_id": "id",
        "oldest_did": "did",
        "sampled_at": NOW,
        "times": [minutes_ago(minutes) for minutes, _ in series],
        "lags": [value for _, value in series],
        "depths": [value for _, value in series],
    }
    return WorkInfo(lag=lag, cold=lag if cold is None else cold, **{**values, **fields})


def consumer(name: str = "c", status: str = "healthy") -> ConsumerInfo:
    return ConsumerInfo(name, minutes_ago(60), None, None, minutes_ago(1), status, 5, 7, 7, 1, 1, "Boom: no")


def found(check: str, threshold: float = 1, duration: float = 0, enabled: bool = True, **facts: Any) -> list[Problem]:
    """Run one check with these settings on these facts."""
    settings = CheckSettings(check, enabled, threshold, duration, "", "do it", True)
    nothing: dict[str, Any] = {
        name: []
        for name in ("work", "breakers", "consumers", "consuming", "external", "flows", "orphans", "dead_letters")
    }
    return list(judge(Facts(now=NOW, checks=[settings], **{**nothing, **facts})))


def test_every_check_of_the_server_is_one_of_ours_and_the_other_way_round() -> None:
    text = sql.functions()["checks"].text
    assert [name for name in CHECKS if f"    ('{name}', " not in text] == []
    assert text.count("\n    ('") == len(CHECKS)


def test_a_check_that_is_off_finds_nothing() -> None:
    assert found("cold_high", enabled=False, work=[work(lag=100)]) == []


def test_of_each_check_comes_first_what_has_been_so_for_longest() -> None:
    waiting = [
        work(queue=name, oldest_at=at) for name, at in (("b", minutes_ago(2)), ("c", None), ("a", minutes_ago(9)))
    ]
    assert [problem.queue for problem in found("workers_missing", work=waiting)] == ["a", "b", "c"]


def test_cold_above_a_threshold_is_found_with_the_time_since_when() -> None:
    series = [(10, 5), (8, 200), (6, 50), (4, 150), (2, 300)]
    [problem] = found("cold_high", 100, work=[work(cold=400, series=series)])
    assert (problem.subject, problem.since) == ("group g of queue q", minutes_ago(4))
    assert found("cold_high", 400, work=[work(cold=400)]) == []


@pytest.mark.parametrize(("grown", "problems"), [(9_999, 0), (10_000, 1)])
def test_cold_that_grew_by_so_many_over_twelve_samples_a_minute_apart_is_found(grown: int, problems: int) -> None:
    series = [(minutes, 500 + (12 - minutes) * grown // 12) for minutes in range(12, 0, -1)]
    assert len(found("cold_growing", 10_000, 720, work=[work(lag=500 + grown, series=series)])) == problems


def test_growth_needs_as_much_of_the_past_as_the_check_looks_at() -> None:
    assert found("cold_growing", 10, 720, work=[work(lag=1000, series=[(5, 0)])]) == []


def test_a_value_holds_until_the_next_one() -> None:
    # Nothing changed for half an hour, so there is no sample of that time.
    [problem] = found("queue_growing", 100, 600, work=[work(lag=150, series=[(40, 10), (3, 100)])])
    assert problem.since == minutes_ago(10)


def test_a_past_that_lies_ahead_after_the_clock_went_back_is_left_out() -> None:
    assert found("queue_growing", 100, 600, work=[work(lag=1000, series=[(-60, 10)])]) == []


def test_a_message_that_waits_for_too_long_is_found_with_its_did() -> None:
    [problem] = found("oldest_too_old", 299, work=[work(lag=1)])
    assert "the oldest of 1 message waits for 5 min (did did)" in problem.found
    assert problem.since == minutes_ago(5)
    assert found("oldest_too_old", 300, work=[work()]) == []


def test_work_without_consumers_is_found_unless_somebody_holds_it_or_it_is_a_flows() -> None:
    waiting = work()
    [problem] = found(
        "workers_missing", 1, 60, work=[waiting], consumers=[consumer(status="gone")], consuming=[("q", "g", "c")]
    )
    assert problem.found == "10 messages wait and no consumer is there"
    assert found("workers_missing", 1, 60, work=[waiting], consumers=[consumer()], consuming=[("q", "g", "c")]) == []
    assert found("workers_missing", 1, 60, work=[work(claimed=1)]) == []
    assert found("workers_missing", 1, 60, work=[waiting], external=[("q", "g")]) == []
    assert found("workers_missing", 1, 301, work=[waiting]) == []


def test_what_the_warm_tier_has_claimed_for_a_window_is_held_by_no_consumer() -> None:
    in_window = work(claimed=3)
    [problem] = found("workers_missing", 1, 60, work=[in_window], windows=[("q", "g", 0)])
    assert problem.found == "10 messages wait and no consumer is there"
    [problem] = found("oldest_too_old", 60, work=[in_window], windows=[("q", "g", 0)])
    assert problem.found.endswith("; the window of the group has 3 claims")
    # Somebody takes from the window, or has claims beside it.
    here: dict[str, Any] = {"consumers": [consumer()], "consuming": [("q", "g", "c")]}
    assert found("workers_missing", 1, 60, work=[in_window], windows=[("q", "g", 0)], **here) == []
    assert found("workers_missing", 1, 60, work=[in_window], windows=[("q", "g", 1)]) == []
    [problem] = found("oldest_too_old", 60, work=[in_window], windows=[("q", "g", 1)])
    assert problem.found.endswith("; consumers hold 1 claim")


def test_too_few_workers_are_those_who_succeed_while_more_and_more_waits() -> None:
    facts: dict[str, Any] = {
        "work": [work(lag=5000, series=[(15, 10), (1, 4000)])],
        "consumers": [consumer("a"), consumer("b")],
        "consuming": [("q", "g", "a"), ("q", "g", "b")],
    }
    [problem] = found("workers_too_few", 1000, 600, **facts)
    assert problem.found.startswith("2 consumers are there, and 4,990 messages more wait than at ")
    # Those that fail need no help of others.
    assert found("workers_too_few", 1000, 600, **{**facts, "breakers": [breaker("open")]}) == []
    assert found("workers_too_few", 1000, 600, **{**facts, "consuming": []}) == []


def breaker(state: str) -> BreakerInfo:
    until = NOW + timedelta(seconds=30)
    return BreakerInfo(
        "q", "g", state, minutes_ago(1), minutes_ago(9), until, 3, 50, 0, 0, "50 errors in a row", "Boom"
    )


def test_breakers_that_are_open_are_found_of_groups_and_of_consumers() -> None:
    facts: dict[str, Any] = {
        "breakers": [breaker("open"), breaker("closed")],
        "consumers": [consumer(status="open"), consumer("d")],
    }
    group, one = found("breaker_open", **facts)
    assert (group.subject, group.since) == ("group g of queue q", minutes_ago(9))
    assert "50 errors in a row; last error: Boom" in group.found
    assert one.subject == "consumer c"
    assert "after 7 errors in a row; last error: Boom: no" in one.found


@pytest.mark.parametrize(
    ("state", "failures", "problems"),
    [("lost", 0, 1), ("failed", 0, 1), ("backing off", 3, 1), ("backing off", 2, 0), ("running", 9, 0)],
)
def test_flows_that_fail_are_found(state: str, failures: int, problems: int) -> None:
    flow = FlowState("f", state, failures, "no", minutes_ago(3))
    assert len(found("flow_failing", 3, flows=[flow])) == problems


def test_schedules_that_fail_or_that_nobody_fires_are_found() -> None:
    schedules = [
        ScheduleFact("failing", "q", minutes_ago(5), "no queue", minutes_ago(4)),
        ScheduleFact("late", "q", minutes_ago(3), None, None),
        ScheduleFact("due", "q", minutes_ago(0.5), None, None),
    ]
    failing, late = found("schedule_stuck", 60, schedules=schedules)
    assert (failing.subject, failing.found) == ("schedule failing of queue q", "fails: no queue")
    assert (failing.since, failing.queue) == (minutes_ago(4), "q")
    assert (late.found, late.since) == ("due for 3 min, and nobody pushes it", minutes_ago(3))
    assert found("schedule_stuck", 60, 300, schedules=schedules) == []


def test_a_queue_that_nobody_reads_is_found_once_it_is_old_enough() -> None:
    [problem] = found("orphan_queue", 1, 3600, orphans=[("old", minutes_ago(61)), ("new", minutes_ago(59))])
    assert (problem.subject, problem.advice) == ("queue old", "do it")


def test_dead_letters_that_wait_are_found_with_how_many_and_since_when() -> None:
    dead = [DeadLettersFact("q", "g", 2, minutes_ago(5)), DeadLettersFact("q", "h", 1, minutes_ago(9))]
    second, first = found("dead_letters_waiting", dead_letters=dead)
    assert (first.queue, first.group, first.found, first.since) == ("q", "g", "2 dead letters wait", minutes_ago(5))
    assert (second.group, second.found) == ("h", "1 dead letter waits")
    assert [each.group for each in found("dead_letters_waiting", 2, dead_letters=dead)] == ["g"]
    assert [each.group for each in found("dead_letters_waiting", 1, 400, dead_letters=dead)] == ["h"]


def test_more_dead_letters_than_are_counted_are_found_whatever_the_threshold_is() -> None:
    dead = [DeadLettersFact("q", "g", MOST_LETTERS, minutes_ago(5))]
    [problem] = found("dead_letters_waiting", 5000, dead_letters=dead)
    assert problem.found == "1,000 or more dead letters wait"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"claimed": 2, "ready": 0}, "; consumers hold 2 claims"),
        ({"waiting": 1, "ready": 0}, "; they wait for a retry, a snooze, a delay or a limit"),
        ({}, ""),
    ],
)
def test_what_waits_for_too_long_is_found_with_what_it_waits_for(fields: dict[str, int], why: str) -> None:
    [problem] = found("oldest_too_old", 60, work=[work(**fields)])
    assert problem.found == f"the oldest of 10 messages waits for 5 min (did did){why}"


@pytest.mark.parametrize("check", ["workers_missing", "oldest_too_old", "cold_high"])
def test_of_a_paused_group_is_said_that_it_is_paused_and_how_to_let_it_go_on(check: str) -> None:
    [problem] = found(check, work=[work(group="two words", flow="shop")], paused=[("q", "two words")])
    assert problem.found.endswith("; the group is paused")
    assert problem.advice == (
        "let it go on: `penstock group resume q 'two words'`, or `penstock flows resume shop` if its flow is paused"
    )
