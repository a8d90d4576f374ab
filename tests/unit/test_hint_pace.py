"""How often pushes take a hint along, which takes a lock of the whole database; the clock is the test's own."""

import pytest

from penstock.postgres.hints import Pace


class Scene:
    """Pushes that take so many seconds each."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = Pace(lambda: self.now)

    def push(self, took: float, *, spared: bool = False) -> float:
        """Push, with a hint, and return for how long other pushes may not have one."""
        self.now += 60.0
        assert self.pace.begin()
        assert not self.pace.begin()
        self.now += took
        self.pace.end(spared=spared)
        ended = self.now
        while not self.pace.begin():
            self.now += 0.0001
        return self.now - ended


def test_a_quick_push_lets_the_next_one_hint_soon() -> None:
    scene = Scene()
    scene.push(0.001)
    assert scene.push(0.001) == pytest.approx(0.001, abs=0.0003)


def test_a_push_that_waited_for_the_lock_of_others_leaves_it_to_them_for_longer() -> None:
    scene = Scene()
    scene.push(0.001)
    assert scene.push(0.003) > 3 * 0.003


def test_a_server_that_got_slower_is_not_taken_for_a_lock_for_ever() -> None:
    scene = Scene()
    scene.push(0.001)
    for _ in range(200):
        scene.push(0.004)
    assert scene.push(0.004) == pytest.approx(0.004, abs=0.001)


def test_a_hint_that_woke_nobody_is_not_tried_with_each_push() -> None:
    scene = Scene()
    assert scene.push(0.001, spared=True) >= 3 * 0.001


def test_a_push_that_never_ended_keeps_others_from_hinting_for_a_moment_only() -> None:
    scene = Scene()
    assert scene.pace.begin()
    scene.now += 0.04
    assert not scene.pace.begin()
    scene.now += 0.02
    assert scene.pace.begin()
