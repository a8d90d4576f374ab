"""Merging small segments changes how messages lie, and nothing that anybody can see."""

from collections.abc import Callable
from time import perf_counter

import pytest
from groups.steps import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel

from databases import Connection, Connections
from penstock import Client, Message
from penstock.broker.operations.reading import Read
from penstock.broker.places import Place

from .interleaving import Running, gapless, offsets, push

relaxed = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=9),
    key=st.none() | st.text("aü", min_size=1, max_size=3),
    headers=st.none() | st.dictionaries(st.text("hk", max_size=2), st.text("vö", max_size=3), min_size=1, max_size=2),
)
batches = st.lists(st.lists(messages, min_size=1, max_size=5), min_size=3, max_size=9)
one_by_one = st.lists(st.lists(messages, min_size=1, max_size=1), min_size=3, max_size=9)


def segments(sql: Connection) -> int:
    ((number,),) = sql.execute("SELECT count(*) FROM penstock.segments").fetchall()
    return int(number)


@pytest.fixture(scope="module")
def numbers() -> "st.SearchStrategy[int] | object":
    return iter(range(1_000_000))


@relaxed
@given(
    pushed=batches | one_by_one, rounds=st.integers(1, 3), compression=st.sampled_from(["on", "off"]), data=st.data()
)
def test_merged_messages_keep_ids_times_keys_headers_and_order(
    client: Client,
    sql: Connection,
    numbers: "object",
    pushed: list[list[Message]],
    rounds: int,
    compression: str,
    data: st.DataObject,
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
    for message in before:
        assert client.get(message.id) == message
    shown = sql.execute(
        "SELECT id, payload, key, created_at FROM penstock.messages WHERE queue_name = %s ORDER BY message_offset",
        (queue,),
    ).fetchall()
    assert shown == [(message.id, message.value, message.key, message.timestamp) for message in before]
    low = data.draw(st.integers(0, len(before) - 1))
    high = data.draw(st.integers(low + 1, len(before)))
    assert client.read(queue, "p", low, high) == before[low:high]
    read = sql.execute("SELECT id, created_at FROM penstock.read(%s, 'p', %s, %s)", (queue, low, high)).fetchall()
    assert read == [(message.id, message.timestamp) for message in before[low:high]]
    found = client.read_arrow(queue, "p", low, high).column("timestamp").to_pylist()
    assert found == [message.timestamp for message in before[low:high]]


def test_messages_pushed_one_at_a_time_become_one_segment_and_the_newest(client: Client, sql: Connection) -> None:
    for number in range(20):
        client.push("q", number)
    (done,) = list(client.maintain(min_segments=10))
    assert done.merged_segments == 19
    assert segments(sql) == 2
    assert gapless(sql)


def singles(sql: Connection, number: int) -> None:
    """Push so many messages one at a time."""
    sql.execute(
        "SELECT count(*) FROM generate_series(1, %s) n, penstock.push_segment('q', '0', 1, n::text::bytea,"
        " penstock.int32_pack(length(n::text)))",
        (number,),
    )


def test_a_backlog_becomes_several_segments_in_several_transactions(client: Client, sql: Connection) -> None:
    singles(sql, 20_101)
    client.push("q", 1, partition="other")
    done = list(client.maintain())
    assert [(chunk.visited, chunk.merged_segments) for chunk in done] == [(1, 20_000), (2, 100)]
    counts = "SELECT count FROM penstock.segments ORDER BY partition_id, base_offset"
    assert [count for (count,) in sql.execute(counts)] == [10_000, 10_000, 100, 1, 1]
    assert gapless(sql)


def test_what_lies_below_a_batch_is_merged_too(client: Client, sql: Connection) -> None:
    batch = [b"x"] * 100
    for size in (70, 3, 80):
        singles(sql, size)
        client.push("q", batch, partition="0")
    (done,) = list(client.maintain())
    assert done.merged_segments == 150
    assert [count for (count,) in sql.execute("SELECT count FROM penstock.segments ORDER BY base_offset")] == [
        *(70, 100, 1, 1, 1, 100, 80, 100)
    ]


def test_what_was_looked_at_long_ago_is_not_looked_at_again(client: Client, sql: Connection) -> None:
    singles(sql, 70)
    client.push("q", [b"x"] * 100, partition="0")
    singles(sql, 70)
    sql.execute("UPDATE penstock.segments SET created_at = created_at - interval '1 hour'")
    list(client.maintain(min_segments=1000))
    singles(sql, 1)
    (done,) = list(client.maintain())
    assert done.merged_segments == 70
    sql.execute("DELETE FROM penstock.maintenance")
    assert next(client.maintain()).merged_segments == 70
    assert gapless(sql)


def test_a_pass_is_noted_when_it_has_come_to_its_end(client: Client, sql: Connection) -> None:
    for partition in range(3):
        client.push("q", 1, partition=str(partition))
    began = "SELECT looked_at = began_at, looked_at > '-infinity' FROM penstock.maintenance"
    ((after,),) = sql.execute("SELECT next_partition FROM penstock.maintain(0, 2)").fetchall()
    assert sql.execute(began).fetchall() == [(False, False)]
    assert sql.execute("SELECT next_partition FROM penstock.maintain(%s, 2)", (after,)).fetchall() == [(None,)]
    assert sql.execute(began).fetchall() == [(True, True)]


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


def pairs(sql: Connection, number: int) -> None:
    """Push so many messages two at a time."""
    sql.execute(
        "SELECT count(*) FROM generate_series(2, %s, 2) n, penstock.push_segment('q', '0', 2,"
        " right('0' || n, 2)::bytea, penstock.int32_pack(1) || penstock.int32_pack(2))",
        (number,),
    )


@pytest.mark.parametrize(("fill", "skip"), [(singles, 0), (pairs, 1)])
def test_whoever_takes_one_message_of_thousands_gets_one_time(
    client: Client, sql: Connection, fill: Callable[[Connection, int], None], skip: int
) -> None:
    fill(sql, 2000)
    list(client.maintain())
    sent = sql.execute(
        "SELECT run_skip, cardinality(run_counts), cardinality(run_times)"
        " FROM penstock.partitions p, penstock.segment_slices(p.partition_id, 1001, 1002)"
    ).fetchall()
    assert sent == [(skip, 1, 1)]


def test_a_function_of_somebody_elses_is_not_called_by_whoever_reads(fresh: Connections) -> None:
    sql = fresh.open(autocommit=True)
    for kind in ("integer", "timestamptz"):
        sql.execute(
            f"CREATE FUNCTION public.array_send({kind}[]) RETURNS bytea LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE EXCEPTION 'called by %', current_user; END $$".encode()
        )
    push(sql)
    assert len(run(sql, Read(Place("q", "p"), max_bytes=1 << 20)).slices) == 1


def test_reading_by_sql_takes_as_long_per_message_as_from_a_batch(client: Client, sql: Connection) -> None:
    singles(sql, 3000)
    client.push("q", [b"x"] * 3000, partition="batch")
    list(client.maintain())

    def seconds(partition: str) -> float:
        began = perf_counter()
        assert sql.execute("SELECT count(*) FROM penstock.read('q', %s)", (partition,)).fetchall() == [(3000,)]
        return perf_counter() - began

    # Looking each time up among all of them took a hundred times as long.
    assert seconds("0") < 10 * seconds("batch")


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


def test_maintenance_waits_for_no_push_from_a_higher_level_and_comes_again(
    connections: Connections, sql: Connection
) -> None:
    sql.execute("SELECT penstock.create_queue('q', %s)", ('{"retention_time": 0.001}',))
    push(sql), push(sql)
    caller = connections.open()
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    push(caller)
    push(sql, "other"), push(sql, "other")
    maintain = "SELECT visited, dropped_messages, next_partition FROM penstock.maintain()"

    maintaining = Running(connections.open(autocommit=True), maintain)

    assert maintaining.rows() == [(2, 2, None)]
    assert sql.execute("SELECT looked_at::text FROM penstock.maintenance").fetchall() == [("-infinity",)]
    caller.commit()
    assert sql.execute(maintain).fetchall() == [(2, 3, None)]
    assert gapless(sql)
