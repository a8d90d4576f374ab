"""Null values in groups: they are delivered, fail, die and come again as others do."""

from typing import Any

import pytest

from penstock import Message

MIXED = [b"a", None, b"", None]

pytestmark = pytest.mark.usefixtures("sound")


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_pop_delivers_null_values(api: Any, mode: str) -> None:
    api.create_group("q", "g", mode=mode)
    api.push("q", [Message(value, key=f"k{n}") for n, value in enumerate(MIXED)], partition="p")
    batch = api.pop("q", "g", max_messages=3)
    assert [(message.value, message.key) for message in batch] == [(b"a", "k0"), (None, "k1"), (b"", "k2")]
    batch.ack()
    assert [message.value for message in api.pop("q", "g")] == [None]


def test_a_null_value_becomes_a_dead_letter_and_is_redriven_as_null(api: Any) -> None:
    api.create("q", max_attempts=1)
    api.push("q", None, partition="p", key="k", headers={"h": "1"})
    api.pop("q", "g").nack(error="no")
    (letter,) = api.dead_letters("q")
    assert (letter.value, letter.key) == (None, "k")
    assert api.redrive("q") == 1
    (message,) = api.pop("q", "g")
    assert (message.value, message.key, message.headers["h"]) == (None, "k", "1")
