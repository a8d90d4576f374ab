"""Keys and headers are checked where they come in; readers show any bytes, since older versions stored them."""

import struct
from typing import Any

import psycopg
import pytest

from databases import Connection
from penstock import Client, InvalidInput, Message
from penstock.broker.decoding import headers_problem, key_problem
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.staging import BeginStage, StageSegments
from penstock.broker.packing import MAX_SEGMENT_BYTES, pack, pack_values
from penstock.broker.staging import StagedPart
from penstock.postgres.statements.call import call_for

BAD_KEYS = [b"\xff", b"a\0b", b"\xed\xa0\x80", b"caf\xc3"]
BAD_HEADERS = [
    b'{"a": 1',
    b'{"a": 1}',
    b'{"a": null}',
    b'{"trace":"a\\u0000b"}',
    b'{"trace":"\\udc00"}',
    b'{"a": {"b": "c"}}',
    b'["a"]',
    b'"a"',
    b"null",
    b"\xff",
    b'{"a":"\xff"}',
    b"[" * 50000,
]
GOOD_HEADERS = [b'{"a":"}{"}', b' {"a": "b"}\n', b"{}", b'{"\\"}{":"\\\\u0000"}', '{"ä":"😀"}'.encode()]
GOOD_KEYS = [b"a", "Zoë😀".encode(), b"\\x00"]


def ends(*columns: bytes) -> bytes:
    total, packed = 0, b""
    for column in columns:
        total += len(column)
        packed += total.to_bytes(4, "little")
    return packed


def columns(keys: list[bytes] | None, headers: list[bytes] | None) -> list[bytes | None]:
    packed: list[bytes | None] = []
    for given in (keys, headers):
        packed += [None, None] if given is None else [b"".join(given), ends(*given)]
    return packed


def push_segment(sql: Connection, keys: list[bytes] | None, headers: list[bytes] | None) -> None:
    count = len(keys or headers or [])
    values = (count, b"v" * count, ends(*[b"v"] * count), *columns(keys, headers))
    sql.execute(
        "SELECT penstock.push_segment('q', 'p', %s::integer, %b::bytea, %b::bytea, %b::bytea, %b::bytea, %b::bytea,"
        " %b::bytea)",
        values,
    )


def push_segments(
    sql: Connection, keys: list[bytes] | None, headers: list[bytes] | None, delay: float | None = None
) -> None:
    count = len(keys or headers or [])
    lists = [None if part is None else [part] for part in columns(keys, headers)]
    function = "push_segments" if delay is None else "push_with_options"
    arguments = ", ".join(["%b::bytea[]"] * 6) + ("" if delay is None else f", ARRAY[{delay}]::float8[]")
    sql.execute(
        f"SELECT penstock.{function}(ARRAY['q'], ARRAY['p'], ARRAY[{count}], {arguments})".encode(),
        ([b"v" * count], [ends(*[b"v"] * count)], *lists),
    )


def push_later(sql: Connection, keys: list[bytes] | None, headers: list[bytes] | None) -> None:
    push_segments(sql, keys, headers, 0.0)


def stage(sql: Connection, keys: list[bytes] | None, headers: list[bytes] | None) -> None:
    """Two segments: the first with one message that is well."""
    count = len(keys or headers or [])
    packed = [
        None if given is None else b"".join((good, *given)) for given, good in ((keys, b"k"), (headers, b'{"h":"1"}'))
    ]
    packed_ends = [
        None if given is None else ends(good) + ends(*given) for given, good in ((keys, b"k"), (headers, b'{"h":"1"}'))
    ]
    with sql.transaction():
        stage_id = call(sql, BeginStage("w", "r", 0))
        part = StagedPart(
            ["q", "q"], ["p", "p"], [1, count], b"v" * (count + 1), ends(b"v") + ends(*[b"v"] * count),
            packed[0], packed_ends[0], packed[1], packed_ends[1],
        )  # fmt: skip
        call(sql, StageSegments(stage_id, 0, part))


def call(sql: Connection, made: Operation[Any]) -> Any:
    wanted = call_for(made)
    return wanted.parse(sql.execute(wanted.sql.encode(), wanted.parameters, binary=True).fetchall())


WAYS_IN = [push_segment, push_segments, push_later, stage]


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_a_key_that_is_no_text_is_refused_and_changes_nothing(sql: Connection, way: Any, key: bytes) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the key of message 2 is not UTF-8"):
        way(sql, [b"good", key, b"good"], None)
    assert sql.execute("SELECT count(*) FROM penstock.segments").fetchall() == [(0,)]
    assert sql.execute("SELECT count(*) FROM penstock.scheduled").fetchall() == [(0,)]
    assert key_problem(key) is not None


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("headers", BAD_HEADERS, ids=lambda headers: repr(headers[:20]))
def test_headers_that_are_no_object_of_strings_are_refused_and_change_nothing(
    sql: Connection, way: Any, headers: bytes
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the headers of message 2 are not"):
        way(sql, None, [b'{"a":"b"}', headers])
    assert sql.execute("SELECT count(*) FROM penstock.segments").fetchall() == [(0,)]
    assert headers_problem(headers) is not None


@pytest.mark.parametrize("way", WAYS_IN)
def test_all_that_is_text_is_taken(sql: Connection, way: Any) -> None:
    count = len(GOOD_HEADERS)
    way(sql, (GOOD_KEYS * 2)[:count], GOOD_HEADERS)
    way(sql, [b"", *GOOD_KEYS], [b"", b'{"a":"b"}', b"", b""])
    assert not any(map(key_problem, GOOD_KEYS))
    assert not any(map(headers_problem, GOOD_HEADERS))


@pytest.mark.parametrize("way", [push_segment, stage])
def test_a_segment_of_too_many_bytes_is_refused(sql: Connection, way: Any) -> None:
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        way(sql, [b"k" * (65 << 20)], None)


def test_a_client_says_which_input_is_wrong(client: Client) -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        client.push("q", 1, headers={"a": "b\0"})


def test_keys_and_headers_count_towards_the_size_of_a_segment() -> None:
    text = "x" * (MAX_SEGMENT_BYTES // 4)
    messages = [Message(b"v", key=str(number), headers={"a": text}) for number in range(9)]
    segments = pack(messages)
    assert sum(segment.count for segment in segments) == 9
    assert all(len(segment.headers or b"") <= MAX_SEGMENT_BYTES for segment in segments)
    alike = pack_values([b"v"] * 9, "k", {"a": text})
    assert sum(segment.count for segment in alike) == 9
    assert all(len(segment.headers or b"") <= MAX_SEGMENT_BYTES for segment in alike)


STORE = (
    "UPDATE penstock.segments SET keys = %s, key_ends = %s, headers = %s, header_ends = %s"
    " WHERE partition_id = (SELECT partition_id FROM penstock.partitions WHERE name = 'p')"
)
STORED: list[tuple[bytes, bytes]] = [
    (b"good", b'{"a":"b"}'),
    (b"\xff\\\0", b'{"a": 1'),
    (b"", b""),
    ("ö".encode(), b'{"a":"a\\u0000b"}'),
    (b"last", b"[" * 20000),
]
SHOWN: list[tuple[str | None, dict[str, str] | None]] = [
    ("good", {"a": "b"}),
    ("\\377\\\\\\000", {"penstock-undecoded": '{"a": 1'}),
    (None, None),
    ("ö", {"penstock-undecoded": '{"a":"a\\\\u0000b"}'}),
    ("last", {"penstock-undecoded": "[" * 20000}),
]


def store(sql: Connection, keys: list[bytes], headers: list[bytes]) -> None:
    """Put into the log what no way in takes."""
    push_segment(sql, [b"k"] * len(keys), None)
    sql.execute(STORE.encode(), (b"".join(keys), ends(*keys), b"".join(headers), ends(*headers)))


READERS = {
    "read": "SELECT key, headers FROM penstock.read('q', 'p')",
    "a part": "SELECT key, headers FROM penstock.read('q', 'p', 0, 4)"
    " UNION ALL SELECT key, headers FROM penstock.read('q', 'p', 4)",
    "the view": "SELECT key, headers FROM penstock.messages WHERE queue_name = 'q'",
    "pop": "SELECT key, headers FROM penstock.pop('q', 'g')",
    "get": "SELECT g.key, g.headers FROM penstock.messages m, penstock.get(m.id) g",
}


@pytest.mark.parametrize("reader", READERS)
def test_sql_shows_any_bytes(sql: Connection, reader: str) -> None:
    store(sql, *map(list, zip(*STORED, strict=True)))
    assert sql.execute(READERS[reader].encode()).fetchall() == SHOWN


def test_a_text_that_is_cut_in_the_middle_of_a_character_is_shown(sql: Connection) -> None:
    store(sql, [b"\xc3", b"\xb6"], [b'{"a":', b'"b"}'])
    shown = [
        ("\\303", {"penstock-undecoded": '{"a":'}),
        ("\\266", {"penstock-undecoded": '"b"}'}),
    ]
    assert sql.execute(READERS["read"].encode()).fetchall() == shown


def test_python_shows_what_sql_shows(sql: Connection, client: Client) -> None:
    store(sql, *map(list, zip(*STORED, strict=True)))
    assert [(message.key, message.headers) for message in client.read("q", "p")] == SHOWN
    batch = client.pop("q", "g")
    assert batch is not None
    assert [(message.key, message.headers) for message in batch.messages] == SHOWN


def test_arrow_shows_any_bytes(sql: Connection, client: Client) -> None:
    store(sql, [b"good", b"\xff", b""], [b'{"a": 1', b'{"a":"\xff"}', b""])
    table = client.read_arrow("q", "p")
    assert table["key"].to_pylist() == ["good", "\\377", None]
    assert table["headers"].to_pylist() == ['{"a": 1', '{"penstock-undecoded":"{\\"a\\":\\"\\\\377\\"}"}', None]


# Ends of segments that any producer can push, since only the last end is looked at; what their values are.
BROKEN_ENDS = {
    "over the end": ([2147483647, 3], b"vvv", [b"vvv", b""]),
    "before the beginning": ([-5, 3], b"vvv", [b"", b"vvv"]),
    "as far apart as can be": ([-2147483648, 2147483647, 3], b"vvv", [b"", b"vvv", b""]),
    "back": ([2, 1, 3], b"abc", [b"ab", b"", b"c"]),
    "back and over": ([2, 7, -1, 1, 3], b"abc", [b"ab", b"c", b"", b"", b""]),
}
PUSH_ENDS = "SELECT penstock.push_segment('q', %s, %s::integer, %b::bytea, %b::bytea)"


def push_ends(sql: Connection, ends: list[int], body: bytes, partition: str = "p") -> None:
    sql.execute(PUSH_ENDS.encode(), (partition, len(ends), body, struct.pack(f"<{len(ends)}i", *ends)))


@pytest.mark.parametrize("name", BROKEN_ENDS)
def test_broken_ends_are_read_the_same_by_sql_python_and_arrow(sql: Connection, client: Client, name: str) -> None:
    ends, body, values = BROKEN_ENDS[name]
    sql.execute("SELECT penstock.create_group('q', 'g')")
    push_ends(sql, [3], b"new")
    push_ends(sql, ends, body)
    push_ends(sql, [3], b"old")
    whole = [b"new", *values, b"old"]

    assert [value for (value,) in sql.execute("SELECT payload FROM penstock.read('q', 'p')").fetchall()] == whole
    assert sql.execute("SELECT payload FROM penstock.messages ORDER BY message_offset").fetchall() == [
        (value,) for value in whole
    ]
    assert [message.value for message in client.read("q", "p")] == whole
    table = client.read_arrow("q", "p")
    table.validate(full=True)
    assert table["value"].to_pylist() == whole
    assert sql.execute("SELECT payload FROM penstock.pop('q', 'g')").fetchall() == [(value,) for value in whole]


@pytest.mark.parametrize("name", BROKEN_ENDS)
def test_a_part_of_broken_ends_is_read_the_same_by_sql_python_and_arrow(
    sql: Connection, client: Client, name: str
) -> None:
    ends, body, _ = BROKEN_ENDS[name]
    push_ends(sql, ends, body)
    for start in range(len(ends)):
        for stop in range(start + 1, len(ends) + 1):
            read = sql.execute("SELECT payload FROM penstock.read('q', 'p', %s, %s)", (start, stop)).fetchall()
            assert len(read) == stop - start
            assert [message.value for message in client.read("q", "p", start=start, stop=stop)] == [v for (v,) in read]
            table = client.read_arrow("q", "p", start=start, stop=stop)
            table.validate(full=True)
            assert table["value"].to_pylist() == [value for (value,) in read]


def test_broken_ends_of_keys_and_headers_are_read_the_same(sql: Connection, client: Client) -> None:
    packed = struct.pack("<3i", 2147483647, -7, 9)
    sql.execute(
        "SELECT penstock.push_segment('q', 'p', 3, 'abc'::bytea, %b::bytea, 'good keys'::bytea, %b::bytea,"
        " %b::bytea, %b::bytea)",
        (ends(b"a", b"b", b"c"), packed, b'{"a":"b"}', packed),
    )
    shown = [("good keys", {"a": "b"}), (None, None), (None, None)]
    assert sql.execute(READERS["read"].encode()).fetchall() == shown
    assert [(message.key, message.headers) for message in client.read("q", "p")] == shown
    table = client.read_arrow("q", "p")
    table.validate(full=True)
    assert table["key"].to_pylist() == ["good keys", None, None]
    assert table["headers"].to_pylist() == ['{"a":"b"}', None, None]


@pytest.mark.parametrize("name", BROKEN_ENDS)
def test_broken_ends_are_merged_as_they_are_read(sql: Connection, name: str) -> None:
    broken, body, values = BROKEN_ENDS[name]
    push_ends(sql, [3], b"new")
    push_ends(sql, broken, body)
    for _ in range(2):
        push_ends(sql, [3], b"old")
    ((_, merged),) = sql.execute("SELECT visited, merged_segments FROM penstock.maintain(min_segments => 2)").fetchall()
    assert merged == 3
    whole = [b"new", *values, b"old", b"old"]
    assert sql.execute("SELECT payload FROM penstock.read('q', 'p')").fetchall() == [(value,) for value in whole]


@pytest.mark.parametrize("name", BROKEN_ENDS)
def test_broken_ends_are_packed_anew_as_they_are_read(sql: Connection, name: str) -> None:
    broken, body, values = BROKEN_ENDS[name]
    packed = struct.pack(f"<{len(broken)}i", *broken)
    ((kept, kept_body, *_),) = sql.execute(
        "SELECT k.* FROM penstock.keep_messages(%s::integer, %b::bytea, %b::bytea, NULL, NULL, NULL, NULL, '{0}') k",
        (len(broken), body, packed),
    ).fetchall()
    assert (kept, kept_body) == (len(values) - 1, b"".join(values[1:]))
