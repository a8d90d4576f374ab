"""Unique pushes: what is stored, what is refused and which message that is the duplicate of, what is replaced."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import InvalidInput, Message, PenstockError, QueuePaused, RateLimited
from penstock.client.pushes import partition_for_key

pytestmark = pytest.mark.usefixtures("sound")
HOUR = 3600.0


def values(api: Any, partition: str = "0") -> list[Any]:
    return [message.json() for message in api.read("q", partition)]


def age(dsn: str, seconds: float) -> None:
    """Let time pass for unique keys."""
    with psycopg.connect(dsn) as sql:
        sql.execute(
            "UPDATE penstock.unique_keys SET seen_at = seen_at - %s WHERE isfinite(seen_at)",
            (timedelta(seconds=seconds),),
        )


def publish(api: Any, dsn: str) -> None:
    """Let what is scheduled be due, and publish it."""
    with psycopg.connect(dsn) as sql:
        sql.execute("UPDATE penstock.scheduled SET due_at = clock_timestamp()")
    api.sweep()


def keys(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as sql:
        return [key for (key,) in sql.execute("SELECT unique_key FROM penstock.unique_keys ORDER BY 1").fetchall()]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_until_done_a_key_counts_while_any_group_has_it_to_do(api: Any, mode: str) -> None:
    push = {"unique_key": "k", "unique_until": "done"}
    api.create_group("q", "a", mode=mode)
    api.create_group("q", "b", mode=mode)
    first = api.push("q", 1, **push)
    assert (first.count, first.duplicates, first.replaced) == (1, (), ())
    waiting = api.push("q", 2, **push)
    assert (waiting.count, waiting.ids) == (0, first.ids)
    assert [(each.position, each.offset, each.id) for each in waiting.duplicates] == [(0, 0, first.ids[0])]
    batch = api.pop("q", "a")
    assert api.push("q", 2, **push).count == 0
    batch.ack()
    assert api.push("q", 2, **push).count == 0
    api.pop("q", "b").ack()
    assert api.push("q", 2, **push).count == 1
    assert values(api) == [1, 2]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_until_taken_a_key_counts_while_nobody_has_it(api: Any, mode: str) -> None:
    push = {"unique_key": "k", "unique_until": "taken"}
    api.create_group("q", "a", mode=mode)
    api.create_group("q", "b", mode=mode)
    first = api.push("q", 1, **push)
    assert api.push("q", 2, **push).ids == first.ids
    batch = api.pop("q", "a")
    second = api.push("q", 2, **push)
    assert second.count == 1
    assert api.push("q", 3, **push).ids == second.ids
    batch.ack()
    assert values(api) == [1, 2]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_message_that_waits_for_a_retry_waits(api: Any, mode: str) -> None:
    api.create_group("q", "a", mode=mode, backoff_initial=HOUR, backoff_max=HOUR)
    first = api.push("q", 1, unique_key="k", unique_until="taken")
    api.pop("q", "a").nack(reason="later")
    assert api.push("q", 2, unique_key="k", unique_until="taken").ids == first.ids


def test_a_dead_letter_is_done(api: Any) -> None:
    api.create_group("q", "a", max_attempts=1)
    api.push("q", 1, unique_key="k", unique_until="done")
    api.pop("q", "a").nack(reason="bad")
    assert len(api.dead_letters("q")) == 1
    assert api.push("q", 2, unique_key="k", unique_until="done").count == 1


def test_without_a_group_nobody_has_taken_it(api: Any) -> None:
    first = api.push("q", 1, unique_key="k", unique_until="done")
    assert api.push("q", 2, unique_key="k", unique_until="taken").ids == first.ids
    # A group that begins with new messages has nothing to do with it.
    api.create_group("q", "late", subscription="new")
    assert api.push("q", 3, unique_key="k", unique_until="done").count == 1


def test_a_key_counts_for_a_time(api: Any, dsn: str) -> None:
    first = api.push("q", 1, unique_key="k", unique_for=HOUR)
    api.pop("q", "a", auto_ack=True)
    assert api.push("q", 2, unique_key="k", unique_for=timedelta(hours=1)).ids == first.ids
    age(dsn, HOUR - 60)
    list(api.maintain())
    assert api.push("q", 2, unique_key="k", unique_for=HOUR).count == 0
    assert api.push("q", 2, unique_key="k", unique_for=60).count == 1
    age(dsn, HOUR + 1)
    assert api.push("q", 3, unique_key="k", unique_for=HOUR).count == 1
    assert values(api) == [1, 2, 3]


def test_a_time_and_a_state_must_both_hold(api: Any, dsn: str) -> None:
    both = {"unique_key": "k", "unique_for": HOUR, "unique_until": "done"}
    api.create_group("q", "a")
    api.push("q", 1, **both)
    assert api.push("q", 2, **both).count == 0
    age(dsn, HOUR + 1)
    assert api.push("q", 2, **both).count == 1
    api.pop("q", "a").ack()
    assert api.push("q", 3, **both).count == 1


def test_a_key_belongs_to_a_queue_and_not_to_a_partition(api: Any) -> None:
    first = api.push("q", 1, partition="a", unique_key="k", unique_until="done")
    second = api.push("q", 2, partition="b", unique_key="k", unique_until="done")
    assert (second.count, second.partition, second.duplicates[0].id) == (0, "b", first.ids[0])
    assert api.push("other", 2, partition="b", unique_key="k", unique_until="done").count == 1
    api.configure("spread", spread=16)
    assert api.push("spread", 1, unique_key="k", unique_until="done").partition == partition_for_key("k", 16)


def test_of_many_messages_each_key_is_looked_at(api: Any) -> None:
    api.push_many("q", [Message(n, partition="p", unique_key=str(n)) for n in (1, 3)], unique_until="done")
    messages = [
        *(Message(n, partition="p", unique_key=str(n)) for n in (1, 2, 3)),
        Message("plain", partition="p"),
        Message(4, partition="x", unique_key="4"),
    ]
    first, second = api.push_many("q", messages, unique_until="done")
    assert (first.first_offset, first.count) == (2, 2)
    assert [(each.position, each.offset) for each in first.duplicates] == [(0, 0), (2, 1)]
    assert values(api, "p") == [1, 3, 2, "plain"]
    assert [api.get(each).json() for each in first.ids] == [1, 2, 3, "plain"]
    assert (second.partition, second.count) == ("x", 1)


def test_a_scheduled_message_counts_until_it_is_done(api: Any, dsn: str) -> None:
    push = {"unique_key": "k", "unique_until": "done", "unique_for": 60}
    later = api.push("q", 1, delay=HOUR, **push)
    (waits,) = later.scheduled.ids
    repeated = api.push("q", 2, **push)
    assert [(each.offset, each.scheduled_id) for each in repeated.duplicates] == [(None, waits)]
    with pytest.raises(PenstockError, match="scheduled and has no id yet"):
        _ = repeated.ids
    assert api.push("q", 3, delay=HOUR, **push).count == 0
    publish(api, dsn)
    published = api.push("q", 4, **push)
    assert (published.count, published.duplicates[0].offset, published.ids) == (0, 0, [api.read("q", "0")[0].id])
    api.pop("q", "a").ack()
    assert api.push("q", 5, **push).count == 1
    assert values(api) == [1, 5]


def test_a_cancelled_message_counts_no_more(api: Any, dsn: str) -> None:
    later = api.push("q", 1, delay=HOUR, unique_key="k", unique_for=HOUR)
    api.cancel(*later.scheduled.ids)
    list(api.maintain())
    assert keys(dsn) == []
    assert api.push("q", 2, unique_key="k", unique_for=HOUR).count == 1


def test_a_scheduled_message_is_replaced_in_its_place(api: Any, dsn: str) -> None:
    push = {"unique_key": "k", "unique_until": "taken", "replace": True}
    later = api.push("q", 1, delay=HOUR, key="a", headers={"h": "1"}, **push)
    (waits,) = later.scheduled.ids
    replaced = api.push("q", "new", **push)
    assert (replaced.count, replaced.duplicates) == (0, ())
    assert [(each.position, each.offset, each.scheduled_id) for each in replaced.replaced] == [(0, None, waits)]
    assert replaced.scheduled == later.scheduled
    (listed,) = api.scheduled("q")
    assert (listed.scheduled_id, listed.preview, listed.due_at) == (waits, b'"new"', later.scheduled.due_at)
    # With a delay of its own it is put off: this is how a burst becomes one message.
    put_off = api.push("q", "newer", delay=2 * HOUR, partition="p", **push)
    assert put_off.scheduled.ids == (waits,)
    assert put_off.scheduled.due_at > later.scheduled.due_at + timedelta(minutes=30)
    publish(api, dsn)
    (message,) = api.read("q", "p")
    assert (message.json(), message.key, message.headers) == ("newer", None, None)
    assert api.queues()[0].messages == 1


def test_what_was_dropped_or_purged_counts_no_more(api: Any, dsn: str) -> None:
    api.push("q", 1, partition="p", unique_key="k", unique_until="done")
    api.push("q", 1, partition="p", unique_key="t", unique_for=HOUR)
    api.purge("q")
    assert keys(dsn) == []
    assert api.push("q", 2, partition="p", unique_key="k", unique_until="done").count == 1
    api.delete("q", partition="p")
    assert api.push("q", 3, unique_key="k", unique_until="done").count == 1
    api.delete("q")
    assert keys(dsn) == []
    api.configure("q", retention_bytes=1, retention_rule="drop_and_count")
    api.push("q", 4, partition="p", unique_key="k", unique_until="done")
    api.push("q", 5, partition="p")
    with psycopg.connect(dsn) as sql:
        sql.execute("SELECT penstock.drop_below(partition_id, 1, NULL) FROM penstock.partitions")
    assert api.push("q", 6, partition="p", unique_key="k", unique_until="done").count == 1


def test_after_a_seek_back_it_is_to_be_done_again(api: Any) -> None:
    api.create_group("q", "a")
    first = api.push("q", 1, unique_key="k", unique_until="done")
    api.pop("q", "a").ack()
    api.seek("q", "a", "earliest")
    assert api.push("q", 2, unique_key="k", unique_until="done").ids == first.ids


def test_maintenance_forgets_keys_that_count_no_more(api: Any, dsn: str) -> None:
    api.create_group("q", "a")
    api.push("q", 1, partition="p", unique_key="done", unique_until="done")
    api.push("q", 1, partition="p", unique_key="later", unique_until="done", delay=HOUR)
    api.push("q", 1, partition="p", unique_key="young", unique_until="done", unique_for=HOUR)
    api.pop("q", "a").ack()
    publish(api, dsn)
    api.push("q", 1, partition="p", unique_key="waits", unique_until="done")
    api.push("q", 1, partition="p", unique_key="scheduled", unique_until="done", delay=HOUR)
    list(api.maintain())
    assert keys(dsn) == ["later", "scheduled", "waits", "young"]
    api.pop("q", "a").ack()
    list(api.maintain())
    assert keys(dsn) == ["scheduled", "young"]
    with psycopg.connect(dsn) as sql:
        assert sql.execute("SELECT * FROM penstock.unique_moves").fetchall() == []


def test_a_transaction_looks_at_keys_too_and_forgets_them_when_it_rolls_back(api: Any) -> None:
    push = {"unique_key": "k", "unique_until": "done"}
    with suppress(ZeroDivisionError), api.transaction() as tx:
        tx.push("q", 0, **push)
        _ = 1 / 0
    with api.transaction() as tx:
        tx.push("q", "a")
        first = tx.push("q", "b", **push)
        tx.push("q", "c")
        again = tx.push("q", "d", **push)
        other = tx.push_many("q", [Message("e", partition="0", unique_key="x")], unique_for=HOUR)
    assert values(api) == ["a", "b", "c", "e"]
    assert (first.result.count, again.result.count) == (1, 0)
    assert again.result.ids == first.result.ids
    assert api.get(other.result.ids[0]).json() == "e"


def test_in_a_transaction_dedupe_ids_and_unique_keys_go_beside_one_another(api: Any) -> None:
    api.create("q", dedupe_window=HOUR)
    with api.transaction() as tx:
        pushes = [
            *(tx.push("q", 1, dedupe_id="x", partition="0"), tx.push("q", 2, unique_key="x", unique_for=HOUR)),
            *(tx.push("q", 3, dedupe_id="x", partition="0"), tx.push("q", 4, unique_key="x", unique_for=HOUR)),
        ]
    assert [push.result.count for push in pushes] == [1, 1, 0, 0]
    assert values(api) == [1, 2]


def test_what_cannot_be_is_refused_and_changes_nothing(api: Any) -> None:
    refused: list[dict[str, Any]] = [
        *({"unique_key": "k"}, {"unique_for": 5}, {"unique_until": "done"}, {"replace": True}),
        *({"unique_key": "k", "unique_for": 0}, {"unique_key": "k", "unique_for": -1}),
        *({"unique_key": "k", "unique_for": "long"}, {"unique_key": "k", "unique_for": 1e12}),
        *({"unique_key": "k", "unique_until": "never"}, {"unique_key": "k", "unique_for": 5, "replace": "yes"}),
        *({"unique_key": key, "unique_for": 5} for key in ("", "x" * 256, "a\0b", "\ud800", 7, b"k")),
        {"unique_key": "k", "unique_for": 5, "dedupe_id": "d"},
    ]
    for bad in refused:
        with pytest.raises(InvalidInput):
            api.push("q", 1, partition="0", **bad)
        with pytest.raises(InvalidInput), api.transaction() as tx:
            tx.push("q", 1, partition="0", **bad)
    with pytest.raises(InvalidInput, match="belongs to one message"):
        api.push("q", [1, 2], unique_key="k", unique_for=5)
    with pytest.raises(InvalidInput, match="given twice"):
        api.push_many("q", [Message(1, unique_key="k"), Message(2, unique_key="k")], unique_for=5)
    assert api.queues() == []


def test_sql_can_do_it_too(api: Any, dsn: str) -> None:
    push = (
        "SELECT * FROM penstock.push_unique('q', %s, 'k', unique_until => 'done', partition_name => 'p', delay => %s)"
    )
    with psycopg.connect(dsn, autocommit=True) as sql:
        ((outcome, first, *nothing),) = sql.execute(push.encode(), (b"1", None)).fetchall()
        assert (outcome, nothing) == ("stored", [None, None, None])
        assert api.get(first).value == b"1"
        assert sql.execute(push.encode(), (b"2", None)).fetchall() == [("duplicate", None, None, first, None)]
        api.pop("q", "a").ack()
        ((outcome, _, scheduled, *_),) = sql.execute(push.encode(), (b"3", 60.0)).fetchall()
        assert outcome == "stored"
        assert sql.execute(push.encode(), (b"4", 60.0)).fetchall() == [("duplicate", None, None, None, scheduled)]
        replaces = push.replace("'done'", "'done', replaces => true")
        assert sql.execute(replaces.encode(), (b"5", 60.0)).fetchall() == [
            ("replaced", None, scheduled, None, scheduled)
        ]
        for wrong in ("NULL, unique_for => 1", "'k'", "'k', unique_for => -1", "'k', unique_until => 'x'", "''"):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                sql.execute(f"SELECT penstock.push_unique('q', 'x', {wrong})".encode())


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_message_in_the_log_that_waits_is_cancelled_for_the_new_one(api: Any, mode: str) -> None:
    push = {"unique_key": "k", "unique_until": "done", "replace": True}
    api.create_group("q", "a", mode=mode)
    api.push("q", "before", partition="0")
    old = api.push("q", "old", partition="0", **push)
    new = api.push("q", "new", partition="0", **push)
    assert (new.count, new.first_offset, new.duplicates) == (1, 2, ())
    assert [(each.position, each.offset, each.id, each.scheduled_id) for each in new.replaced] == [
        (0, 1, old.ids[0], None)
    ]
    assert [api.get(each).json() for each in new.ids] == ["new"]
    batches = []
    while batch := api.pop("q", "a"):
        batches.append(batch)
        batch.ack()
    assert [message.json() for batch in batches for message in batch.messages] == ["before", "new"]
    assert api.push("q", "next", partition="0", **push).replaced == ()


def test_a_message_that_somebody_has_is_not_replaced(api: Any) -> None:
    push = {"unique_key": "k", "replace": True}
    api.create_group("q", "a")
    old = api.push("q", "old", unique_until="done", **push)
    batch = api.pop("q", "a")
    refused = api.push("q", "new", unique_until="done", **push)
    assert (refused.count, refused.replaced, refused.ids) == (0, (), old.ids)
    # It is taken: the new one is stored beside it.
    beside = api.push("q", "new", unique_until="taken", **push)
    assert (beside.count, beside.replaced) == (1, ())
    batch.ack()
    assert values(api) == ["old", "new"]


def test_where_nobody_could_be_told_nothing_is_replaced(api: Any) -> None:
    push = {"unique_key": "k", "unique_until": "done", "replace": True}
    old = api.push("q", "old", **push)
    refused = api.push("q", "new", **push)
    assert (refused.count, refused.replaced, refused.ids) == (0, (), old.ids)


def test_a_message_in_the_log_gives_way_to_one_that_comes_later(api: Any, dsn: str) -> None:
    push = {"unique_key": "k", "unique_until": "done", "replace": True}
    api.create_group("q", "a")
    old = api.push("q", "old", **push)
    later = api.push("q", "later", delay=HOUR, **push)
    assert (later.count, later.replaced[0].id, len(later.scheduled.ids)) == (1, old.ids[0], 1)
    assert api.pop("q", "a") is None
    again = api.push("q", "again", **push)
    assert (again.count, again.replaced[0].scheduled_id) == (0, later.scheduled.ids[0])
    publish(api, dsn)
    assert [message.json() for message in api.pop("q", "a").messages] == ["again"]


def test_a_message_that_was_cancelled_counts_no_more(api: Any) -> None:
    api.create_group("q", "a")
    old = api.push("q", "old", unique_key="k", unique_until="done")
    api.cancel(old.ids[0])
    assert api.push("q", "new", unique_key="k", unique_until="done").count == 1


def test_what_a_queue_does_not_take_now_is_refused_and_a_duplicate_is_not(api: Any) -> None:
    push = {"unique_key": "k", "unique_until": "done"}
    api.push("q", 1, **push)
    api.configure("q", push_paused=True)
    assert api.push("q", 2, **push).count == 0
    with pytest.raises(QueuePaused):
        api.push("q", 3, unique_key="other", unique_until="done")
    api.configure("q", push_paused=False, push_rate_limit=1, push_rate_period=3600)
    assert api.push("q", 4, unique_key="other", unique_until="done").count == 1
    with pytest.raises(RateLimited):
        api.push("q", 5, unique_key="third", unique_until="done")
    assert values(api) == [1, 4]
