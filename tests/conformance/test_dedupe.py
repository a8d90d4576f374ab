"""Messages that count once: what a push with dedupe ids stores, and what it says of those it does not store."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import Duplicate, InvalidInput, Message, PenstockError, Scheduled
from penstock.client.pushes import partition_for_key

pytestmark = pytest.mark.usefixtures("sound")
HOUR = 3600.0


def mark(dedupe_id: str, value: Any = None, **options: Any) -> Message:
    return Message(dedupe_id if value is None else value, dedupe_id=dedupe_id, **options)


def values(api: Any, partition: str = "0") -> list[Any]:
    return [message.json() for message in api.read("q", partition)]


@pytest.fixture(autouse=True)
def queue(api: Any) -> None:
    api.create("q", dedupe_window=HOUR)


def age_ids(dsn: str, seconds: float) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE penstock.dedupe_ids SET seen_at = seen_at - %s WHERE isfinite(seen_at)",
            (timedelta(seconds=seconds),),
        )


def test_a_second_push_of_an_id_stores_nothing_and_names_the_first(api: Any) -> None:
    first = api.push("q", {"id": 1}, dedupe_id="order 1")
    second = api.push("q", {"id": 1}, dedupe_id="order 1")
    assert (first.count, first.duplicates) == (1, ())
    assert (second.count, second.ids) == (0, first.ids)
    assert second.duplicates == (Duplicate(0, 0, first.ids[0], None),)
    assert values(api) == [{"id": 1}]
    assert api.get(second.ids[0]).json() == {"id": 1}


def test_of_a_batch_only_what_is_new_is_stored(api: Any) -> None:
    api.push("q", [mark("a"), mark("b")], partition="0")
    result = api.push("q", [mark("b"), "plain", mark("c"), mark("a"), mark("d")], partition="0")
    assert (result.first_offset, result.count) == (2, 3)
    assert [(each.position, each.offset) for each in result.duplicates] == [(0, 1), (3, 0)]
    assert values(api) == ["a", "b", "plain", "c", "d"]
    assert [api.get(each).json() for each in result.ids] == ["b", "plain", "c", "a", "d"]


def test_an_id_that_is_twice_in_one_batch_counts_once(api: Any) -> None:
    result = api.push("q", [mark("a", 1), mark("a", 2), mark("b", 3)], partition="0")
    assert values(api) == [1, 3]
    assert [(each.position, each.offset) for each in result.duplicates] == [(1, 0)]
    assert [api.get(each).json() for each in result.ids] == [1, 1, 3]


def test_what_is_left_of_a_batch_keeps_its_keys_and_headers(api: Any) -> None:
    api.push("q", mark("a"), partition="0")
    api.push(
        "q",
        [
            mark("a", b"", key="gone"),
            mark("b", b"bb", key="kb"),
            Message(b"", headers={"h": "1"}),
            mark("c", b"ccc", key="kü", headers={"h": "2"}),
        ],
        partition="0",
    )
    left = [(message.value, message.key, message.headers) for message in api.read("q", "0", 1)]
    assert left == [(b"bb", "kb", None), (b"", None, {"h": "1"}), (b"ccc", "kü", {"h": "2"})]


def test_without_partition_and_key_the_id_picks_the_partition_so_that_duplicates_meet(api: Any) -> None:
    api.configure("q", spread=16)
    for _ in range(2):
        for name in ("a", "b", "c", "d"):
            assert api.push("q", 1, dedupe_id=name).partition == partition_for_key(name, 16)
    assert api.describe("q").messages == 4
    results = api.push_many("q", [mark(name) for name in ("a", "b", "e")])
    assert [(result.count, len(result.duplicates)) for result in results] == [(0, 1), (0, 1), (1, 0)]
    with pytest.raises(InvalidInput, match=r"keys or dedupe ids of these messages pick .* push_many"):
        api.push("q", [mark(str(number)) for number in range(20)])


def test_an_id_counts_in_its_partition_only(api: Any) -> None:
    for partition in ("a", "b"):
        assert api.push("q", 1, partition=partition, dedupe_id="x").count == 1
    api.create("other", dedupe_window=HOUR)
    assert api.push("other", 1, partition="a", dedupe_id="x").count == 1
    results = api.push_many("q", [("a", mark("x")), ("c", mark("x")), ("b", mark("x"))])
    assert [result.count for result in results] == [0, 1, 0]


def test_the_window_ends_by_time_whether_or_not_anybody_cleaned_up(api: Any, dsn: str) -> None:
    api.push("q", 1, dedupe_id="x")
    age_ids(dsn, HOUR - 60)
    list(api.maintain())
    assert api.push("q", 2, dedupe_id="x").count == 0
    age_ids(dsn, 61)
    assert api.push("q", 3, dedupe_id="x").count == 1
    assert api.push("q", 4, dedupe_id="x").duplicates[0].offset == 1
    assert values(api) == [1, 3]


def test_maintenance_deletes_ids_that_outlived_their_window(api: Any, dsn: str) -> None:
    api.push("q", [mark(str(number)) for number in range(10)], partition="0")
    api.push("q", 1, dedupe_id="waits", delay=HOUR)
    age_ids(dsn, HOUR + 1)
    api.push("q", 1, dedupe_id="new")
    list(api.maintain())
    with psycopg.connect(dsn) as sql:
        kept = sql.execute("SELECT dedupe_id FROM penstock.dedupe_ids ORDER BY 1").fetchall()
    assert kept == [("new",), ("waits",)]


def test_a_queue_without_a_window_refuses_ids_and_says_what_to_do(api: Any) -> None:
    says = r"dedupe_window is 0.* penstock configure plain --set dedupe_window=3600"
    for options in ({}, {"delay": HOUR}):
        with pytest.raises(InvalidInput, match=says):
            api.push("plain", 1, dedupe_id="x", **options)
        with pytest.raises(InvalidInput, match=says):
            api.push_many("plain", [("0", mark("x"))], **options)
    assert [queue.name for queue in api.queues()] == ["q"]
    api.configure("q", dedupe_window=None)
    with pytest.raises(InvalidInput, match="dedupe_window is 0"):
        api.push("q", 1, dedupe_id="x")
    api.push_many("q", [("0", 1)])


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\0b", "\ud800", 7, b"x"])
def test_a_bad_id_is_refused(api: Any, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        api.push("q", 1, partition="0", dedupe_id=bad)
    with pytest.raises(InvalidInput):
        api.push_many("q", [("0", "good"), ("0", Message(1, dedupe_id=bad))])
    assert api.describe("q").messages == 0


def test_one_id_for_several_messages_is_refused(api: Any) -> None:
    with pytest.raises(InvalidInput, match="belongs to one message"):
        api.push("q", [1, 2], dedupe_id="x")
    assert api.push("q", [1], dedupe_id="x").count == 1


def test_a_transaction_stores_an_id_once_and_forgets_it_when_it_rolls_back(api: Any) -> None:
    with suppress(ZeroDivisionError), api.transaction() as tx:
        tx.push("q", 0, dedupe_id="x")
        _ = 1 / 0
    with api.transaction() as tx:
        plain = tx.push("q", [1, 2])
        first = tx.push("q", 3, dedupe_id="x")
        again = tx.push("q", [mark("x", 4, partition="0"), mark("y", 5, partition="0")])
        other = tx.push_many("q", [("p", 6)])
    assert values(api) == [1, 2, 3, 5]
    assert (plain.result.first_offset, first.result.first_offset) == (0, 2)
    assert (again.result.first_offset, again.result.count) == (3, 1)
    assert again.result.duplicates == (Duplicate(0, 2, first.result.ids[0], None),)
    assert [api.get(each).json() for each in again.result.ids] == [3, 5]
    assert (other.result.first_offset, other.result.count) == (0, 1)


def test_a_purge_forgets_the_ids(api: Any) -> None:
    api.push("q", 1, dedupe_id="x")
    api.push("q", 2, partition="p", dedupe_id="x")
    api.purge("q", partition="0")
    assert (api.push("q", 3, dedupe_id="x").count, api.push("q", 4, partition="p", dedupe_id="x").count) == (1, 0)
    api.delete("q", partition="p")
    assert api.push("q", 5, partition="p", dedupe_id="x").count == 1


def test_an_id_counts_from_the_delayed_push_until_a_window_after_it_is_due(api: Any, dsn: str) -> None:
    later = api.push("q", 1, dedupe_id="x", delay=2 * HOUR)
    (waits,) = later.scheduled.ids
    age_ids(dsn, 2 * HOUR)
    repeated = api.push("q", 2, dedupe_id="x")
    assert repeated.duplicates == (Duplicate(0, None, None, waits),)
    with pytest.raises(PenstockError, match="scheduled and has no id yet"):
        _ = repeated.ids
    again = api.push("q", 3, dedupe_id="x", delay=HOUR)
    assert (again.count, again.scheduled.ids, again.duplicates) == (0, (), repeated.duplicates)
    with psycopg.connect(dsn) as sql:
        sql.execute("UPDATE penstock.scheduled SET due_at = clock_timestamp()")
    api.sweep()
    assert api.push("q", 4, dedupe_id="x").duplicates[0].offset == 0
    age_ids(dsn, HOUR + 1)
    assert api.push("q", 5, dedupe_id="x").count == 1
    assert values(api) == [1, 5]


def test_of_a_delayed_batch_each_id_finds_its_own_message(api: Any, dsn: str) -> None:
    api.push("q", mark("a"), partition="0")
    batch = ["plain", mark("b"), mark("a"), mark("c"), mark("b"), "too", mark("d")]
    result = api.push("q", batch, partition="0", delay=HOUR)
    assert isinstance(result.scheduled, Scheduled)
    assert [(each.position, each.offset, each.scheduled_id) for each in result.duplicates] == [
        (2, 0, None),
        (4, None, result.scheduled.ids[0]),
    ]
    with psycopg.connect(dsn) as sql:
        sql.execute("UPDATE penstock.scheduled SET due_at = clock_timestamp()")
    api.sweep()
    assert values(api) == ["a", "plain", "b", "c", "too", "d"]
    repeated = api.push("q", [mark("d"), mark("c"), mark("b")], partition="0")
    assert [api.get(each).json() for each in repeated.ids] == ["d", "c", "b"]


def test_a_cancelled_message_frees_its_id(api: Any) -> None:
    later = api.push("q", 1, dedupe_id="x", delay=HOUR)
    api.cancel(*later.scheduled.ids)
    assert api.push("q", 2, dedupe_id="x").count == 1
    assert values(api) == [2]


def test_a_batch_over_the_segment_caps_counts_positions_through(api: Any) -> None:
    large = [mark(str(number), bytes([number]) * 600_000) for number in range(5)]
    api.push("q", large[3], partition="0")
    result = api.push("q", [*large, mark("0", b"again"), mark("new", b"new")], partition="0")
    assert (result.first_offset, result.count) == (1, 5)
    assert [(each.position, each.offset) for each in result.duplicates] == [(3, 0), (5, 1)]
    assert [api.get(each).value[:3] for each in result.ids] == [
        bytes([number]) * 3 for number in (0, 1, 2, 3, 4, 0)
    ] + [b"new"]


def test_sql_says_which_of_the_messages_were_duplicates(api: Any, dsn: str) -> None:
    api.configure("q", spread=2)
    push = (
        "SELECT message_count, duplicate_positions, duplicate_ids FROM penstock.push("
        "'q', ARRAY['a', 'b', 'c', 'd']::bytea[], 'p', dedupe_ids => %s::text[])"
    )
    with psycopg.connect(dsn, autocommit=True) as sql:
        assert sql.execute(push.encode(), (["1", None, "2", "1"],)).fetchall()[0][:2] == (3, [4])
        ((count, positions, ids),) = sql.execute(push.encode(), (["9", "2", None, "1"],)).fetchall()
        assert (count, positions) == (2, [2, 4])
        assert [api.get(each).value for each in ids] == [b"c", b"a"]
        places = sql.execute(
            "SELECT pushed_to FROM penstock.push('q', ARRAY['a']::bytea[], dedupe_ids => ARRAY['x'])"
        ).fetchall()
        assert places == [(partition_for_key("x", 2),)]
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="as many keys, headers and dedupe ids"):
            sql.execute("SELECT penstock.push('q', ARRAY['a']::bytea[], dedupe_ids => ARRAY['x', 'y'])")
