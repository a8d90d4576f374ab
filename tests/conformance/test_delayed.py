"""Messages that come later: what a delayed push returns, what is then in the log, listing and cancelling."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from penstock import InvalidInput, Message, MessageTooLarge, NotFound, PenstockError

from .groups import until

pytestmark = pytest.mark.usefixtures("sound")
HOUR = 3600.0


def come_due(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE penstock.scheduled SET due_at = due_at - interval '1 day'")


def values(api: Any, partition: str = "0") -> list[Any]:
    return [message.json() for message in api.read("q", partition)]


def test_a_delayed_message_is_in_no_log_until_it_is_due(api: Any, dsn: str) -> None:
    result = api.push("q", [1, 2], delay=HOUR)
    assert values(api) == []
    assert api.partitions("q")[0].head == 0
    api.sweep()
    assert values(api) == []
    come_due(dsn)
    api.sweep()
    assert values(api) == [1, 2]
    assert api.scheduled() == []
    assert result.count == 2


def test_it_comes_by_itself_to_who_consumes(api: Any) -> None:
    result = api.push("q", "later", partition="p", delay=0.05)
    batch = api.pop("q", wait=20)
    assert [message.json() for message in batch.messages] == ["later"]
    assert batch.messages[0].timestamp >= result.scheduled.due_at
    batch.ack()


def test_the_result_says_when_and_under_which_id_and_has_no_offset_yet(api: Any) -> None:
    before = datetime.now(UTC)
    result = api.push("q", [1, 2], partition="p", delay=HOUR)
    after = datetime.now(UTC)
    assert (result.queue, result.partition, result.count, result.duplicates) == ("q", "p", 2, ())
    assert before <= result.scheduled.due_at - timedelta(seconds=HOUR) <= after
    assert len(result.scheduled.ids) == 1
    for what in ("first_offset", "ids"):
        with pytest.raises(PenstockError, match=r"these messages are due at .* then; look at \.scheduled"):
            getattr(result, what)
    assert api.push("q", 3, partition="p").scheduled is None


def test_it_may_be_due_at_a_time(api: Any, dsn: str) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    result = api.push("q", 1, at=moment)
    assert result.scheduled.due_at == moment
    assert api.push("q", 0, at=moment - timedelta(days=1)).scheduled.due_at < datetime.now(UTC)
    api.sweep()
    assert values(api) == [0]


def test_keys_and_headers_go_with_it(api: Any, dsn: str) -> None:
    api.create("q", spread=4)
    sent = api.push("q", Message(b"x", headers={"h": "ü"}), key="ann", delay=HOUR)
    come_due(dsn)
    api.sweep()
    (message,) = api.read("q", sent.partition)
    assert (message.value, message.key, message.headers) == (b"x", "ann", {"h": "ü"})
    assert api.push("q", 1, key="ann").partition == sent.partition


def test_push_many_delays_all_of_it(api: Any, dsn: str) -> None:
    results = api.push_many("q", [("a", 1), ("b", 2), ("a", 3)], delay=HOUR)
    assert [(r.partition, r.count, len(r.scheduled.ids)) for r in results] == [("a", 2, 1), ("b", 1, 1)]
    come_due(dsn)
    api.sweep()
    assert (values(api, "a"), values(api, "b")) == ([1, 3], [2])


def test_a_batch_over_the_segment_caps_waits_under_several_ids(api: Any, dsn: str) -> None:
    large = [bytes([number]) * 600_000 for number in range(5)]
    result = api.push("q", large, delay=HOUR)
    assert (result.count, len(result.scheduled.ids)) == (5, 5)
    come_due(dsn)
    api.sweep()
    assert [message.value for message in api.read("q", "0")] == large


def test_its_time_is_when_it_got_its_offset(api: Any, dsn: str) -> None:
    given = api.push("q", 1, delay=HOUR).timestamp
    api.push("q", 0)
    come_due(dsn)
    api.sweep()
    first, second = api.read("q", "0")
    assert [first.json(), second.json()] == [0, 1]
    assert second.timestamp >= first.timestamp > given


def test_a_transaction_delays_too_and_takes_it_back_when_it_rolls_back(api: Any, dsn: str) -> None:
    with api.transaction() as tx:
        now = tx.push("q", 0)
        later = tx.push("q", 1, delay=HOUR)
        many = tx.push_many("q", [("a", 2), ("0", 3)], at=datetime.now(UTC) + timedelta(hours=2))
        again = tx.push("q", 4, delay=HOUR)
    assert now.result.first_offset == 0
    ids = [result.scheduled.ids for push in (later, many, again) for result in push.results]
    assert len(set(ids)) == 4
    assert len(api.scheduled()) == 4
    with suppress(ZeroDivisionError), api.transaction() as tx:
        tx.push("q", 5, delay=HOUR)
        _ = 1 / 0
    assert len(api.scheduled()) == 4
    assert api.cancel(*later.result.scheduled.ids) == list(later.result.scheduled.ids)
    come_due(dsn)
    api.sweep()
    assert (values(api), values(api, "a")) == ([0, 4, 3], [2])


def test_what_is_scheduled_is_listed_in_the_order_it_is_due_a_page_at_a_time(api: Any) -> None:
    for number in (3, 1, 2):
        api.push("q", f"message {number}", partition=f"p{number}", delay=HOUR * number)
    api.push("other", "x" * 500, delay=HOUR)
    listed = api.scheduled("q")
    assert [(each.partition, each.count, each.preview) for each in listed] == [
        (f"p{number}", 1, f'"message {number}"'.encode()) for number in (1, 2, 3)
    ]
    assert [each.size for each in listed] == [11, 11, 11]
    assert all(each.created_at < each.due_at for each in listed)
    first = api.scheduled("q", limit=2)
    assert first + api.scheduled("q", after=first[-1], limit=2) == listed
    assert api.scheduled("q", partition="p2") == [listed[1]]
    assert {each.queue for each in api.scheduled()} == {"q", "other"}
    (other,) = api.scheduled("other")
    assert (other.preview, other.size) == (b'"' + b"x" * 99, 502)


def test_a_cancelled_message_never_comes_and_cancelling_says_whether_it_was_in_time(api: Any, dsn: str) -> None:
    (first,) = api.push("q", 1, delay=HOUR).scheduled.ids
    (second,) = api.push("q", 2, delay=HOUR).scheduled.ids
    (third,) = api.push("q", 3, delay=HOUR).scheduled.ids
    assert api.cancel(first) == [first]
    assert api.cancel(first) == []
    come_due(dsn)
    assert api.cancel(third, first) == [third]
    api.sweep()
    assert api.cancel(second) == []
    assert api.cancel() == []
    assert values(api) == [2]


def test_a_purge_drops_what_is_scheduled(api: Any, dsn: str) -> None:
    api.push("q", [1, 2])
    api.push("q", [3, 4, 5], delay=HOUR)
    api.push("q", 6, partition="p", delay=HOUR)
    assert api.purge("q", partition="0") == 5
    assert [each.partition for each in api.scheduled()] == ["p"]
    assert api.purge("q") == 1
    assert api.scheduled() == []


def test_a_deleted_partition_or_queue_takes_what_is_scheduled_with_it(api: Any) -> None:
    api.push("q", 1, partition="p", delay=HOUR)
    api.push("q", 2, partition="r", delay=HOUR)
    api.delete("q", partition="p")
    assert [each.partition for each in api.scheduled("q")] == ["r"]
    api.delete("q")
    assert api.scheduled() == []


def test_lag_counts_what_is_in_the_log(api: Any, dsn: str) -> None:
    api.create_group("q", "g")
    api.push("q", 1, delay=HOUR)
    assert api.lag("q", "g") == 0
    come_due(dsn)
    api.sweep()
    assert until(lambda: api.lag("q", "g")) == 1


def test_a_message_over_the_limit_is_refused_when_it_is_given(api: Any) -> None:
    api.create("q", max_message_bytes=10)
    with pytest.raises(MessageTooLarge, match="12 bytes"):
        api.push("q", "x" * 10, delay=HOUR)
    assert api.scheduled() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": -1}, "delay is -1 but must be a number of seconds from 0"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": float("inf")}, "delay is inf"),
        ({"delay": 1e10}, "delay is"),
        ({"delay": "soon"}, "delay is 'soon'"),
        ({"delay": True}, "delay is True"),
        ({"at": datetime(2026, 1, 1)}, "not a datetime with a time zone"),
        ({"at": "tomorrow"}, "not a datetime with a time zone"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "within a hundred years"),
        ({"delay": 1, "at": datetime.now(UTC)}, "delay or at, and not both"),
    ],
)
def test_a_due_time_that_nobody_can_mean_is_refused(api: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        api.push("q", 1, **options)
    with pytest.raises(InvalidInput, match=says):
        api.push_many("q", [("0", 1)], **options)
    with pytest.raises(InvalidInput, match=says), api.transaction() as tx:
        tx.push("q", 1, **options)
    assert api.queues() == []


def test_bad_ids_and_names_are_refused(api: Any) -> None:
    for bad in (-1, "1", 1.5, True, 1 << 63):
        with pytest.raises(InvalidInput, match=r"not the id of a scheduled push|is not a message id"):
            api.cancel(bad)
    with pytest.raises(NotFound, match='no queue "none"'):
        api.scheduled("none")
    api.create("q")
    with pytest.raises(NotFound, match='no partition "none"'):
        api.scheduled("q", partition="none")
    with pytest.raises(InvalidInput, match="requires"):
        api.scheduled(partition="p")
    with pytest.raises(InvalidInput, match="limit"):
        api.scheduled("q", limit=-1)
    with pytest.raises(InvalidInput, match="page before"):
        api.scheduled("q", after=7)


def test_sql_delays_lists_and_cancels(api: Any, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        pushed = sql.execute(
            "SELECT pushed_to, first_offset, message_count, scheduled_id, due_at > clock_timestamp()"
            " FROM penstock.push('q', ARRAY['a', 'b', 'c']::bytea[], keys => ARRAY['k', NULL, 'k'], delay => 60)"
        ).fetchall()
        ((to, first, count, scheduled_id, future),) = pushed
        assert (to, first, count, future) == ("0", None, 3, True)
        assert sql.execute("SELECT scheduled_id, message_count FROM penstock.list_scheduled('q')").fetchall() == [
            (scheduled_id, 3)
        ]
        at = sql.execute(
            "SELECT due_at = '2100-01-01Z', first_offset"
            " FROM penstock.push('q', ARRAY['d']::bytea[], at => '2100-01-01Z')"
        ).fetchall()
        assert at == [(True, None)]
        ((cancelled,),) = sql.execute("SELECT penstock.cancel(ARRAY[%s, 999999])", (scheduled_id,)).fetchall()
        assert cancelled == [scheduled_id]
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="not both"):
            sql.execute("SELECT penstock.push('q', ARRAY['a']::bytea[], delay => 1, at => now())")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="from 0 to"):
            sql.execute("SELECT penstock.push('q', ARRAY['a']::bytea[], delay => -1)")
