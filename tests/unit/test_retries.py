"""Which calls are tried again after which error, and what is raised in the end."""

import time

import pytest

from penstock.broker.retries import Attempts, pauses
from penstock.errors import Retryable, TimedOut, Unavailable

BROKE, REFUSED, LATE, LOCKED = Unavailable("broke"), Unavailable("refused"), TimedOut("late"), Retryable("locked")


def attempts(left: float, *, repeatable: bool = True, stamped: bool = False) -> Attempts:
    """Return the attempts at a call that has so many seconds left."""
    return Attempts(time.monotonic() - 10, 10 + left, repeatable, stamped)


@pytest.mark.parametrize("error", [BROKE, LATE, LOCKED])
def test_a_call_that_may_do_harm_twice_is_tried_once(error: Unavailable | Retryable) -> None:
    with pytest.raises(type(error)):
        attempts(60, repeatable=False).pause(error, True)


def test_a_call_that_does_no_harm_is_tried_again_until_its_time_is_up() -> None:
    for sent in (True, False):
        assert attempts(60).pause(BROKE, sent) > 0
        with pytest.raises(Unavailable, match="broke"):
            attempts(-1).pause(BROKE, sent)


@pytest.mark.parametrize("error", [LATE, LOCKED])
def test_but_not_when_it_timed_out_or_changed_nothing(error: Unavailable | Retryable) -> None:
    with pytest.raises(type(error)):
        attempts(60).pause(error, True)


def test_a_stamped_call_that_never_reached_the_server_is_not_tried_again() -> None:
    with pytest.raises(Unavailable, match="refused"):
        attempts(60, stamped=True).pause(REFUSED, False)
    with pytest.raises(Retryable, match="locked"):
        attempts(60, stamped=True).pause(LOCKED, True)


def test_a_stamped_call_whose_outcome_is_unknown_is_tried_again_whatever_comes_next() -> None:
    for error, sent in ((BROKE, True), (REFUSED, False), (LATE, True), (LOCKED, True)):
        push = attempts(60, stamped=True)
        assert push.pause(BROKE, True) > 0
        assert push.pause(error, sent) > 0


def test_a_stamped_call_that_timed_out_has_one_more_attempt() -> None:
    push = attempts(-1, stamped=True)
    assert push.pause(LATE, True) == 0
    with pytest.raises(TimedOut, match="late"):
        push.pause(LATE, True)


@pytest.mark.parametrize(
    ("last", "sent", "raised"), [(BROKE, True, BROKE), (REFUSED, False, LATE), (LOCKED, True, LATE)]
)
def test_in_the_end_it_says_that_the_outcome_is_unknown(
    last: Unavailable | Retryable, sent: bool, raised: Unavailable
) -> None:
    push = attempts(-1, stamped=True)
    push.pause(LATE, True)
    with pytest.raises(Unavailable) as caught:
        push.pause(last, sent)
    assert caught.value is raised


def test_pauses_grow_and_end() -> None:
    found = [pause for pause, _ in zip(pauses(60), range(8), strict=False)]
    assert all(0.5 * 0.05 * 2**turn <= pause <= 0.05 * 2**turn for turn, pause in enumerate(found[:5]))
    assert max(found) <= 1
    assert list(pauses(-1)) == []
