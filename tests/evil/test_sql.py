"""SQL: whatever is given is refused with a documented SQLSTATE and changes nothing, or comes back as it was."""

from itertools import product

import msgspec

from .corpus import BYTES, JSON_TEXTS, NUMBERS, TEXTS, TIME_TEXTS
from .ways import Penstock, Told

PUSH_PACKED = (
    "SELECT penstock.push_segments(ARRAY['q'], ARRAY['p'], ARRAY[1], ARRAY['x'::bytea], ARRAY['\\x01000000'::bytea],"
    " keys => ARRAY[%s::bytea], key_ends => ARRAY[%s::bytea],"
    " headers => ARRAY[%s::bytea], header_ends => ARRAY[%s::bytea])"
)
TEXT_STATEMENTS = {
    "queue": "SELECT penstock.push(%s, ARRAY['x'::bytea], 'p')",
    "partition": "SELECT penstock.push('q', ARRAY['x'::bytea], %s)",
    "key": "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', ARRAY[%s])",
    "header": "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', headers => ARRAY[jsonb_build_object('h', %s::text)])",
    "dedupe id": "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', dedupe_ids => ARRAY[%s])",
    "JSON": "SELECT penstock.push_json('q', %s::text::jsonb, 'p')",
    "headers": "SELECT penstock.push_json('q', '1', 'p', headers => %s::text::jsonb)",
    "group": "SELECT * FROM penstock.pop('q', %s)",
    "group's queue": "SELECT penstock.create_group(%s, 'g')",
    "new group": "SELECT penstock.create_group('q', %s)",
    "mode": "SELECT penstock.create_group('q', 'g', mode => %s)",
    "subscription": "SELECT penstock.create_group('q', 'g', subscription => %s)",
    "settings": "SELECT penstock.configure_queue('q', %s::text::jsonb)",
    "a group's settings": "SELECT penstock.configure_group('q', 'out', %s::text::jsonb)",
    "read": "SELECT * FROM penstock.read('q', %s)",
    "lag": "SELECT penstock.lag('q', %s)",
    "id": "SELECT * FROM penstock.get(%s::text::uuid)",
    "state": "SELECT * FROM penstock.message_state(%s::text::uuid)",
    "group of a result": "SELECT * FROM penstock.get_result(gen_random_uuid(), %s)",
    "group to cancel for": "SELECT penstock.cancel_messages(ARRAY[gen_random_uuid()], %s)",
    "step": "SELECT penstock.save_step(1, 1, gen_random_uuid(), 0, %s, '1')",
    "result of a step": "SELECT penstock.save_step(1, 1, gen_random_uuid(), 0, 'x', %s::text::json)",
    "note": "SELECT penstock.note_items('{1}', '{1}', ARRAY[gen_random_uuid()], '{0}', '{1}', ARRAY[%s], '{null}')",
    "outcome": (
        "SELECT * FROM penstock.settle_items('{1}', '{1}', ARRAY[gen_random_uuid()], item_claims => '{1}',"
        " item_offsets => '{0}', outcomes => ARRAY[%s])"
    ),
    "error": (
        "SELECT * FROM penstock.settle_items('{1}', '{1}', ARRAY[gen_random_uuid()], item_claims => '{1}',"
        " item_offsets => '{0}', outcomes => '{dead}', errors => ARRAY[%s])"
    ),
    "delete": "SELECT penstock.delete_partition('q', %s)",
}
TIME_STATEMENTS = {
    "at": "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', at => %s::text::timestamptz)",
    "read": "SELECT * FROM penstock.read('q', 'p', start_time => %s::text::timestamptz)",
    "stop": "SELECT * FROM penstock.read('q', 'p', stop_time => %s::text::timestamptz)",
    "subscription": (
        "SELECT penstock.create_group('q', 't' || %s, subscription => 'time', from_time => %s::text::timestamptz)"
    ),
}
NUMBER_STATEMENTS = {
    "delay": "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', delay => %s::text::float8)",
    "offset": "SELECT * FROM penstock.read('q', 'p', %s::text::bigint)",
    "stop": "SELECT * FROM penstock.read('q', 'p', 0, %s::text::bigint)",
    "max_messages": "SELECT * FROM penstock.pop('q', 'out', max_messages => %s::text::integer)",
    "lease": "SELECT * FROM penstock.pop('q', 'out', lease_time => %s::text::float8)",
    "progress": (
        "SELECT penstock.note_items('{1}', '{1}', ARRAY[gen_random_uuid()], '{0}', ARRAY[%s::text::float8], '{x}',"
        " '{null}')"
    ),
    "wait": (
        "SELECT * FROM penstock.settle_items('{1}', '{1}', ARRAY[gen_random_uuid()], item_claims => '{1}',"
        " item_offsets => '{0}', outcomes => '{snoozed}', waits => ARRAY[%s::text::float8])"
    ),
    "start": (
        "SELECT * FROM penstock.settle_items('{1}', '{1}', ARRAY[gen_random_uuid()], done_claims => '{1}',"
        " done_starts => ARRAY[%s::text::bigint], done_stops => '{5}')"
    ),
    "keep_for": (
        "SELECT * FROM penstock.settle_items('{1}', '{1}', ARRAY[gen_random_uuid()], '{t}', result_claims => '{1}',"
        " result_offsets => '{0}', result_states => '{raised}', keep_fors => ARRAY[%s::text::float8])"
    ),
    "priority": "SELECT penstock.configure_partition('q', 'p', %s::text::integer)",
    "setting": "SELECT penstock.configure_queue('q', jsonb_build_object('lease_time', %s::text::numeric))",
}


def ends(value: bytes | None) -> bytes | None:
    return None if value is None else len(value).to_bytes(4, "little")


def test_any_text_time_and_number_is_taken_or_refused(penstock: Penstock) -> None:
    for (place, statement), (name, text) in product(TEXT_STATEMENTS.items(), TEXTS.items()):
        penstock.refused_by_sql(f"{name} as {place}", statement, text)
    for (place, statement), (name, text) in product(TIME_STATEMENTS.items(), TIME_TEXTS.items()):
        penstock.refused_by_sql(f"{name} as {place}", statement, *[text] * statement.count("%s"))
    for waiting in penstock.client.scheduled("q", limit=1000):
        penstock.client.cancel(waiting.scheduled_id)
    for (place, statement), (name, number) in product(NUMBER_STATEMENTS.items(), NUMBERS.items()):
        penstock.refused_by_sql(f"{name} as {place}", statement, str(number))
    penstock.sound()


def test_any_text_that_is_taken_comes_back(penstock: Penstock) -> None:
    for name, text in TEXTS.items():
        statement = (
            "SELECT penstock.push('q', ARRAY['x'::bytea], 'p', ARRAY[%s],"
            " ARRAY[jsonb_build_object(%s::text, %s::text)])"
        )
        if not penstock.refused_by_sql(name, statement, text, text, text):
            penstock.comes_back(name, "q", "p", Told(text, b"x", ((text, text),)))
    penstock.sound()


def test_any_packed_key_and_headers_are_refused_or_come_back(penstock: Penstock) -> None:
    """The form that clients and Spark send: bytes that must be text."""
    for name, key in BYTES.items():
        if not penstock.refused_by_sql(f"{name} as key", PUSH_PACKED, key, ends(key), None, None):
            penstock.comes_back(f"{name} as key", "q", "p", Told(key.decode() or None, b"x", ()))
    for name, headers in {
        **BYTES,
        **JSON_TEXTS,
        "no object": b"1",
        "no text": b'{"a": 1}',
        "a null": b'{"a":null}',
    }.items():
        if not penstock.refused_by_sql(f"{name} as headers", PUSH_PACKED, None, None, headers, ends(headers)):
            expected = tuple(sorted((msgspec.json.decode(headers) if headers else {}).items()))
            penstock.comes_back(f"{name} as headers", "q", "p", Told(None, b"x", expected))
    penstock.sound()


def test_any_json_that_is_taken_is_the_json_that_comes_back(penstock: Penstock) -> None:
    for name, text in JSON_TEXTS.items():
        shown = text.decode("utf-8", "replace")
        penstock.refused_by_sql(f"{name} as JSON", "SELECT penstock.push_json('q', %s::text::jsonb, 'p')", shown)
        penstock.refused_by_sql(f"{name} as settings", "SELECT penstock.configure_queue('q', %s::text::jsonb)", shown)
    penstock.sound()


def test_ends_that_do_not_fit_are_refused(penstock: Penstock) -> None:
    statement = "SELECT penstock.push_segments(ARRAY['q'], ARRAY['p'], ARRAY[%s], ARRAY[%s::bytea], ARRAY[%s::bytea])"
    for name, count, body, packed in [
        ("no messages", 0, b"", b""),
        ("fewer than none", -1, b"", b""),
        ("too many", 1 << 30, b"x", ends(b"x")),
        ("an end past the end", 1, b"x", (5).to_bytes(4, "little")),
        ("half an end", 1, b"x", b"\x01\0"),
        ("no ends", 1, b"x", b""),
    ]:
        assert penstock.refused_by_sql(name, statement, count, body, packed), f"{name} was taken"
    penstock.sound()


def test_ends_that_lie_hold_up_nobody(penstock: Penstock) -> None:
    """What is not looked at for each message when it comes in must not stop who reads it, or a timer."""
    two = "SELECT penstock.push_segments(ARRAY['q'], ARRAY['p'], ARRAY[2], ARRAY['ab'::bytea], ARRAY[%s::bytea])"
    keys = (
        "SELECT penstock.push_segments(ARRAY['q'], ARRAY['p'], ARRAY[2], ARRAY['ab'::bytea],"
        " ARRAY['\\x0100000002000000'::bytea], keys => ARRAY[%s::bytea], key_ends => ARRAY[%s::bytea])"
    )
    penstock.refused_by_sql("a negative end", two, b"\xff\xff\xff\xff\x02\0\0\0")
    penstock.refused_by_sql("ends that go back", two, b"\x05\0\0\0\x02\0\0\0")
    penstock.refused_by_sql("half a character", keys, "ü".encode(), b"\x01\0\0\0\x02\0\0\0")
    penstock.client.push("q", b"last", partition="p")
    penstock.sql.execute("SELECT * FROM penstock.read('q', 'p')")
    assert penstock.client.read("q", "p")[-1].value == b"last"
    for _ in range(10):
        penstock.client.pop("q", "out", max_messages=1, lease=0.001)
        penstock.sql.execute("UPDATE penstock.journal SET due_at = now() - interval '1 second' WHERE due_at > now()")
        assert penstock.client.sweep() is not None
    assert penstock.client.lag("q", "out") == 0
    # What was taken is damaged from the beginning, and that is all that verify finds.
    assert {check.name for check in penstock.client.verify() if check.violations} <= {"segments_of_wrong_shape"}
    assert not penstock.problems
