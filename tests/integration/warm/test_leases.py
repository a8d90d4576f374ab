"""Leases of windows: what one take was given is settled as a whole, or in parts, and never twice."""

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from penstock import Client, InvalidInput
from penstock.broker.operations.claiming import Ack, Nack, Pop, Release, Renew
from penstock.broker.operations.items import SaveStep
from penstock.warm.leases import Token, new_token, token_of
from penstock.warm.transport import WarmTransport
from penstock.warm.window import Part, Windows
from windows import wait_for

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


def test_a_look_keeps_a_lease_until_something_of_it_is_settled(
    api: Client, loaded: Callable[..., int], windows: Windows
) -> None:
    group_id, token, _ = take(api, loaded, windows, "shared")
    due = windows.keys(group_id).due
    own = windows.link.run("ZSCORE", due, token)
    windows.look(group_id, token, 3600.0)
    kept = windows.link.run("ZSCORE", due, token)
    windows.settle(group_id, "told", [Part(token, 1, 0, 1)])

    assert float(kept) > float(own) + 3000
    assert windows.link.run("ZSCORE", due, token) == own
    windows.look(group_id, token, 3600.0)
    windows.renew(group_id, [Token(token, 2)], 10.0, False)
    windows.settle(group_id, "told", [Part(token, 2, 0, 1)])
    assert float(windows.link.run("ZSCORE", due, token)) < float(own)


def test_what_the_window_has_not_heard_of_is_not_acknowledged_with_the_rest(
    api: Client, loaded: Callable[..., int]
) -> None:
    api.create_group("orders", "work", warm=True)
    for partition in "ab":
        api.push("orders", [0, 1], partition=partition)
    loaded("orders", "work", 4)
    batch = api.pop("orders", "work", max_messages=10, max_partitions=2)
    assert batch is not None
    first, second = batch.claims
    transport = cast(WarmTransport, api._transport)
    given_back = Part(*token_of(cast(UUID, first.lease_id)))
    # As when the call that gives a claim back is lost, or on its way in another thread.
    transport._settling.settled(given_back)

    assert transport.run(Ack([second.done()])) == [True]

    assert api.lag("orders", "work") == 2
    transport.windows.settle(first.group_id, "release", [given_back])
    again = api.pop("orders", "work", max_messages=10, max_partitions=2)
    assert again is not None
    assert [(message.partition, message.json()) for message in again] == [(first.partition, 0), (first.partition, 1)]


@pytest.mark.parametrize("warm", [True, False])
def test_what_was_given_back_or_is_lost_is_neither_acknowledged_nor_renewed(
    api: Client, loaded: Callable[..., int], warm: bool
) -> None:
    api.create_group("orders", "work", mode="shared", warm=warm)
    for partition in "abc":
        api.push("orders", [0, 1], partition=partition)
    if warm:
        loaded("orders", "work", 6)
    batch = api.pop("orders", "work", max_messages=6, max_partitions=3)
    assert batch is not None
    first, second, third = batch.claims
    run = api._transport.run

    assert run(Release(first.lease)) is True
    assert run(Release(first.lease)) is False
    assert run(Ack([first.done()])) == [False]
    api.seek("orders", "work", to="earliest", partition=second.partition)
    assert [until is not None for until in run(Renew([second.lease, third.lease]))] == [False, True]
    assert run(Ack([second.done(), third.done()])) == [False, True]
    assert run(Ack([third.done()])) == [False]
    assert api.lag("orders", "work") == 4


@MODES
def test_nothing_is_left_of_claims_that_are_withdrawn(
    api: Client, loaded: Callable[..., int], windows: Windows, mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    for partition in "abc":
        api.push("orders", list(range(4)), partition=partition)
    for _ in range(3):
        loaded("orders", "work", 12)
        batch = api.pop("orders", "work", max_messages=2, partition="a")
        assert batch is not None
        batch.release()
        api.seek("orders", "work", to="earliest")

    loaded("orders", "work", 12)

    assert windows.fill(cast(int, windows.find("orders", "work"))).ready == 3


def test_an_item_that_is_given_back_again_and_again_stays_one(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", warm=True)
    api.push("orders", list(range(3)), partition="a")
    loaded("orders", "work", 3)
    for _ in range(1100):
        batch = api.pop("orders", "work", max_messages=1)
        assert batch is not None
        batch.release()

    found = api.pop("orders", "work", max_messages=10)

    assert found is not None
    assert sorted(message.json() for message in found) == [0, 1, 2]


def test_a_settlement_that_fails_and_a_step_leave_a_lease_as_long_as_it_was(
    api: Client, loaded: Callable[..., int], windows: Windows
) -> None:
    api.create_group("orders", "work", mode="shared", warm=True, lease_time=5.0)
    api.push("orders", [0, 1], partition="a")
    loaded("orders", "work", 2)
    batch = api.pop("orders", "work", max_messages=2)
    assert batch is not None
    lease = batch.claims[0].lease
    due, token = windows.keys(lease.group_id).due, token_of(cast(UUID, lease.lease_id)).text
    own = windows.link.run("ZSCORE", due, token)

    with pytest.raises(InvalidInput, match="is not in the claim"):
        api._transport.run(Nack(lease, 7, "no", "no", 0.0, None))
    api._transport.run(SaveStep(lease, 0, "paid", b"1"))

    assert windows.link.run("ZSCORE", due, token) == own


@MODES
def test_a_batch_has_messages_although_retention_has_dropped_what_lay_in_the_window(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, warm=True)
    api.push("orders", [b"x" * 40_000] * 2, partition="a")
    loaded("orders", "work", 2)
    api.configure("orders", retention_time=0.1, retention_rule="drop_and_count")

    def dropped() -> bool:
        list(api.maintain())
        return api.partitions("orders")[0].floor == 2

    wait_for(dropped)
    api.configure("orders", retention_time=None)
    api.push("orders", b"small", partition="a")

    batch = api.pop("orders", "work", max_messages=1, wait=10)

    assert batch is not None
    assert [message.value for message in batch] == [b"small"]
    batch.ack()
    assert api.lag("orders", "work") == 0
