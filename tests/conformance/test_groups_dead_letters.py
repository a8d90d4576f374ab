"""What exhausted its attempts is kept, listed, discarded, or delivered again to the group that failed."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from penstock import InvalidInput, Message, NotFound

from .groups import SOON, bury, drain, mode_for, until, values

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def mode(api: Any) -> str:
    """Group "g" of queue "q", in each mode with one kind of client, where the first failure is the last."""
    api.create("q", max_attempts=1, backoff_initial=0)
    api.create_group("q", "g", mode=mode_for(api))
    return mode_for(api)


def test_a_dead_letter_holds_all_there_is_to_know(api: Any, mode: str) -> None:
    api.configure_group("q", "g", max_attempts=3)
    pushed = api.push("q", Message(b"\x00raw", key="k", headers={"h": "1"}), partition="p")
    for error in ("first", "second", "third"):
        api.pop("q", "g").nack(reason="bad", error=error)
    (letter,) = api.dead_letters("q", "g")
    assert (letter.group, letter.partition, letter.offset) == ("g", "p", 0)
    assert (letter.value, letter.key, letter.headers) == (b"\x00raw", "k", {"h": "1"})
    assert (letter.reason, letter.attempts, letter.first_error, letter.last_error) == ("bad", 3, "first", "third")
    assert (letter.message_id, letter.timestamp) == (pushed.ids[0], pushed.timestamp)
    assert letter.consumer == api.consumer_id
    assert letter.died_at >= letter.timestamp


def test_the_reason_is_the_error_where_none_is_given(api: Any, mode: str) -> None:
    api.push("q", [1, 2, 3])
    bury(api, "q", "g", error="what went wrong")
    bury(api, "q", "g")
    assert [letter.reason for letter in api.dead_letters("q")] == ["what went wrong", "nack"]


def test_dead_letters_survive_purge_retention_and_the_end_of_their_partition(api: Any, mode: str) -> None:
    api.push("q", b"precious", partition="p")
    bury(api, "q", "g")
    before = api.dead_letters("q")
    api.purge("q")
    api.configure("q", retention_time=0.001)
    list(api.maintain())
    assert api.dead_letters("q") == before
    api.delete("q", partition="p")
    (letter,) = api.dead_letters("q")
    assert (letter.value, letter.partition) == (b"precious", "(deleted)")
    assert api.redrive("q") == 1
    assert [message.value for message in api.pop("q", "g").messages] == [b"precious"]


def test_dead_letters_are_listed_by_group_and_reason_a_page_at_a_time(api: Any) -> None:
    api.create("q", max_attempts=1)
    api.push("q", list(range(6)))
    for group in ("one", "two"):
        for number in range(6):
            bury(api, "q", group, reason="even" if number % 2 == 0 else "odd")
    assert len(api.dead_letters("q")) == 12
    assert {letter.group for letter in api.dead_letters("q", "two")} == {"two"}
    assert [letter.offset for letter in api.dead_letters("q", "one", reason="odd")] == [1, 3, 5]
    pages, after = [], 0
    while page := api.dead_letters("q", "one", after=after, limit=4):
        pages.append([letter.offset for letter in page])
        after = page[-1].dead_letter_id
    assert pages == [[0, 1, 2, 3], [4, 5]]
    assert [(info.name, info.dead_letters) for info in api.groups("q")] == [("one", 6), ("two", 6)]


def test_dead_letters_are_counted_by_reason_the_most_frequent_first(api: Any, mode: str) -> None:
    api.push("q", list(range(4)))
    for reason in ("rare", "often", "often", "often"):
        bury(api, "q", "g", reason=reason)
    assert [(r.group, r.reason, r.letters) for r in api.dead_reasons("q")] == [("g", "often", 3), ("g", "rare", 1)]
    assert api.dead_reasons("q", "g")[0].first_died_at <= api.dead_reasons("q", "g")[0].last_died_at


def test_dead_letters_are_discarded_by_id_by_reason_and_all(api: Any, mode: str) -> None:
    api.push("q", list(range(5)))
    for reason in ("a", "b", "a", "b", "a"):
        bury(api, "q", "g", reason=reason)
    first = api.dead_letters("q")[0].dead_letter_id
    assert api.discard("q", ids=[first, 10**12]) == 1
    assert api.discard("q", "g", reason="b") == 2
    assert api.discard("q", "other") == 0
    assert [letter.reason for letter in api.dead_letters("q")] == ["a", "a"]
    assert api.discard("q") == 2
    assert (api.dead_letters("q"), api.lag("q", "g")) == ([], 0)


@pytest.mark.parametrize("ids", ["15", b"\x01", 5, {1: 1}, [True], ["1"], [1.0], [-1], [1 << 63]])
def test_what_is_no_list_of_ids_is_refused_and_changes_nothing(api: Any, mode: str, ids: Any) -> None:
    api.push("q", 1)
    bury(api, "q", "g")
    for act in (api.discard, api.redrive):
        with pytest.raises(InvalidInput, match="dead letter"):
            act("q", ids=ids)
    assert len(api.dead_letters("q")) == 1


def test_a_redriven_message_reaches_only_the_group_that_failed(api: Any, mode: str) -> None:
    pushed = api.push("q", Message("x", key="k", headers={"h": "1"}), partition="p")
    bury(api, "q", "g")
    assert drain(api, "q", "other") == ["x"]
    assert api.redrive("q", "g") == 1
    assert api.dead_letters("q") == []
    assert api.lag("q", "g") == 1
    assert (api.lag("q", "other"), api.pop("q", "other"), api.pop("q", "latecomer").partition) == (0, None, "p")
    batch = api.pop("q", "g")
    (message,) = batch.messages
    assert (message.json(), message.key, message.attempt) == ("x", "k", 1)
    assert message.headers == {"h": "1", "penstock-origin": str(pushed.ids[0]), "penstock-partition": "p"}
    batch.ack()
    assert api.lag("q", "g") == 0


def test_redriven_messages_keep_their_order(api: Any) -> None:
    api.create("q", max_attempts=1)
    api.push("q", list(range(10)))
    for _ in range(10):
        bury(api, "q", "g")
    api.redrive("q")
    assert drain(api, "q", "g", max_messages=3) == list(range(10))


def test_a_message_that_dies_twice_keeps_its_first_origin(api: Any, mode: str) -> None:
    origin = api.push("q", "x").ids[0]
    for _ in range(3):
        bury(api, "q", "g")
        assert api.redrive("q") == 1
    (message,) = api.pop("q", "g").messages
    assert UUID(message.headers["penstock-origin"]) == origin
    assert not message.headers["penstock-partition"].startswith("~")


def test_a_message_cannot_say_itself_where_it_comes_from(api: Any, mode: str) -> None:
    forged = {"penstock-origin": "elsewhere", "penstock-partition": "other", "penstock-rows": "1"}
    origin = api.push("q", Message("x", headers={"h": "1", **forged}), partition="p").ids[0]
    for _ in range(2):
        bury(api, "q", "g")
        assert api.redrive("q") == 1
    (message,) = api.pop("q", "g").messages
    assert message.headers == {"h": "1", "penstock-origin": str(origin), "penstock-partition": "p"}


def test_redriving_by_id_and_by_reason_leaves_the_others(api: Any, mode: str) -> None:
    api.push("q", list(range(4)))
    for reason in ("a", "b", "a", "b"):
        bury(api, "q", "g", reason=reason)
    letters = api.dead_letters("q")
    assert api.redrive("q", ids=[letters[0].dead_letter_id]) == 1
    assert api.redrive("q", "g", reason="b") == 2
    assert [letter.dead_letter_id for letter in api.dead_letters("q")] == [letters[2].dead_letter_id]
    assert drain(api, "q", "g") == [0, 1, 3]


def test_a_private_lane_is_nobody_elses_business(api: Any, mode: str) -> None:
    api.push("q", "x", partition="p")
    bury(api, "q", "g")
    api.redrive("q")
    assert [partition.name for partition in api.partitions("q")] == ["p"]
    assert (api.describe("q").partitions, api.describe("q").messages) == (1, 1)
    lane = api.pop("q", "g").partition
    assert lane.startswith("~")
    assert api.pop("q", "other", partition=lane) is None
    assert [message.json() for message in api.tail("q", follow=False)] == ["x"]
    api.delete_group("q", "g")


def test_bulk_redrive_goes_in_chunks_and_tells_how_far_it_is(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    api.push("q", list(range(2500)))
    assert len(drain(api, "q", "g", max_messages=2500)) == 2500
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO penstock.dead_letters"
            " (queue_id, group_id, partition_id, message_offset, created_at, payload, reason, attempts)"
            " SELECT g.queue_id, g.group_id, m.partition_id, m.message_offset, m.created_at, m.payload, 'bad', 5"
            " FROM penstock.messages m CROSS JOIN penstock.consumer_groups g ORDER BY m.message_offset"
        )
    told: list[int] = []
    assert api.redrive("q", "g", progress=told.append) == 2500
    assert told == [1000, 2000, 2500]
    assert drain(api, "q", "g", max_messages=1000) == list(range(2500))
    assert api.discard("q", progress=told.append) == 0


def test_redriving_works_for_a_group_that_reads_only_what_is_new(api: Any) -> None:
    api.create("q", max_attempts=1)
    api.push("q", "old")
    api.create_group("q", "g", subscription="new")
    api.push("q", "new")
    bury(api, "q", "g")
    assert api.redrive("q") == 1
    assert drain(api, "q", "g") == ["new"]


def test_the_dead_letters_of_an_unknown_queue_are_not_found(api: Any) -> None:
    for ask in (api.dead_letters, api.dead_reasons, api.redrive, api.discard):
        with pytest.raises(NotFound):
            ask("nope")


def test_two_who_redrive_at_once_take_different_ones(open_api: Callable[..., Any]) -> None:
    api, other = open_api(), open_api()
    api.create("q", max_attempts=1)
    api.push("q", [1, 2])
    bury(api, "q", "g")
    bury(api, "q", "g")
    assert api.redrive("q") + other.redrive("q") == 2
    assert values(until(lambda: api.pop("q", "g", wait=SOON))) == [1, 2]
