"""Callers give what they have: a timedelta, a number or UUID as a name, a model as a message."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from penstock import InvalidInput, Message

ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


@dataclass
class Point:
    x: int
    y: float


class ReadyCursor(msgspec.Struct):
    ends: list[Point]


class Model:
    """What pydantic's models have in common."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self._values

    def model_dump_json(self) -> str:
        return msgspec.json.encode(self._values).decode()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        (ReadyCursor([Point(1, 2)]), {"ends": [{"x": 1, "y": 2}]}),
        (Model(a=1, b=[None]), {"a": 1, "b": [None]}),
        ({"inside": [Model(a=1)]}, {"inside": [{"a": 1}]}),
    ],
)
def test_models_are_stored_as_json(api: Any, value: Any, stored: Any) -> None:
    api.push("q", value)
    api.push("q", [Message(value), value])
    assert [message.json() for message in api.read("q", "0")] == [stored] * 3


@pytest.mark.parametrize("value", [Model(x=float("nan")), Point(1, float("inf")), object(), {"a": object()}])
def test_what_json_cannot_hold_is_refused(api: Any, value: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be stored as JSON"):
        api.push("q", value)
    assert api.queues() == []


@pytest.mark.parametrize("name", [7, ID])
def test_numbers_and_uuids_are_names_of_partitions_and_keys(api: Any, name: Any) -> None:
    api.push("q", 1, partition=name, key=name)
    api.push_many("q", [(name, 2), Message(3, key=name, partition=name)])
    api.push("q", 4, partition=name, delay=timedelta(0))
    with api.transaction() as tx:
        tx.push("q", 5, partition=name, key=name)
    batch = api.pop("q", "g", partition=name)
    assert [(message.json(), message.partition) for message in batch.messages[:3]] == [
        (n, str(name)) for n in (1, 2, 3)
    ]
    assert {message.key for message in batch} == {None, str(name)}
    batch.ack()
    assert [message.partition for message in api.read("q", name, limit=1)] == [str(name)]
    assert [partition.name for partition in api.partitions("q", name)] == [str(name)]
    assert api.push("q", 6, key=name).partition == api.push("q", 6, key=str(name)).partition


def test_lengths_of_time_are_seconds_or_a_timedelta(api: Any) -> None:
    minute = timedelta(minutes=1)
    assert api.configure("q", lease_time=minute, retention_time=timedelta(days=7))["retention_time"] == 604800
    assert api.push("later", 1, delay=minute).scheduled is not None
    api.push("q", [1, 2])
    batch = api.pop("q", "g", lease=timedelta(hours=1), wait=timedelta(seconds=1))
    assert (batch.claims[0].lease_until - batch.messages[0].timestamp) > timedelta(minutes=50)
    batch.renew(minute)
    assert (batch.claims[0].lease_until - batch.messages[0].timestamp) < timedelta(minutes=50)
    assert batch.nack(delay=minute) == ["retry"]
    assert api.pop("q", "g", wait=timedelta(milliseconds=1)) is None
    assert list(api.consume("q", "g", idle_timeout=timedelta(0), lease=minute)) == []
    with pytest.raises(InvalidInput, match=r"delay is .*but must be a number of seconds from 0"):
        api.push("q", 1, delay=-minute)


def test_what_is_no_name_is_refused_by_the_name_of_its_argument(api: Any) -> None:
    for call, argument in (
        (lambda: api.push(7, 1), "queue"),
        (lambda: api.push("q", 1, partition=b"p"), "partition"),
        (lambda: api.push("q", 1, partition=True), "partition"),
        (lambda: api.pop("q", 7), "group"),
        (lambda: api.pop("q", "g", partition=1.5), "partition"),
        (lambda: api.lag("q", None), "group"),
        (lambda: api.push("q", 1, dedupe_id="a\0b"), "dedupe_id"),
    ):
        with pytest.raises(InvalidInput, match=rf"^{argument} must"):
            call()  # type: ignore[no-untyped-call]
