"""Sharing a batch out between partitions: in the order of time, within the limits, and nobody starves."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.ranges import PlannedPage
from penstock.spark.admission import SAME_SECONDS, Backlog, cut
from penstock.spark.planning import TASK_BYTES, deal
from penstock.spark.positions import Numbers, Positions, numbers

# For each partition, its pieces: how many seconds after the one before, messages, bytes of a message.
Pieces = st.lists(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 50), st.integers(0, 200)), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)


def backlog(partitions: Sequence[Sequence[tuple[int, int, int]]]) -> tuple[Backlog, Numbers]:
    """Return the backlog of partitions, and where they end."""
    rows = []
    for number, pieces in enumerate(partitions):
        first, second = 0, 0
        for later, messages, size in pieces:
            second += later
            rows.append((number, first, messages, messages * size, second))
            first += messages
    ends = numbers([sum(messages for _, messages, _ in pieces) for pieces in partitions])
    return Backlog(*map(numbers, zip(*rows, strict=True))), ends


def times(partitions: Sequence[Sequence[tuple[int, int, int]]]) -> list[list[int]]:
    """Return the second of every message."""
    return [
        [second for second, (_, messages, _) in zip(_seconds(pieces), pieces, strict=True) for _ in range(messages)]
        for pieces in partitions
    ]


def _seconds(pieces: Sequence[tuple[int, int, int]]) -> list[int]:
    return list(accumulate(later for later, _, _ in pieces))


def granted(partitions: Sequence[Sequence[tuple[int, int, int]]], messages: int, size: int, turn: int) -> Numbers:
    waiting, ends = backlog(partitions)
    return cut(waiting, ends * 0, ends, messages, size, turn).stops


@given(Pieces, st.integers(1, 600), st.integers(1, 50_000), st.integers(0, 1000))
def test_limits_hold_and_partitions_advance_together(
    partitions: list[list[tuple[int, int, int]]], messages: int, size: int, turn: int
) -> None:
    stops = granted(partitions, messages, size, turn)
    known = times(partitions)
    assert 1 <= stops.sum() <= messages
    sizes = [[size for _, count, size in pieces for _ in range(count)] for pieces in partitions]
    spent = sum(sum(some[:stop]) for some, stop in zip(sizes, stops.tolist(), strict=True))
    assert spent <= size or stops.sum() == 1
    # Whatever is read is at most so much younger than anything that is left.
    read = [some[stop - 1] for some, stop in zip(known, stops.tolist(), strict=True) if stop]
    left = [some[stop] for some, stop in zip(known, stops.tolist(), strict=True) if stop < len(some)]
    assert not left or max(read) - min(left) <= 2 * SAME_SECONDS


@given(Pieces, st.integers(1, 600))
def test_a_limit_of_messages_is_spent_whole(partitions: list[list[tuple[int, int, int]]], messages: int) -> None:
    stops = granted(partitions, messages, 1 << 60, 0)
    assert stops.sum() == min(messages, sum(map(len, times(partitions))))


def test_what_was_loaded_at_once_is_read_evenly() -> None:
    stops = granted([[(1, 3000, 10)], [(3, 60, 10)]], 1000, 1 << 60, 0)
    assert stops.tolist() == [980, 20]


@given(st.integers(2, 50), st.integers(1, 20))
def test_with_less_than_a_message_for_each_they_take_turns(partitions: int, limit: int) -> None:
    served = np.zeros(partitions, dtype=np.int64)
    for turn in range(partitions):
        served += granted([[(1, 10**6, 1)]] * partitions, limit, 1 << 60, turn)
    assert served.min() > 0
    assert served.max() - served.min() <= max(limit, 1)


def test_what_was_not_looked_at_holds_up_what_is_younger_and_is_looked_at_next() -> None:
    waiting, ends = backlog([[(1, 1, 1), (1, 1, 1)], [(100, 5, 1)]])
    ends[0] = 1000
    admitted = cut(waiting, ends * 0, ends, 500, 1 << 60, 0)
    assert (admitted.stops.tolist(), admitted.unseen.tolist()) == ([2, 0], [0])


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
