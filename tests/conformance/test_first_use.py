"""Queues and groups come into being on first use, unless the database is told not to make any."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import InvalidInput, NotFound


@pytest.fixture
def strict(api: Any) -> Iterator[Any]:
    """A client of a database that makes nothing on first use; with queue "q" and its group "g"."""
    api.create("q")
    api.create_group("q", "g")
    assert api.configure_database(create_on_first_use=False) == {"create_on_first_use": False}
    yield api
    assert [(queue.name, queue.partitions) for queue in api.queues()] == [("q", 1)]
    assert [group.name for group in api.groups()] == ["g"]


def test_what_is_there_is_used_and_partitions_are_made(strict: Any) -> None:
    strict.push("q", 1, partition="new")
    with strict.pop("q", "g") as batch:
        assert [message.json() for message in batch] == [1]


def test_no_push_makes_a_queue(strict: Any) -> None:
    strict.push("q", 1)
    pushes: list[Callable[[], Any]] = [
        lambda: strict.push("typo", 1),
        lambda: strict.push("typo", 1, delay=60),
        lambda: strict.push("typo", 1, dedupe_id="x"),
        lambda: strict.push_many("typo", [("a", 1), ("b", 2)]),
    ]
    for push in pushes:
        with pytest.raises(NotFound, match='no queue "typo", and this database creates none on first use'):
            push()
    with pytest.raises(NotFound, match="typo"), strict.transaction() as tx:
        tx.push("typo", 1)


def test_no_pop_makes_a_queue_or_a_group(strict: Any) -> None:
    strict.push("q", 1)
    with pytest.raises(NotFound, match='no queue "typo"'):
        strict.pop("typo", "g")
    with pytest.raises(NotFound, match='queue "q" has no group "typo"'):
        strict.pop("q", "typo")
    with pytest.raises(NotFound, match='no queue "typo"'):
        strict.pop("typo", "g", mode="shared")


def test_no_setting_makes_a_queue(strict: Any) -> None:
    strict.push("q", 1)
    with pytest.raises(NotFound, match='no queue "typo"'):
        strict.configure("typo", spread=2)
    with pytest.raises(NotFound, match='no queue "typo"'):
        strict.create("typo", partition="p")


def test_the_setting_is_shown_and_set_back(api: Any) -> None:
    assert api.configure_database() == {"create_on_first_use": True}
    api.configure_database(create_on_first_use=False)
    assert api.configure_database() == {"create_on_first_use": False}
    api.configure_database(create_on_first_use=True)
    api.push("q", 1)
    with pytest.raises(InvalidInput, match="must be True, False or None"):
        api.configure_database(create_on_first_use="off")
