"""Single messages: their state in each group, their results, and cancelling them."""

import threading
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from penstock import (
    Cancelled,
    HandlerFailed,
    InvalidInput,
    Message,
    MessageTooLarge,
    NotFound,
    TimedOut,
)
from penstock.broker.ids import message_id
from penstock.broker.items import ItemNote, ItemOutcome, ItemResult, SettledClaim
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.items import NoteItems, SettleItems
from penstock.broker.operations.operation import Operation
from penstock.consuming import waiting
from penstock.postgres.statements.call import call_for

from .groups import until

pytestmark = pytest.mark.usefixtures("sound")
T = TypeVar("T")
ALL = ((None, None),)
MODES = ["ordered", "shared"]


def run(dsn: str, operation: Operation[T]) -> T:
    """Run an operation as a worker does."""
    call = call_for(operation)
    with psycopg.connect(dsn) as connection:
        return call.parse(connection.execute(call.sql.encode(), call.parameters, binary=True).fetchall())


def handle(dsn: str, *results: ItemResult, group: str = "g", outcomes: Any = (), **more: Any) -> None:
    """Take what is there and settle it."""
    (claim,) = run(dsn, Pop("q", group))
    done = ALL if not outcomes else ()
    settled = SettledClaim(claim.lease, done, outcomes, release_rest=bool(outcomes), **more)
    assert run(dsn, SettleItems([settled], results=results)).settled == ["settled"]


def state(api: Any, which: Any, group: str = "g") -> str:
    (found,) = [each.state for each in api.state(which) if each.group == group]
    return str(found)


@pytest.fixture(params=MODES)
def pushed(request: pytest.FixtureRequest, api: Any) -> Any:
    """The ids of three messages of a queue whose group is of either mode."""
    api.create_group("q", "g", mode=request.param, max_attempts=2)
    return api.push("q", [1, 2, 3], partition="p").ids


# State


def test_a_message_waits_is_in_flight_and_is_done(api: Any, pushed: Any) -> None:
    assert [state(api, each) for each in pushed] == ["waiting"] * 3
    batch = api.pop("q", "g", max_messages=2)
    assert [state(api, each) for each in pushed] == ["in flight", "in flight", "waiting"]
    (first,) = api.state(pushed[0])
    assert (first.consumer, first.attempt, first.error) == (api.consumer_id, 1, None)
    assert first.due_at is not None
    batch.ack()
    assert [state(api, str(each)) for each in pushed] == ["done", "done", "waiting"]


def test_one_that_failed_is_retried_and_then_dead(api: Any, dsn: str, pushed: Any) -> None:
    api.pop("q", "g", max_messages=1).nack(reason="oops", delay=3600)
    (found,) = api.state(pushed[0])
    assert (found.state, found.attempt, found.error) == ("retrying", 1, "oops")
    assert found.due_at is not None
    with psycopg.connect(dsn) as connection:
        for table in ("journal", "claims"):
            connection.execute(f"UPDATE penstock.{table} SET due_at = now() WHERE due_at > now()".encode())
    api.sweep()
    assert state(api, pushed[0]) == "retrying"
    batch = api.pop("q", "g", max_messages=1)
    while batch.messages[0].offset != 0:
        # In a shared group the others come first.
        batch = api.pop("q", "g", max_messages=1)
    batch.nack(reason="still")
    (found,) = api.state(pushed[0])
    (letter,) = api.dead_letters("q", "g")
    assert (found.state, found.dead_letter_id, found.error) == ("dead", letter.dead_letter_id, letter.last_error)


def test_one_that_is_snoozed_is_delayed(api: Any, dsn: str, pushed: Any) -> None:
    handle(dsn, outcomes=[ItemOutcome(0, "snoozed", 3600.0)])
    (found,) = api.state(pushed[0])
    assert (found.state, found.attempt, found.error) == ("delayed", 0, None)


def test_what_a_handler_notes_is_shown(api: Any, dsn: str, pushed: Any) -> None:
    (claim,) = run(dsn, Pop("q", "g"))
    assert run(dsn, NoteItems([ItemNote(claim.lease, 1, 40, "decoded")])) == [True]
    (found,) = api.state(pushed[1])
    assert (found.progress, found.note) == (40.0, "decoded")


def test_each_group_has_its_own_state_and_one_that_came_later_has_none(api: Any) -> None:
    api.create_group("q", "g")
    api.create_group("q", "h", mode="shared")
    (which,) = api.push("q", 1, partition="p").ids
    api.create_group("q", "late", subscription="new")
    api.pop("q", "g").ack()
    assert {each.group: each.state for each in api.state(which)} == {"g": "done", "h": "waiting"}


def test_one_that_retention_dropped_was_dropped(api: Any, pushed: Any) -> None:
    api.purge("q")
    assert state(api, pushed[0]) == "dropped"


def test_a_message_without_groups_has_no_state(api: Any) -> None:
    (which,) = api.push("q", 1, partition="p").ids
    assert api.state(which) == []


def test_there_is_no_state_of_what_is_no_message(api: Any, pushed: Any) -> None:
    for unknown in (message_id(10**8, 0, 0), message_id(1, 1 << 40, 0)):
        with pytest.raises(NotFound):
            api.state(unknown)
    for wrong in ("x", None, 5, "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(InvalidInput):
            api.state(wrong)


# Cancelling


def test_a_message_that_waits_is_cancelled(api: Any, pushed: Any) -> None:
    assert api.cancel(pushed[1], str(pushed[2])) == [pushed[1], pushed[2]]
    assert [state(api, each) for each in pushed] == ["waiting", "cancelled", "cancelled"]
    batch = api.pop("q", "g")
    assert [message.json() for message in batch.messages] == [1]
    batch.ack()
    assert api.pop("q", "g") is None
    assert state(api, pushed[1]) == "cancelled"
    assert api.cancel(pushed[0]) == []
    list(api.maintain())
    assert state(api, pushed[1]) == "cancelled"


def test_one_that_is_in_flight_is_so_and_cancelled(api: Any, pushed: Any) -> None:
    batch = api.pop("q", "g", max_messages=1)
    assert api.cancel(pushed[0], group="g") == [pushed[0]]
    (found,) = api.state(pushed[0])
    assert found.state == "in flight"
    assert found.cancelled_at is not None
    batch.release()
    assert state(api, pushed[0]) == "cancelled"


def test_messages_and_what_is_scheduled_are_cancelled_by_one_call(api: Any, pushed: Any) -> None:
    (later,) = api.push("q", 4, partition="p", delay=3600).scheduled.ids
    assert api.cancel(pushed[0], later) == [later, pushed[0]]
    assert api.cancel() == []
    for wrong in ("x", 1.5, None, [later]):
        with pytest.raises(InvalidInput):
            api.cancel(wrong)


# Results


def test_a_result_is_what_the_handler_returned(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    which = api.push("q", ["a", "b", "c"], partition="p", result=True).ids
    assert [message.headers for message in api.read("q", "p")] == [{"penstock-result": "3600"}] * 3
    handle(
        dsn,
        ItemResult(0, 0, "returned", b'{"w": 128}'),
        ItemResult(0, 1, "returned bytes", b"\xff"),
        ItemResult(0, 2, "discarded"),
    )
    assert [api.result(each, timeout=10) for each in which] == [{"w": 128}, b"\xff", None]
    assert api.result(str(which[0]), group="g", timeout=timedelta(seconds=10)) == {"w": 128}


def test_what_the_handler_raised_at_the_last_attempt_is_raised(api: Any, dsn: str) -> None:
    api.create_group("q", "g", max_attempts=2)
    (which,) = api.push("q", "x", partition="p", result=True).ids
    failed = ItemOutcome(0, "failed", 0.0, "ValueError: \0bad", None, None)
    for _ in range(2):
        with pytest.raises(TimedOut, match="group 'g'"):
            api.result(which, timeout=0)
        handle(dsn, ItemResult(0, 0, "raised", error="ValueError: \0bad"), outcomes=[failed])
    with pytest.raises(HandlerFailed, match=r"ValueError: \\x00bad"):
        api.result(which, timeout=10)


def test_there_is_an_answer_for_what_ended_without_a_result(api: Any, dsn: str) -> None:
    api.create_group("q", "g", max_attempts=1)
    done, cancelled, dead, dropped = api.push("q", [1, 2, 3, 4], partition="p", result=True).ids
    api.pop("q", "g", max_messages=1).ack()
    assert api.cancel(cancelled) == [cancelled]
    with pytest.raises(NotFound, match="no result is kept"):
        api.result(done, timeout=10)
    with pytest.raises(Cancelled):
        api.result(cancelled, timeout=10)
    api.pop("q", "g", max_messages=1).nack(reason="no hope")
    with pytest.raises(HandlerFailed, match="no hope"):
        api.result(dead, timeout=10)
    api.purge("q")
    with pytest.raises(NotFound, match="retention"):
        api.result(dropped, timeout=10)
    with pytest.raises(InvalidInput):
        api.result("x", timeout=10)


def test_a_result_that_is_too_large_is_kept_as_that(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    (which,) = api.push("q", "x", partition="p", result=True).ids
    handle(dsn, ItemResult(0, 0, "returned bytes", b"x" * 1_000_001))
    with pytest.raises(MessageTooLarge):
        api.result(which, timeout=10)
    assert state(api, which) == "done"


def test_a_result_is_kept_for_as_long_as_is_said(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    (which,) = api.push("q", Message("x", headers={"own": "1"}), partition="p", result=timedelta(minutes=1)).ids
    assert api.read("q", "p")[0].headers == {"own": "1", "penstock-result": "60"}
    handle(dsn, ItemResult(0, 0, "returned", b"1", keep_for=60))
    assert api.result(which, timeout=10) == 1
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE penstock.item_results SET expires_at = now()")
    with pytest.raises(NotFound):
        api.result(which, timeout=10)
    list(api.maintain())
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM penstock.item_results").fetchall() == [(0,)]
    for wrong in (0, -1, "x", float("nan"), None):
        with pytest.raises(InvalidInput):
            api.push("q", "x", result=wrong)


def test_of_several_groups_the_first_result_counts_or_that_of_one(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    api.create_group("q", "h")
    (which,) = api.push("q", "x", partition="p", result=True).ids
    handle(dsn, ItemResult(0, 0, "returned", b"2"), group="h")
    assert api.result(which, timeout=10) == 2
    with pytest.raises(TimedOut):
        api.result(which, group="g", timeout=0)
    handle(dsn, ItemResult(0, 0, "returned", b"1"))
    assert api.result(which, group="g", timeout=10) == 1


def test_whoever_waits_is_woken_when_a_result_is_kept(api: Any, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody would look again by himself.
    monkeypatch.setattr(waiting, "_LONGEST", 3600.0)
    monkeypatch.setattr(waiting, "_LONGEST_LATELY", 3600.0)
    monkeypatch.setattr(waiting, "_GROWTH", 1e6)
    api.create_group("q", "g")
    (which,) = api.push("q", "x", partition="p", result=True).ids

    def work() -> None:
        until(lambda: any(group.pause > 1 for group in list(api._waits._groups.values())))
        handle(dsn, ItemResult(0, 0, "returned", b"1"))
        api._wakes.kept_results()

    worker = threading.Thread(target=work)
    worker.start()
    assert api.result(which, timeout=30) == 1
    worker.join()
