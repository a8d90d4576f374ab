"""Pushes of a block are written together at its end, or not at all."""

# ruff: noqa: PT012 - that a whole block fails, and is taken back, is what is shown here

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from penstock import InvalidInput, Message, PenstockError

Unchanged = Callable[[], AbstractContextManager[None]]


def test_all_pushes_of_a_block_commit_together(api: Any) -> None:
    with api.transaction() as tx:
        tx.push("a", 1)
        tx.push_many("b", [("x", 2), ("y", 3)])
        assert api.queues() == []
    assert [(q.name, q.messages) for q in api.queues()] == [("a", 1), ("b", 2)]


def test_an_error_in_the_block_takes_everything_back(api: Any, unchanged: Unchanged) -> None:
    with unchanged(), pytest.raises(RuntimeError, match="no"), api.transaction() as tx:
        tx.push("a", 1)
        raise RuntimeError("no")


def test_results_are_known_after_the_block(api: Any) -> None:
    api.push("q", 0, partition="p")
    with api.transaction() as tx:
        first = tx.push("q", [1, 2], partition="p")
        other = tx.push("q", 9, partition="other")
        second = tx.push("q", 3, partition="p")
        both = tx.push_many("q", [("p", 4), ("other", 10)])
        with pytest.raises(PenstockError, match="look after it"):
            _ = first.result
    assert (first.result.first_offset, first.result.count) == (1, 2)
    assert (second.result.first_offset, second.result.count) == (3, 1)
    assert (other.result.partition, other.result.first_offset) == ("other", 0)
    assert [(r.partition, r.first_offset, r.count) for r in both.results] == [("p", 4, 1), ("other", 1, 1)]
    with pytest.raises(PenstockError, match="2 partitions"):
        _ = both.result
    for pending in (first, second, other):
        for message_id in pending.result.ids:
            assert api.get(message_id).partition == pending.result.partition
    assert [message.json() for message in api.read("q", "p")] == [0, 1, 2, 3, 4]


def test_an_empty_block_writes_nothing(api: Any, unchanged: Unchanged) -> None:
    with unchanged(), api.transaction():
        pass


def test_a_block_that_has_ended_takes_no_more(api: Any, unchanged: Unchanged) -> None:
    with api.transaction() as tx:
        tx.push("q", 1)
    with unchanged():
        with pytest.raises(PenstockError, match="block has ended"):
            tx.push("q", 2)
        with pytest.raises(PenstockError, match="block has ended"):
            tx.push_many("q", [("p", 2)])


def test_a_block_that_failed_takes_no_more(api: Any) -> None:
    with pytest.raises(RuntimeError), api.transaction() as tx:
        raise RuntimeError("no")
    with pytest.raises(PenstockError, match="block has ended"):
        tx.push("q", 2)


def test_bad_input_is_refused_where_it_is_given(api: Any) -> None:
    with api.transaction() as tx:
        with pytest.raises(InvalidInput, match="JSON"):
            tx.push("q", object())
        with pytest.raises(InvalidInput, match="must be a text"):
            tx.push(7, 1)
        with pytest.raises(InvalidInput, match="empty push"):
            tx.push("q", [])
        tx.push("q", "good")
    assert [message.json() for message in api.read("q", "0")] == ["good"]


def test_keys_pick_partitions_in_a_block_too(api: Any) -> None:
    api.create("q", spread=8)
    with api.transaction() as tx:
        pending = tx.push("q", [Message(n, key=f"k{n}") for n in range(20)])
    assert sum(result.count for result in pending.results) == 20
    assert len(pending.results) > 1


@pytest.mark.parametrize("thing", [object(), "postgresql://…", 7])
def test_what_is_not_a_connection_is_refused(api: Any, thing: Any) -> None:
    with pytest.raises(InvalidInput, match="give a psycopg"), api.transaction(thing):
        pytest.fail("the block was entered")


def test_one_connection_is_enough_for_a_block(open_api: Callable[..., Any]) -> None:
    api = open_api(pool_size=1, connect_timeout=1)
    with api.transaction() as tx:
        pending = tx.push("q", 1)
    assert pending.result.partition == "0"
