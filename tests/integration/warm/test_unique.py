"""Unique pushes against a group with a window: what lies in it is not done and can give way, and may be taken."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Client
from windows import wait_for

MODES = pytest.mark.parametrize("mode", ["shared", "ordered"])
KEY: dict[str, Any] = {"unique_key": "shop 7", "partition": "a"}


def rest_of(api: Client, count: int) -> list[Any]:
    seen: list[Any] = []
    while len(seen) < count:
        batch = wait_for(lambda: api.pop("orders", "work", wait=1))
        seen += [message.json() for message in batch]
        batch.ack()
    return seen


@MODES
def test_one_that_lies_in_a_window_is_not_pushed_again(api: Client, loaded: Callable[..., int], mode: str) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    first = api.push("orders", 1, unique_until="done", **KEY)
    loaded("orders", "work")

    again = api.push("orders", 2, unique_until="done", **KEY)

    assert again.count == 0
    assert [each.id for each in again.duplicates] == first.ids
    assert rest_of(api, 1) == [1]
    # PostgreSQL knows of what was acknowledged here before it is asked.
    assert api.push("orders", 4, unique_until="done", **KEY).count == 1


@MODES
def test_a_push_beside_one_that_a_worker_may_have_taken_from_a_window_is_never_lost(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    api.push("orders", 1, unique_until="taken", **KEY)
    loaded("orders", "work")
    held = api.pop("orders", "work")
    assert held is not None

    assert api.push("orders", 2, unique_until="taken", **KEY).count == 1
    held.ack()
    assert rest_of(api, 1) == [2]


@MODES
@pytest.mark.parametrize("until", ["taken", "done"])
def test_one_that_lies_in_a_window_gives_way(api: Client, loaded: Callable[..., int], mode: str, until: str) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    draft = api.push("orders", "draft", unique_until=until, **KEY)
    api.push("orders", "other", partition="a")
    loaded("orders", "work", 2)

    final = api.push("orders", "final", unique_until=until, replace=True, **KEY)

    assert [each.id for each in final.replaced] == draft.ids
    assert sorted(rest_of(api, 2)) == ["final", "other"]
    wait_for(lambda: api.pop("orders", "work") is None and api.lag("orders", "work") == 0)
    assert [state.state for state in api.state(draft.ids[0])] == ["cancelled"]
    assert [check for check in api.verify() if check.violations] == []


@MODES
def test_a_worker_that_has_one_which_gives_way_can_acknowledge_it_and_the_new_one_comes(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    api.push("orders", "draft", unique_until="done", **KEY)
    loaded("orders", "work")
    held = api.pop("orders", "work")
    assert held is not None

    final = api.push("orders", "final", unique_until="done", replace=True, **KEY)
    assert final.count == 1
    held.ack()

    assert rest_of(api, 1) == ["final"]
    wait_for(lambda: api.pop("orders", "work") is None and api.lag("orders", "work") == 0)
    assert [check for check in api.verify() if check.violations] == []
