"""Leases of windows: what one take was given is settled as a whole, or in parts, and never twice."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock import Client
from penstock.broker.operations.claiming import Ack, Pop
from penstock.warm.leases import new_token
from penstock.warm.transport import WarmTransport
from penstock.warm.window import Part, Windows

MODES = pytest.mark.parametrize("mode", ["shared", "ordered"])


@pytest.fixture
def windows(api: Client) -> Windows:
    return cast(WarmTransport, api._transport).windows


def take(api: Client, loaded: Callable[..., int], windows: Windows, mode: str) -> tuple[int, str, Any]:
    """Take two of the four messages of each of three partitions."""
    api.create_group("orders", "work", mode=mode, warm=True)
    for partition in "abc":
        api.push("orders", list(range(4)), partition=partition)
    loaded("orders", "work", 12)
    group_id = cast(int, windows.find("orders", "work"))
    token = new_token()
    most = 2 if mode == "ordered" else 10
    return group_id, token, windows.take(group_id, token, Pop("orders", "work", max_messages=most, max_partitions=3))


@MODES
def test_all_that_a_lease_has_is_acknowledged_once(
    api: Client, loaded: Callable[..., int], windows: Windows, mode: str
) -> None:
    group_id, token, taken = take(api, loaded, windows, mode)
    count = sum(len(run.items) for run in taken.runs)

    reported, live = windows.settle(group_id, "ack", [Part(token, 0)])
    again = windows.settle(group_id, "ack", [Part(token, 0)])

    assert reported
    assert (live, again) == ([True] * len(taken.runs), (b"", [False]))
    assert windows.fill(group_id).items == 12 - count


@MODES
def test_what_was_acknowledged_in_part_is_not_acknowledged_again(
    api: Client, loaded: Callable[..., int], windows: Windows, mode: str
) -> None:
    group_id, token, taken = take(api, loaded, windows, mode)
    first = taken.runs[0]
    windows.settle(group_id, "ack", [Part(token, first.number, first.start, first.start + 1)])

    assert windows.fill(group_id).items == 11
    _, live = windows.settle(group_id, "ack", [Part(token, 0)])

    assert all(live)
    assert windows.fill(group_id).items == 12 - sum(len(run.items) for run in taken.runs)


def test_a_claim_that_was_withdrawn_is_lost_and_the_others_are_not(
    api: Client, loaded: Callable[..., int], windows: Windows
) -> None:
    group_id, token, taken = take(api, loaded, windows, "ordered")
    windows.withdraw(group_id, "b")

    _, live = windows.settle(group_id, "ack", [Part(token, 0)])

    assert live == [run.note.partition != "b" for run in taken.runs]
    assert sum(live) == 2


@MODES
def test_all_that_a_lease_has_can_be_given_back(
    api: Client, loaded: Callable[..., int], windows: Windows, mode: str
) -> None:
    group_id, token, taken = take(api, loaded, windows, mode)

    _, live = windows.settle(group_id, "release", [Part(token, 0)])
    pop = Pop("orders", "work", max_messages=2 if mode == "ordered" else 10, max_partitions=3)
    again = windows.take(group_id, new_token(), pop)

    assert all(live)
    assert sorted(run[1:] for run in again.runs) == sorted(run[1:] for run in taken.runs)


def test_ranges_of_different_takes_are_acknowledged_by_their_parts(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", warm=True)
    for partition in "abcd":
        api.push("orders", [0], partition=partition)
    loaded("orders", "work", 4)
    first, second = (api.pop("orders", "work", max_messages=1, max_partitions=2) for _ in range(2))
    assert first is not None
    assert second is not None

    acked = api._transport.run(Ack([first.claims[0].done(), second.claims[1].done()]))

    assert acked == [True, True]
    assert api.lag("orders", "work") == 2
    first.release()
    again = api.pop("orders", "work", max_messages=1, max_partitions=4)
    assert again is not None
    assert [claim.partition for claim in again.claims] == [first.claims[1].partition]
