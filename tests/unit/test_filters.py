"""Filters of messages by their fields."""

from datetime import UTC, datetime

import pytest

from penstock.broker.messages import StoredMessage
from penstock.errors import InvalidInput
from penstock.operations.filters import parse

LARGE = 9_223_372_036_854_775_807
VALUE = (
    b'{"id": 9223372036854775807, "who": {"name": "Ann Smith", "a.b": 1}, "items": [{"n": 1.10}],'
    b' "ok": true, "no": null}'
)


def message(
    value: bytes | None = VALUE, key: str | None = "k 1", headers: dict[str, str] | None = None
) -> StoredMessage:
    return StoredMessage(value, 0, datetime.now(UTC), "q", "p", 1, key, headers or {"source": "web", "a.b": "c"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        f"id = {LARGE}",
        f"id>={LARGE}",
        f"id > {LARGE - 1} ok = true",
        'who.name = "Ann Smith"',
        "who.name ~ SMITH",
        'who."a.b" = 1',
        "items.0.n = 1.1",
        "items.0.n < 2",
        "no = null",
        "missing != 1",
        "items ~ 1.1",
        '@key = "k 1"',
        "@header.source=web",
        "@header.a.b = c",
        '"Ann Smith"',
        "Smith",
        "ok != false",
    ],
)
def test_a_filter_finds_what_it_says(text: str) -> None:
    assert parse(text).matches(message())


@pytest.mark.parametrize(
    "text",
    [
        f"id = {LARGE - 1}",
        f"id > {LARGE}",
        "ok = 1",
        'ok = "true" id = 1',
        "missing = 1",
        "missing < 1",
        "items.1.n = 1.1",
        "items.x = 1",
        "who.name ~ jones",
        "@key = k",
        "@header.none = 1",
        "Jones",
        "who.name > 5",
        "no ~ x",
    ],
)
def test_a_filter_leaves_out_the_rest(text: str) -> None:
    assert not parse(text).matches(message())


def test_what_is_no_json_has_no_fields_but_texts() -> None:
    assert parse("hello").matches(message(b"\xff hello"))
    assert not parse("a = 1").matches(message(b"\xff hello"))
    assert not parse("a = 1").matches(message(b"[" * 100_000))
    assert not parse("hello").matches(message(None))
    assert not parse("a = 1").matches(message(None, None))


def test_a_key_must_be_the_same() -> None:
    assert parse("", "k 1").matches(message())
    assert not parse("", "k").matches(message())


@pytest.mark.parametrize("text", ["a = = b", '"open', "a =", "x" * 1001])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="filter"):
        parse(text)


@pytest.mark.parametrize("value", [b'"\xff"', b"\xff\xfe", b"[" * 100_000, b"", None])
def test_a_value_that_is_no_json_has_no_fields(value: bytes | None) -> None:
    assert not parse("id = 1").matches(message(value))
    assert parse("id != 1").matches(message(value))
