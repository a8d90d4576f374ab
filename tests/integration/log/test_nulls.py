"""Null values in SQL: every way in packs them, every way out shows them, and nothing that moves segments loses them."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from databases import Connection
from penstock import Client, Message

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.none() | st.binary(max_size=5)
batches = st.lists(st.lists(values, min_size=1, max_size=6), min_size=1, max_size=5)
MIXED = [b"a", None, b"", None]


@pytest.fixture(scope="module")
def numbers() -> object:
    return iter(range(1_000_000))


def ends(sql: Connection) -> list[bytes]:
    return [packed for (packed,) in sql.execute("SELECT ends FROM penstock.segments ORDER BY base_offset")]


def payloads(sql: Connection, query: str, *parameters: object) -> list[bytes | None]:
    return [payload for (payload,) in sql.execute(query.encode(), parameters)]


@relaxed
@given(pushed=batches, merged=st.booleans(), data=st.data())
def test_every_slice_of_what_was_pushed_has_its_null_values(
    client: Client,
    sql: Connection,
    numbers: "object",
    pushed: list[list[bytes | None]],
    merged: bool,
    data: st.DataObject,
) -> None:
    queue = f"q{next(numbers)}"  # type: ignore[call-overload]
    for nth, batch in enumerate(pushed):
        if nth % 2:
            sql.execute("SELECT count(*) FROM penstock.push(%s, %s::bytea[], 'p')", (queue, batch))
        else:
            client.push(queue, batch, partition="p")
    if merged:
        list(client.maintain(min_segments=2))
    everything = [value for batch in pushed for value in batch]
    low = data.draw(st.integers(0, len(everything) - 1))
    high = data.draw(st.integers(low + 1, len(everything)))
    expected = everything[low:high]
    limit = data.draw(st.integers(1, len(expected)))

    assert [message.value for message in client.read(queue, "p", low, high)] == expected
    assert [message.value for message in client.read(queue, "p", low, high, limit=limit)] == expected[:limit]
    assert client.read_arrow(queue, "p", low, high).column("value").to_pylist() == expected
    assert payloads(sql, "SELECT payload FROM penstock.read(%s, 'p', %s, %s)", queue, low, high) == expected
    shown = "SELECT payload FROM penstock.messages WHERE queue_name = %s ORDER BY message_offset"
    assert payloads(sql, shown, queue) == everything


def test_a_segment_without_null_values_is_packed_as_ever(client: Client, sql: Connection) -> None:
    client.push("q", [b"ab", b""], partition="p")
    sql.execute("SELECT count(*) FROM penstock.push('q', ARRAY['ab', '']::bytea[], 'p')")
    assert ends(sql) == [struct.pack("<2i", 2, 2)] * 2


def test_a_byte_per_message_after_the_ends_says_which_values_are_null(client: Client, sql: Connection) -> None:
    client.push("q", MIXED, partition="p")
    sql.execute("SELECT count(*) FROM penstock.push('q', %s::bytea[], 'p')", (MIXED,))
    assert ends(sql) == [struct.pack("<4i4B", 1, 1, 1, 1, 0, 1, 0, 1)] * 2


def test_only_the_segments_that_have_null_values_pay_for_them(client: Client, sql: Connection) -> None:
    sql.execute(
        "SELECT count(*) FROM penstock.push('q', ARRAY[repeat('x', 1048576)::bytea, NULL, 'y'], 'p')",
    )
    assert [len(packed) for packed in ends(sql)] == [5 * 3]
    client.push("r", [b"x" * 1_048_576, None, b"y" * 1_048_576, b"z"], partition="p")
    sizes = sql.execute(
        "SELECT s.count, octet_length(s.ends) FROM penstock.segments s JOIN penstock.partitions p USING (partition_id)"
        " JOIN penstock.queues q USING (queue_id) WHERE q.name = 'r' ORDER BY s.base_offset"
    ).fetchall()
    assert sizes == [(2, 10), (1, 4), (1, 4)]


@pytest.mark.parametrize("flags", [b"\0", b"\0\1\0", b"\2\0", b"\0\xff"])
def test_null_flags_that_are_not_one_or_zero_for_each_message_are_refused(sql: Connection, flags: bytes) -> None:
    packed = struct.pack("<2i", 1, 1) + flags
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute("SELECT penstock.push_segment('q', 'p', 2, 'a'::bytea, %b)", (packed,))
    ((stage,),) = sql.execute("SELECT penstock.begin_stage('w', 'r', 0)").fetchall()
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute(
            "SELECT penstock.stage_segments(%s, 0, '{q}', '{p}', '{2}', 'a'::bytea, %b::bytea)", (stage, packed)
        )


def test_staged_segments_keep_their_null_values(client: Client, sql: Connection) -> None:
    staged: list[list[bytes | None]] = [[b"a", None], [b"b"], [None, None, b"cc"]]
    packed = b"".join(
        struct.pack("<i", sum(len(value or b"") for value in segment[: nth + 1]))
        for segment in staged
        for nth in range(len(segment))
    )
    everything = [value for segment in staged for value in segment]
    ((stage,),) = sql.execute("SELECT penstock.begin_stage('w', 'r', 0)").fetchall()
    sql.execute(
        "SELECT penstock.stage_segments(%s, 0, '{q,q,q}', '{p,p,p}', '{2,1,3}', %b::bytea, %b::bytea)",
        (stage, b"".join(value or b"" for value in everything), packed + bytes(value is None for value in everything)),
    )
    sql.execute("SELECT penstock.publish_stages('w', 'r', 0, ARRAY[%s::bigint], '{6}')", (stage,))
    assert [message.value for message in client.read("q", "p")] == everything
    assert [len(packed) for packed in ends(sql)] == [10, 4, 15]
    assert [check for check in client.verify() if check.violations] == []


def test_push_json_tells_sql_s_null_from_json_s(sql: Connection) -> None:
    sql.execute("SELECT penstock.push_json('q', NULL, 'p'), penstock.push_json('q', 'null', 'p')")
    assert payloads(sql, "SELECT payload FROM penstock.read('q', 'p')") == [None, b"null"]


def test_pop_and_get_show_null_values(client: Client, sql: Connection) -> None:
    pushed = client.push("q", MIXED, partition="p")
    assert payloads(sql, "SELECT payload FROM penstock.pop('q', 'g')") == MIXED
    assert [payloads(sql, "SELECT payload FROM penstock.get(%s)", one) for one in pushed.ids] == [[v] for v in MIXED]


def test_pop_batch_tells_a_null_value_from_json_s_null(client: Client, sql: Connection) -> None:
    client.push("q", [None, b"null", b" null", 1], partition="p")
    ((answer,),) = sql.execute(
        """SELECT penstock.pop_batch('[{"request_id": "a", "queue_name": "q", "batch_size": 9}]')"""
    ).fetchall()
    told = [
        {name: said for name, said in message.items() if name.startswith("payload")}
        for message in answer["a"]["messages"]
    ]
    assert told == [{"payload": None}, {"payloadText": "null"}, {"payloadText": " null"}, {"payload": 1}]


def test_a_null_value_that_kills_its_workers_becomes_a_dead_letter_of_the_sweep(
    client: Client, sql: Connection
) -> None:
    client.create("q", max_attempts=1)
    client.push("q", [Message(None, key="k")], partition="p")
    assert client.pop("q", "g") is not None
    sql.execute("UPDATE penstock.journal SET due_at = clock_timestamp() - interval '1 day' WHERE state = 'c'")
    client.sweep()
    assert [(letter.value, letter.key) for letter in client.dead_letters("q")] == [(None, "k")]
    sql.execute("SELECT penstock.redrive('q')")
    assert payloads(sql, "SELECT payload FROM penstock.pop('q', 'g')") == [None]


def test_purge_and_retention_drop_null_values(client: Client, sql: Connection) -> None:
    client.push("q", MIXED, partition="p")
    assert client.purge("q") == len(MIXED)
    client.push("q", [None], partition="p")
    assert [(message.offset, message.value) for message in client.read("q", "p")] == [(4, None)]
    assert [check for check in client.verify() if check.violations] == []
