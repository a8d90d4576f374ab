"""The circuit breaker as a state machine: it is told the time, and does nothing by itself."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.consuming.breaker import Breaker, BreakerSettings, BreakerState

FAST = BreakerSettings(errors=3, rate=0.0, window=10.0, pause=5.0, pause_max=15.0)


def opened(settings: BreakerSettings = FAST, at: float = 0.0) -> Breaker:
    breaker = Breaker(settings)
    while not breaker.failed(1, at):
        pass
    return breaker


def test_it_opens_at_the_last_of_so_many_errors_in_a_row() -> None:
    breaker = Breaker(FAST)
    assert [breaker.failed(1, 0.0) for _ in range(3)] == [False, False, True]
    assert breaker.state(0.0) is BreakerState.OPEN


def test_a_success_in_between_begins_the_count_anew() -> None:
    breaker = Breaker(FAST)
    breaker.failed(2, 0.0)
    breaker.succeeded(1, 0.0)
    assert not breaker.failed(2, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_never_opens_where_it_is_off() -> None:
    breaker = Breaker(BreakerSettings(errors=0, rate=0.0))
    assert not any(breaker.failed(1, 0.0) for _ in range(1000))


def test_it_opens_when_too_large_a_share_fails_within_the_window() -> None:
    breaker = Breaker(BreakerSettings(errors=0, rate=0.5, window=10.0))
    breaker.succeeded(10, 0.0)
    assert not breaker.failed(9, 1.0)
    assert breaker.failed(1, 2.0)


def test_what_lies_before_the_window_does_not_count() -> None:
    breaker = Breaker(BreakerSettings(errors=0, rate=0.5, window=10.0))
    breaker.failed(19, 0.0)
    breaker.succeeded(1, 11.0)
    assert not breaker.failed(1, 12.0)


def test_while_it_is_open_nothing_may_be_taken_and_then_one_probe() -> None:
    breaker = opened()
    assert (breaker.wait(1.0), breaker.begin_probe(4.9)) == (4.0, False)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert [breaker.begin_probe(5.0), breaker.begin_probe(5.0)] == [True, False]


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.begin_probe(5.0)
    assert breaker.succeeded(1, 6.0, probe=True)
    assert breaker.is_closed
    assert not breaker.failed(2, 6.0)


def test_each_probe_that_fails_makes_the_pause_twice_as_long_up_to_a_limit() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(4):
        pauses.append(breaker.wait(now))
        now += pauses[-1]
        assert breaker.begin_probe(now)
        assert breaker.failed(1, now, probe=True)
    assert pauses == [5.0, 10.0, 15.0, 15.0]


def test_what_was_taken_before_it_opened_is_no_probe() -> None:
    breaker = opened()
    breaker.begin_probe(5.0)
    assert not breaker.succeeded(1, 5.0)
    assert not breaker.failed(1, 5.0)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN


def test_a_probe_that_found_nothing_may_be_made_again() -> None:
    breaker = opened()
    breaker.begin_probe(5.0)
    breaker.end_probe()
    assert breaker.begin_probe(6.0)


def test_a_clock_that_is_set_back_does_not_hold_it_open_for_longer_than_its_pause() -> None:
    breaker = opened(at=1_000_000.0)
    assert breaker.wait(10.0) == 5.0
    assert breaker.wait(15.0) == 0.0


def test_reset_closes_it_and_forgets_how_often_it_opened() -> None:
    breaker = opened()
    breaker.begin_probe(5.0)
    breaker.failed(1, 5.0, probe=True)
    breaker.reset()
    assert breaker.is_closed
    breaker.failed(3, 100.0)
    assert breaker.wait(100.0) == 5.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "bad", "probe good", "probe bad", "none"]), st.floats(-50.0, 50.0)),
        max_size=60,
    )
)
def test_whatever_happens_it_lets_something_through_again_within_its_longest_pause(
    steps: list[tuple[str, float]],
) -> None:
    breaker, now = Breaker(FAST), 0.0
    for step, passed in steps:
        now += passed
        probing = step.startswith("probe") and breaker.begin_probe(now)
        if step.endswith("good"):
            breaker.succeeded(1, now, probe=probing)
        elif step.endswith("bad"):
            breaker.failed(1, now, probe=probing)
        if breaker.is_probing:
            breaker.end_probe()
    assert breaker.wait(now) <= FAST.pause_max
    assert breaker.is_closed or breaker.begin_probe(now + breaker.wait(now))
