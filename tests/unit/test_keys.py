"""What a grant allows, and what has the form of a key."""

import hmac
from datetime import UTC, datetime, timedelta

import pytest

from penstock.broker.keys import Grant, StoredKey, new_secret, parse_grants, read_key


@pytest.mark.parametrize(
    ("grant", "scope", "queue", "allowed"),
    [
        (Grant("push", "orders-*"), "push", "orders-eu", True),
        (Grant("push", "orders-*"), "push", "orders", False),
        (Grant("push", "orders-*"), "pop", "orders-eu", False),
        (Grant("push", "orders-*"), "push", None, False),
        (Grant("push", "*"), "push", None, True),
        (Grant("read", "*"), "admin", "q", False),
        (Grant("admin", "orders"), "read", "orders", True),
        (Grant("admin", "orders"), "read", None, False),
        (Grant("pop", "Orders"), "pop", "orders", False),
        (Grant("pop", "a?c"), "pop", "abc", True),
        (Grant("pop", "a[[]b]"), "pop", "a[b]", True),
        (Grant("pop", "a*"), "pop", "a\nb", True),
    ],
)
def test_a_grant_allows_its_scope_for_the_queues_of_its_pattern(
    grant: Grant, scope: str, queue: str | None, allowed: bool
) -> None:
    assert grant.allows(scope, queue) is allowed


def test_grants_are_read_as_they_are_written() -> None:
    assert parse_grants(["push", "pop:a:b", "push:*"]).texts() == ["push:*", "pop:a:b"]


def test_a_new_key_is_read_again_and_says_nothing_of_itself() -> None:
    made = new_secret()
    given = read_key(made.text)
    assert given is not None
    assert (given.key_id, given.hash) == (made.key_id, made.hash)
    assert made.text[-64:] not in repr(made)
    assert new_secret(made.key_id).text != made.text


@pytest.mark.parametrize("text", ["", "pstk_", "pstk_0123456789ab_", "x" * 100_000, "pstk_0123456789AB_" + "0" * 64])
def test_what_is_not_a_key_is_none(text: str) -> None:
    assert read_key(text) is None


def test_every_secret_is_compared_in_full_whether_it_is_right_or_wrong_or_was_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def count(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", count)
    now = datetime.now(UTC)
    right, old, wrong = bytes(32), bytes([1] * 32), bytes([2] * 32)
    for previous, until in ((None, None), (old, now + timedelta(1)), (old, now - timedelta(1))):
        stored = StoredKey("0" * 12, "k", right, previous, until, [], None, None, None)
        assert stored.matches(right, now)
        assert not stored.matches(wrong, now)
        assert stored.matches(old, now) is (until is not None and until > now)
    assert compared == [(32, 32)] * 18
