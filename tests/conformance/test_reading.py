"""Ranges, limits, pages, ids and tails."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Message, NotFound
from penstock.client import paging


@pytest.fixture
def filled(api: Any) -> Any:
    """Partition p of queue q holds 0 to 9, pushed as 4, 1 and 5."""
    for batch in ([0, 1, 2, 3], [4], [5, 6, 7, 8, 9]):
        api.push("q", [Message(n, key=f"k{n}" if n % 2 else None) for n in batch], partition="p")
    return api


def numbers(messages: Any) -> list[Any]:
    return [message.json() for message in messages]


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 10), (3, 6), (4, 5), (9, 10), (0, 0), (10, 20), (7, 3)])
def test_a_range_has_its_start_and_not_its_stop(filled: Any, start: int, stop: int | None) -> None:
    expected = list(range(10))[start:stop]
    assert numbers(filled.read("q", "p", start, stop)) == expected
    assert numbers(filled.scan("q", "p", start, stop)) == expected
    assert [int(value) for value in filled.read_arrow("q", "p", start, stop)["value"].to_pylist()] == expected


@pytest.mark.parametrize("limit", [0, 1, 4, 5, 9, 10, 11])
def test_a_limit_ends_a_range_early(filled: Any, limit: int) -> None:
    assert numbers(filled.read("q", "p", limit=limit)) == list(range(10))[:limit]
    assert numbers(filled.read("q", "p", 2, 8, limit=limit)) == list(range(2, 8))[:limit]
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    assert numbers(filled.read("q", "p", start_time=long_ago, limit=limit)) == list(range(10))[:limit]


def test_pages_do_not_show(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 1)
    assert numbers(filled.read("q", "p")) == list(range(10))
    assert numbers(filled.read("q", "p", 2, 9, limit=6)) == [2, 3, 4, 5, 6, 7]
    assert numbers(filled.scan("q", "p", 3)) == list(range(3, 10))
    assert filled.read_arrow("q", "p", 1).num_rows == 9


def test_an_id_finds_its_message(filled: Any) -> None:
    for message in filled.read("q", "p"):
        assert filled.get(message.id) == message
        assert filled.get(str(message.id)) == message


def test_a_purged_message_is_not_found_by_its_id(filled: Any) -> None:
    message = filled.read("q", "p")[3]
    filled.purge("q")
    with pytest.raises(NotFound, match="retention has dropped it"):
        filled.get(message.id)


def test_an_empty_partition_reads_as_nothing(api: Any) -> None:
    api.create("q", partition="p")
    assert api.read("q", "p") == []
    assert api.read_arrow("q", "p").num_rows == 0
    assert list(api.tail("q", follow=False)) == []


def test_a_scan_fetches_a_page_at_a_time(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 1)
    scan = filled.scan("q", "p")
    assert next(scan).json() == 0
    filled.purge("q")
    # The page that was fetched is still there; the next one finds that all was dropped.
    assert numbers(scan) == [1, 2, 3]


@pytest.mark.parametrize("last", [0, 1, 3, 10, 50])
def test_a_tail_without_following_is_the_last_messages(filled: Any, last: int) -> None:
    assert numbers(filled.tail("q", last=last, follow=False)) == list(range(10))[10 - min(last, 10) :]


def test_a_tail_sees_all_partitions_by_time(api: Any) -> None:
    for number in range(6):
        api.push("q", number, partition=str(number % 3))
    assert numbers(api.tail("q", last=4, follow=False)) == [2, 3, 4, 5]
    assert numbers(api.tail("q", partition="1", follow=False)) == [1, 4]


def test_a_tail_yields_every_message_that_comes_while_it_follows(filled: Any) -> None:
    tail = filled.tail("q", last=2, idle_timeout=5)
    assert [next(tail).json(), next(tail).json()] == [8, 9]
    filled.push("q", list(range(10, 20)), partition="p")
    filled.push("q", list(range(20, 25)), partition="new")
    assert [next(tail).json() for _ in range(15)] == list(range(10, 25))
    filled.push("q", [25, 26, 27], partition="p")
    assert [next(tail).json() for _ in range(3)] == [25, 26, 27]


def test_a_tail_of_none_follows_from_now(filled: Any) -> None:
    tail = filled.tail("q", last=0, idle_timeout=0.05)
    assert list(tail) == []


def test_a_tail_ends_when_nothing_came_for_so_long(filled: Any) -> None:
    assert numbers(filled.tail("q", last=1, idle_timeout=0.05)) == [9]


def test_a_value_as_large_as_the_limit_is_read_whole(api: Any, open_api: Callable[..., Any]) -> None:
    value = bytes(range(256)) * 4096
    api.push("q", value)
    assert open_api().read("q", "0")[0].value == value
