"""Every range, by offsets and by times, equals the same slice of a list; Arrow equals Python."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databases import Connection
from penstock import Client, Message, StoredMessage
from penstock.broker.arrow import SCHEMA
from penstock.client import paging

relaxed = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
START = datetime(2026, 1, 1, tzinfo=UTC)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=12),
    key=st.none() | texts.filter(bool),
    headers=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=2),
)
batches = st.lists(st.lists(messages, min_size=1, max_size=6), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return (f"q{number}" for number in range(1_000_000))


def as_rows(found: list[StoredMessage]) -> list[dict[str, Any]]:
    return [
        {
            "queue": message.queue,
            "partition": message.partition,
            "offset": message.offset,
            "key": message.key,
            "value": message.value,
            "headers": message.headers,
            "timestamp": message.timestamp,
        }
        for message in found
    ]


def arrow_rows(table: Any) -> list[dict[str, Any]]:
    import msgspec

    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["headers"] = row["headers"] and msgspec.json.decode(row["headers"])
    return rows


@relaxed
@given(pushed=batches, merged=st.booleans(), page=st.sampled_from([1, 20, 8 << 20]), data=st.data())
def test_any_range_equals_the_slice_of_a_list(
    client: Client, names: Iterator[str], pushed: list[list[Message]], merged: bool, page: int, data: st.DataObject
) -> None:
    queue = next(names)
    for batch in pushed:
        client.push(queue, batch, partition="p")
    if merged:
        list(client.maintain(min_segments=2))
    model = [message for batch in pushed for message in batch]
    start = data.draw(st.integers(0, len(model) + 1))
    stop = data.draw(st.none() | st.integers(0, len(model) + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "PAGE_BYTES", page)
        found = client.read(queue, "p", start, stop)
        table = client.read_arrow(queue, "p", start, stop)
    expected = model[start:stop]
    assert [(m.value, m.key, m.headers) for m in found] == [(m.value, m.key, m.headers) for m in expected]
    assert [m.offset for m in found] == list(range(len(model)))[start:stop]
    assert table.schema == SCHEMA
    assert arrow_rows(table) == as_rows(found)
    for message in found:
        assert client.get(message.id) == message


@relaxed
@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=8),
    merged=st.booleans(),
    dropped=st.integers(0, 3),
    data=st.data(),
)
def test_a_range_by_times_equals_the_filter_of_a_list(
    client: Client,
    sql: Connection,
    names: Iterator[str],
    steps: list[tuple[int, int]],
    merged: bool,
    dropped: int,
    data: st.DataObject,
) -> None:
    queue, model, now = next(names), [], START
    for seconds, count in steps:
        now += timedelta(seconds=seconds)
        first = client.push(queue, [b"x"] * count, partition="p").first_offset
        sql.execute(
            "UPDATE penstock.segments SET created_at = %s WHERE base_offset = %s AND partition_id ="
            " (SELECT partition_id FROM penstock.log_counter WHERE queue_name = %s)",
            (now, first, queue),
        )
        model += [(first + index, now) for index in range(count)]
    if merged:
        list(client.maintain(min_segments=2))
    if dropped:
        sql.execute(
            "SELECT penstock.drop_below(id, %s, NULL) FROM penstock.log_counter WHERE queue_name = %s",
            (dropped, queue),
        )
        model = [item for item in model if item[0] >= client.partitions(queue)[0].floor]
    moments = st.none() | st.integers(-1, 26).map(lambda halves: START + timedelta(seconds=halves / 2))
    start_time, stop_time = data.draw(moments), data.draw(moments)
    expected = [
        (offset, time)
        for offset, time in model
        if (start_time is None or time >= start_time) and (stop_time is None or time < stop_time)
    ]
    found = client.read(queue, "p", start_time=start_time, stop_time=stop_time)
    assert [(message.offset, message.timestamp) for message in found] == expected
    limited = client.read(queue, "p", start_time=start_time, stop_time=stop_time, limit=3)
    assert limited == found[:3]
    assert arrow_rows(client.read_arrow(queue, "p", start_time=start_time, stop_time=stop_time)) == as_rows(found)


def test_a_read_starts_at_the_floor_after_a_purge(client: Client) -> None:
    client.push("q", [1, 2, 3], partition="p")
    client.purge("q")
    client.push("q", [4, 5], partition="p")
    assert [message.offset for message in client.read("q", "p")] == [3, 4]
    assert [message.offset for message in client.read("q", "p", 1, 4)] == [3]
    assert [message.offset for message in client.read("q", "p", limit=5)] == [3, 4]
    assert client.read_arrow("q", "p")["offset"].to_pylist() == [3, 4]


def test_a_limit_counts_messages_and_not_offsets_that_were_dropped(client: Client) -> None:
    client.push("q", [1, 2, 3], partition="p")
    client.purge("q")
    client.push("q", [4, 5], partition="p")
    assert [message.offset for message in client.read("q", "p", limit=1)] == [3]


def test_times_are_in_utc_whatever_the_servers_zone(client: Client, sql: Connection, dsn: str) -> None:
    client.push("q", 1)
    expected = client.read("q", "0")[0]
    zoned = f"{dsn} options='-c TimeZone=Asia/Kathmandu'"
    with Client(zoned) as elsewhere:
        (message,) = elsewhere.read("q", "0")
        assert message == expected
        assert message.timestamp.tzinfo is UTC
        assert elsewhere.push("q", 2).timestamp.tzinfo is UTC


def test_a_read_sees_one_moment_of_the_log(client: Client, sql: Connection) -> None:
    client.push("q", list(range(10)), partition="p")
    with sql.transaction():
        sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = sql.execute("SELECT count(*) FROM penstock.read('q', 'p')").fetchall()
        client.push("q", 10, partition="p")
        list(client.maintain(min_segments=2))
        client.purge("q")
        assert sql.execute("SELECT count(*) FROM penstock.read('q', 'p')").fetchall() == before
