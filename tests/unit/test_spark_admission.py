"""Sharing a batch out between partitions: fair, within the limit, and nobody starves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.range_calls import PlannedPage
from penstock.spark.admission import share_messages
from penstock.spark.planning import TASK_BYTES, deal
from penstock.spark.positions import Positions, numbers

Available = st.lists(st.integers(1, 1000), min_size=1, max_size=50)


@given(Available, st.integers(1, 5000), st.integers(0, 1000))
def test_the_limit_is_spent_whole_and_fairly(available: list[int], limit: int, turn: int) -> None:
    granted = share_messages(numbers(available), limit, turn)
    assert granted.sum() == min(limit, sum(available))
    assert (granted <= numbers(available)).all()
    # Whoever got less than somebody else has no more, but for the one message that does not divide.
    hungry = granted[granted < numbers(available)]
    assert not len(hungry) or hungry.min() >= granted.max() - 1


@given(st.integers(2, 50), st.integers(1, 20))
def test_with_less_than_a_message_for_each_they_take_turns(partitions: int, limit: int) -> None:
    served = np.zeros(partitions, dtype=np.int64)
    for turn in range(partitions):
        served += share_messages(numbers([10**6] * partitions), limit, turn)
    assert served.min() > 0
    assert served.max() - served.min() <= max(limit, 1)


@given(st.dictionaries(st.integers(1, 50), st.integers(0, 9)), st.dictionaries(st.integers(1, 50), st.integers(0, 9)))
def test_positions_are_a_mapping(known: dict[int, int], moves: dict[int, int]) -> None:
    positions = Positions.of(list(known), list(known.values()))
    moved = positions.moved(numbers(list(moves)), numbers(list(moves.values())))
    assert dict(zip(moved.ids.tolist(), moved.offsets.tolist(), strict=True)) == {**known, **moves}
    ids = numbers(range(60))
    assert moved.get(ids, ids * 0 - 1).tolist() == [{**known, **moves}.get(number, -1) for number in range(60)]


def covered(tasks: list[list[PlannedPage]]) -> dict[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for page in (page for task in tasks for page in task):
        ranges.setdefault(page.partition_id, []).append((page.start, page.stop))
    return ranges


def test_one_hot_partition_is_cut_over_several_tasks() -> None:
    pages = [PlannedPage(1, start, start + 100, 8 << 20) for start in range(0, 2000, 100)]
    tasks = deal(pages, 1, 64)
    assert len(tasks) == 20 * (8 << 20) // TASK_BYTES + 1
    assert covered(tasks)[1] == [(page.start, page.stop) for page in pages]


def test_a_small_range_is_cut_where_many_tasks_are_wanted() -> None:
    tasks = deal([PlannedPage(1, 10, 50, 1000)], 4, 2)
    assert covered(tasks)[1] == [(10, 20), (20, 30), (30, 40), (40, 50)]
    assert len(tasks) == 4


def test_a_hundred_thousand_partitions_share_a_few_tasks() -> None:
    tasks = deal([PlannedPage(number, 0, 1, 100) for number in range(100_000)], 1, 64)
    assert len(tasks) == 13
    assert max(map(len, tasks)) - min(map(len, tasks)) < 1000


def test_there_is_a_limit_to_the_number_of_tasks() -> None:
    assert len(deal([PlannedPage(1, number, number + 1, TASK_BYTES) for number in range(1000)], 1, 6)) == 6
