"""Merging small segments changes how messages lie, and nothing that anybody can see."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databases import Connection, Connections
from penstock import Client, Message

from .interleaving import Running, gapless, offsets, push

relaxed = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
messages = st.builds(
    Message,
    value=st.binary(max_size=9),
    key=st.none() | st.text("aü", min_size=1, max_size=3),
    headers=st.none() | st.dictionaries(st.text("hk", max_size=2), st.text("vö", max_size=3), min_size=1, max_size=2),
)
batches = st.lists(st.lists(messages, min_size=1, max_size=5), min_size=3, max_size=9)


def segments(sql: Connection) -> int:
    ((number,),) = sql.execute("SELECT count(*) FROM penstock.segments").fetchall()
    return int(number)


@pytest.fixture(scope="module")
def numbers() -> "st.SearchStrategy[int] | object":
    return iter(range(1_000_000))


@relaxed
@given(pushed=batches, rounds=st.integers(1, 3), compression=st.sampled_from(["on", "off"]))
def test_merged_messages_keep_ids_times_keys_headers_and_order(
    client: Client, sql: Connection, numbers: "object", pushed: list[list[Message]], rounds: int, compression: str
) -> None:
    queue = f"q{next(numbers)}"  # type: ignore[call-overload]
    client.create(queue, compression=compression)
    for batch in pushed[:-2]:
        client.push(queue, batch, partition="p")
    for round_ in range(rounds):
        before = client.read(queue, "p")
        if round_ == 1:
            client.push(queue, pushed[-2], partition="p"), client.push(queue, pushed[-1], partition="p")
            before = client.read(queue, "p")
        list(client.maintain(min_segments=2))
        after = client.read(queue, "p")
        assert after == before
        assert [message.id for message in after] == [message.id for message in before]
    for message in client.read(queue, "p"):
        assert client.get(message.id) == message
    shown = sql.execute(
        "SELECT id, payload, key FROM penstock.messages WHERE queue_name = %s ORDER BY message_offset", (queue,)
    ).fetchall()
    assert shown == [(message.id, message.value, message.key) for message in client.read(queue, "p")]


def test_messages_pushed_one_at_a_time_become_one_segment_and_the_newest(client: Client, sql: Connection) -> None:
    for number in range(20):
        client.push("q", number)
    (done,) = list(client.maintain(min_segments=10))
    assert done.merged_segments == 19
    assert segments(sql) == 2
    assert gapless(sql)


def test_fewer_than_asked_for_are_left_alone(client: Client, sql: Connection) -> None:
    for number in range(10):
        client.push("q", number)
    (done,) = list(client.maintain(min_segments=10))
    assert (done.merged_segments, segments(sql)) == (0, 10)


def test_what_was_merged_is_not_merged_again(client: Client, sql: Connection) -> None:
    for _ in range(2):
        for number in range(6):
            client.push("q", number)
        list(client.maintain(min_segments=4))
    assert segments(sql) == 3
    assert next(client.maintain(min_segments=2)).merged_segments == 0


def test_large_segments_are_left_alone(client: Client, sql: Connection) -> None:
    for _ in range(6):
        client.push("q", b"x" * 20_000)
    assert next(client.maintain(min_segments=2)).merged_segments == 0


def test_a_merged_segment_is_sliced_by_offset_and_by_time(client: Client) -> None:
    results = [client.push("q", [number, -number]) for number in range(6)]
    list(client.maintain(min_segments=2))
    third = results[3]
    assert [m.json() for m in client.read("q", "0", 5, 8)] == [-2, 3, -3]
    assert [m.json() for m in client.read("q", "0", 0, 8, start_time=third.timestamp)] == [3, -3]


def test_a_reader_is_not_stopped_by_a_merge_and_sees_the_same(
    client: Client, connections: Connections, sql: Connection
) -> None:
    for number in range(6):
        client.push("q", number)
    before = client.read("q", "0")
    maintainer = connections.open()
    maintainer.execute("SELECT * FROM penstock.maintain(min_segments => 2)")
    assert client.read("q", "0") == before
    maintainer.commit()
    assert client.read("q", "0") == before


def test_a_merge_that_meets_a_purge_waits_and_finds_nothing_to_do(
    client: Client, connections: Connections, sql: Connection
) -> None:
    for _ in range(6):
        push(sql)
    purger, maintainer = connections.open(), connections.open(autocommit=True)
    purger.execute("SELECT penstock.purge('q')")
    merge = Running(maintainer, "SELECT merged_segments FROM penstock.maintain(min_segments => 2)")
    assert merge.waits(sql)
    purger.commit()
    assert merge.value() == 0
    assert offsets(sql) == []
    assert push(sql) == 6


def test_a_purge_that_meets_a_merge_waits_and_drops_all(
    client: Client, connections: Connections, sql: Connection
) -> None:
    for _ in range(6):
        push(sql)
    maintainer, purger = connections.open(), connections.open(autocommit=True)
    maintainer.execute("SELECT * FROM penstock.maintain(min_segments => 2)")
    purge = Running(purger, "SELECT penstock.purge('q')")
    assert purge.waits(sql)
    maintainer.commit()
    assert purge.value() == 6
    assert offsets(sql) == []
    assert push(sql) == 6


def test_a_push_is_not_stopped_by_a_merge(client: Client, connections: Connections, sql: Connection) -> None:
    for _ in range(6):
        push(sql)
    maintainer = connections.open()
    maintainer.execute("SELECT * FROM penstock.maintain(min_segments => 2)")
    sql.execute("SET penstock.lock_timeout = '5s'")
    assert push(sql) == 6
    maintainer.commit()
    assert offsets(sql) == list(range(7))
    assert gapless(sql)
