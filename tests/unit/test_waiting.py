"""Those who wait for the same share one backoff and one look; the clock is the test's own."""

import pytest

from penstock.broker.infos import SweepResult
from penstock.consuming.waiting import Key, Step, Waiter, WaitGroups

ANY = Key("q", None, "g")
FOREVER = float("inf")


class Scene:
    """A waits with a clock, and what those in it were told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits = WaitGroups(lambda: self.now)
        self.signals: list[Waiter] = []
        # No sweep is due unless a test is about sweeps.
        self.waits.swept(SweepResult(0, 0, 0, None, None, None))

    def enter(self, key: Key = ANY, wait: float = FOREVER) -> Waiter:
        entered: list[Waiter] = []
        waiter = self.waits.enter(key, self.now + wait, lambda: self.signals.append(entered[0]))
        entered.append(waiter)
        return waiter

    def step(self, waiter: Waiter, check: bool = True) -> Step:
        return self.waits.step(waiter, pending_check=check)[0]

    def sleep(self, waiter: Waiter) -> float:
        step, seconds = self.waits.step(waiter, pending_check=True)
        assert step is Step.SLEEP
        return seconds

    def find(self, waiter: Waiter, found: bool) -> None:
        """Do what the step says, with this outcome."""
        step = self.step(waiter)
        assert step in (Step.POP, Step.CHECK)
        if step is Step.POP:
            self.waits.popped(waiter, self.now, found)
        else:
            self.waits.checked(waiter, self.now, found)

    def quieten(self, waiter: Waiter) -> None:
        """Look in vain until the longest pause is reached."""
        for _ in range(20):
            self.find(waiter, False)
            self.waits.swept(SweepResult(0, 0, 0, None, None, None))
            self.now += self.sleep(waiter)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_whoever_comes_first_looks_at_once_and_then_less_and_less_often(scene: Scene) -> None:
    waiter = scene.enter()
    pauses = []
    for _ in range(18):
        assert scene.step(waiter, check=False) is Step.POP
        scene.waits.popped(waiter, scene.now, False)
        scene.waits.swept(SweepResult(0, 0, 0, None, None, None))
        pauses.append(scene.sleep(waiter))
        scene.now += pauses[-1]
    assert pauses[0] == pytest.approx(0.0005)
    # Then it falls into step with all others.
    assert pauses[:10] == sorted(pauses[:10])
    assert pauses[-1] == pytest.approx(0.5)
    assert max(pauses) <= 0.5 + 1e-6


def test_groups_that_are_idle_for_long_look_at_the_same_moments(scene: Scene) -> None:
    moments = set()
    for number in range(5):
        scene.now += 0.07
        waiter = scene.waits.enter(Key("q", None, f"g{number}"), scene.now + 1000, lambda: None)
        scene.quieten(waiter)
        moments.add(round((waiter.group.look_at % 0.5), 6) % 0.5)
    assert len(moments) == 1


def test_pauses_stay_short_while_something_came_lately_unless_pushes_are_heard_of(scene: Scene) -> None:
    waiter = scene.enter()
    scene.find(waiter, True)
    scene.waits.leave(waiter)
    for listening, longest in ((False, 0.1), (True, 0.5)):
        scene.waits.listening = lambda listening=listening: listening  # type: ignore[misc]
        waiter = scene.enter()
        pauses = []
        for _ in range(16):
            scene.find(waiter, False)
            pauses.append(scene.sleep(waiter))
            scene.now += pauses[-1]
        assert max(pauses) == pytest.approx(longest)
        scene.waits.leave(waiter)
    scene.waits.listening = lambda: False
    scene.now += 5
    waiter = scene.enter()
    scene.quieten(waiter)
    assert scene.step(waiter) is Step.CHECK
    scene.find(waiter, False)
    assert scene.sleep(waiter) == pytest.approx(0.5)


def test_from_a_tenth_of_a_second_on_only_the_check_is_made(scene: Scene) -> None:
    waiter = scene.enter()
    scene.quieten(waiter)
    assert scene.step(waiter) is Step.CHECK
    assert scene.step(waiter, check=False) is Step.POP
    scene.waits.checked(waiter, scene.now, True)
    assert scene.step(waiter) is Step.POP


def test_a_thousand_who_wait_for_the_same_look_as_often_as_one(scene: Scene) -> None:
    waiters = [scene.enter()]
    scene.find(waiters[0], False)
    waiters += [scene.enter() for _ in range(999)]
    looks = 0
    end = scene.now + 60
    while scene.now < end:
        for waiter in waiters:
            if scene.step(waiter) in (Step.POP, Step.CHECK):
                looks += 1
                scene.find(waiter, False)
                scene.waits.swept(SweepResult(0, 0, 0, None, None, None))
        scene.now += 0.05
    assert looks < 60 * 2 + 20


def test_who_waits_for_something_else_looks_for_oneself(scene: Scene) -> None:
    for key in (ANY, Key("q", "p", "g"), Key("q", None, "other"), Key("other", None, "g")):
        assert scene.step(scene.enter(key)) is Step.POP


def test_whoever_finds_something_calls_two_more_and_who_finds_nothing_calls_nobody(scene: Scene) -> None:
    first = scene.enter()
    scene.find(first, False)
    others = [scene.enter() for _ in range(5)]
    scene.signals.clear()
    scene.waits.wake("q", {"p"})
    assert scene.step(first) is Step.POP
    scene.waits.popped(first, scene.now, True)
    scene.waits.leave(first)
    assert {id(waiter) for waiter in scene.signals} == {id(first), id(others[0]), id(others[1])}
    assert [scene.step(waiter) is Step.POP for waiter in others] == [True, True, False, False, False]
    scene.signals.clear()
    scene.waits.popped(others[0], scene.now, False)
    assert scene.signals == []


def test_a_push_calls_as_many_as_it_has_partitions(scene: Scene) -> None:
    waiters = [scene.enter() for _ in range(6)]
    named = scene.enter(Key("q", "a", "g"))
    elsewhere = scene.enter(Key("q", "z", "g"))
    for waiter in (*waiters, named, elsewhere):
        if scene.step(waiter) is Step.POP:
            scene.waits.popped(waiter, scene.now, False)
    scene.waits.wake("q", {"a", "b", "c"})
    assert sum(scene.step(waiter) is Step.POP for waiter in waiters) == 3
    assert scene.step(named) is Step.POP
    assert scene.step(elsewhere) is Step.SLEEP
    scene.waits.wake("unheard of", {"a"})
    assert scene.step(elsewhere) is Step.SLEEP


def test_a_call_that_is_not_answered_goes_to_somebody_else(scene: Scene) -> None:
    first, second = scene.enter(), scene.enter()
    for waiter in (first, second):
        assert scene.step(waiter) is Step.POP
        scene.waits.popped(waiter, scene.now, False)
    scene.waits.wake("q", {"p"})
    scene.waits.leave(first)
    assert scene.step(second) is Step.POP


def test_when_the_first_leaves_the_next_one_looks_for_all(scene: Scene) -> None:
    first, second = scene.enter(), scene.enter()
    scene.find(first, False)
    scene.find(second, False)
    scene.now += 0.02
    scene.signals.clear()
    scene.waits.leave(first)
    assert scene.signals == [second]
    assert scene.step(second) is Step.POP


def test_everybody_is_sure_of_a_look_that_began_after_they_came(scene: Scene) -> None:
    first = scene.enter()
    scene.quieten(first)
    scene.find(first, False)
    scene.now += 0.1
    late = scene.enter(wait=0.05)
    assert scene.step(late) is Step.SLEEP
    scene.now += 0.06
    assert scene.step(late) is Step.POP
    scene.waits.popped(late, scene.now, False)
    assert scene.step(late) is Step.OVER


def test_newcomers_to_an_idle_room_share_a_look_and_bring_it_forward(scene: Scene) -> None:
    first = scene.enter()
    scene.quieten(first)
    scene.find(first, False)
    scene.now += 0.01
    for _ in range(100):
        assert scene.step(scene.enter(wait=30)) is Step.SLEEP
    assert scene.sleep(first) == pytest.approx(0.24)


def test_a_room_is_empty_when_the_last_one_has_left(scene: Scene) -> None:
    waiter = scene.enter()
    assert len(scene.waits) == 1
    scene.waits.leave(waiter)
    assert len(scene.waits) == 0
    scene.waits.wake("q", {"p"})


@pytest.mark.parametrize(
    ("sweep", "pause"),
    [
        (SweepResult(0, 0, 0, None, None, None), 1.0),
        (SweepResult(0, 0, 0, None, None, 0.3), 0.3),
        (SweepResult(0, 0, 0, None, None, 0.001), 0.05),
        (SweepResult(0, 0, 0, None, None, 300.0), 1.0),
        (SweepResult(0, 5, 0, None, None, 300.0), 0.1),
        (None, 0.1),
    ],
)
def test_the_next_sweep_is_when_the_last_one_said_within_bounds(
    scene: Scene, sweep: SweepResult | None, pause: float
) -> None:
    scene.enter()
    scene.now += 10
    scene.waits.swept(sweep)
    assert scene.waits.sweep_in() == pytest.approx(pause)
    scene.now += pause + 0.01
    assert scene.waits.sweep_in() == 0


def test_a_sweep_that_brought_work_makes_every_room_look(scene: Scene) -> None:
    waiters = [scene.enter(key) for key in (ANY, Key("other", None, "g"))]
    for waiter in waiters:
        scene.find(waiter, False)
    scene.waits.swept(SweepResult(1, 0, 0, None, None, None))
    assert [scene.step(waiter) for waiter in waiters] == [Step.POP, Step.POP]


def test_what_happens_here_makes_a_sweep_due_soon(scene: Scene) -> None:
    sooner: list[float] = []
    scene.waits.sweep_sooner = lambda: sooner.append(scene.now)
    scene.now += 0.5
    scene.waits.stir()
    assert scene.waits.sweep_in() == 0
    scene.waits.swept(SweepResult(0, 0, 0, None, None, None))
    for _ in range(5):
        scene.waits.stir()
    assert scene.waits.sweep_in() == pytest.approx(0.1)
    assert len(sooner) == 2


def test_a_sweep_that_did_not_do_all_is_followed_by_the_next_at_once(scene: Scene) -> None:
    scene.enter()
    scene.waits.swept(SweepResult(100, 0, 0, None, None, None), all_due=False)
    assert scene.waits.sweep_in() == 0


def test_sweeps_go_on_while_somebody_waits_and_for_a_second_after_something_happened(scene: Scene) -> None:
    assert scene.waits.sweep_in() is None
    waiter = scene.enter()
    scene.now += 100
    assert scene.waits.sweep_in() == 0
    scene.waits.leave(waiter)
    assert scene.waits.sweep_in() is None
    scene.waits.stir()
    scene.now += 0.9
    assert scene.waits.sweep_in() == 0
    scene.now += 0.2
    assert scene.waits.sweep_in() is None
