"""Moving a group: where to, in which partitions, and what that does to what is under way."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import InvalidInput, LeaseLost, NotFound

from .groups import drain, mode_for, offsets

pytestmark = pytest.mark.usefixtures("sound")
Unchanged = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def mode(api: Any) -> str:
    """Group "g" of queue "q", in each mode with one kind of client, with six messages in "a" and three in "b"."""
    api.create_group("q", "g", mode=mode_for(api))
    for number in range(3):
        api.push("q", [2 * number, 2 * number + 1], partition="a")
        api.push("q", 10 + number, partition="b")
    return mode_for(api)


def test_to_the_earliest_delivers_everything_again(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    moved = api.seek("q", "g", "earliest")
    assert (moved.visited, moved.moved, moved.redelivered, moved.skipped, moved.revoked) == (2, 2, 9, 0, 0)
    assert api.lag("q", "g") == 9
    assert sorted(drain(api, "q", "g")) == [0, 1, 2, 3, 4, 5, 10, 11, 12]


def test_to_the_latest_skips_what_is_there(api: Any, mode: str) -> None:
    moved = api.seek("q", "g", "latest")
    assert (moved.moved, moved.redelivered, moved.skipped) == (2, 0, 9)
    assert (api.lag("q", "g"), api.pop("q", "g")) == (0, None)
    api.push("q", "new", partition="a")
    assert drain(api, "q", "g") == ["new"]


def test_to_an_offset_moves_one_partition_or_all(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    assert api.seek("q", "g", 4, partition="a").redelivered == 2
    assert sorted(drain(api, "q", "g")) == [4, 5]
    assert api.seek("q", "g", 2).redelivered == 5
    assert sorted(drain(api, "q", "g")) == [2, 3, 4, 5, 12]


def test_an_offset_past_the_end_is_the_end(api: Any, mode: str) -> None:
    api.seek("q", "g", 10**9)
    assert api.lag("q", "g") == 0
    assert api.push("q", "next", partition="b").first_offset == 3
    assert drain(api, "q", "g") == ["next"]


def test_to_a_time_delivers_what_is_not_older(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    moment = api.read("q", "b", 1)[0].timestamp
    api.seek("q", "g", moment)
    assert sorted(drain(api, "q", "g")) == [4, 5, 11, 12]
    api.seek("q", "g", datetime.now(UTC) + timedelta(days=1))
    assert api.lag("q", "g") == 0
    api.seek("q", "g", datetime(2000, 1, 1, tzinfo=UTC), partition="b")
    assert sorted(drain(api, "q", "g")) == [10, 11, 12]


def test_a_preview_says_what_would_happen_and_changes_nothing(api: Any, mode: str) -> None:
    api.pop("q", "g", partition="a", max_messages=4)
    before = api.claims("q", "g")
    preview = api.seek("q", "g", "latest", preview=True)
    assert (api.claims("q", "g"), api.lag("q", "g")) == (before, 9)
    assert (preview.moved, preview.skipped, preview.revoked) == (2, 9, 1)
    sought = api.seek("q", "g", "latest")
    # It comes to a partition again that a sweep has in work at the moment.
    assert sought.visited >= preview.visited
    assert (sought.moved, sought.skipped, sought.revoked, sought.busy) == (2, 9, 1, 0)


def test_a_claim_that_is_held_loses_its_lease(api: Any, mode: str) -> None:
    batch = api.pop("q", "g", partition="a", max_messages=2)
    assert api.seek("q", "g", 0, partition="a").revoked == 1
    with pytest.raises(LeaseLost):
        batch.ack()
    assert api.lag("q", "g") == 9
    assert sorted(drain(api, "q", "g", partition="a")) == [0, 1, 2, 3, 4, 5]


def test_what_is_done_comes_again_though_something_before_it_is_not(api: Any) -> None:
    api.create_group("q", "g", mode="shared")
    api.push("q", list(range(6)))
    first = api.pop("q", "g", max_messages=1)
    drain(api, "q", "g")
    first.release()
    assert api.lag("q", "g") == 1
    api.seek("q", "g", "earliest")
    assert sorted(drain(api, "q", "g")) == list(range(6))


def test_a_seek_ends_backoffs_and_attempts(api: Any, mode: str) -> None:
    api.pop("q", "g", partition="b", max_messages=1).nack(delay=3600)
    api.seek("q", "g", "latest", partition="b")
    api.seek("q", "g", 0, partition="b")
    batch = api.pop("q", "g", partition="b")
    assert (offsets(batch), batch.messages[0].attempt) == ([0, 1, 2], 1)


def test_a_group_is_moved_within_what_retention_left(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    api.purge("q", partition="a")
    assert api.seek("q", "g", "earliest").redelivered == 3
    assert sorted(drain(api, "q", "g")) == [10, 11, 12]


def test_one_group_moves_and_the_others_stay(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    drain(api, "q", "other")
    api.seek("q", "g", 0)
    assert (api.lag("q", "g"), api.lag("q", "other")) == (9, 0)


def test_a_seek_that_is_there_already_moves_nothing(api: Any, mode: str) -> None:
    drain(api, "q", "g")
    again = api.seek("q", "g", "latest")
    assert (again.visited, again.moved) == (2, 0)


def test_partitions_that_a_group_never_read_are_moved_too(api: Any) -> None:
    api.push("q", [1, 2, 3])
    api.create_group("q", "g", subscription="new")
    assert api.seek("q", "g", 1).redelivered == 2
    assert drain(api, "q", "g") == [2, 3]


def test_a_seek_tells_how_far_it_is(api: Any, mode: str) -> None:
    told: list[Any] = []
    total = api.seek("q", "g", "latest", progress=told.append)
    assert told[-1] == total


def test_nowhere_to_go_is_refused_and_changes_nothing(api: Any, mode: str, unchanged: Unchanged) -> None:
    for to in ("yesterday", -1, True, 1.5, None, datetime(2026, 1, 1)):
        with unchanged(), pytest.raises(InvalidInput):
            api.seek("q", "g", to)
    assert api.lag("q", "g") == 9


def test_what_does_not_exist_is_not_found(api: Any, mode: str) -> None:
    for arguments in (("nope", "g"), ("q", "nope")):
        with pytest.raises(NotFound):
            api.seek(*arguments, "latest")
    with pytest.raises(NotFound):
        api.seek("q", "g", 0, partition="nope")
