"""What a push takes, what it returns, and what is then in the log."""

from typing import Any

import pytest

from penstock import Message
from penstock.client.pushes import partition_for_key


def test_a_pushed_value_is_read_back_as_json(api: Any) -> None:
    api.push("orders", {"id": 7})
    (message,) = api.read("orders", "0")
    assert message.json() == {"id": 7}
    assert message.value == b'{"id":7}'


@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"cd")])
def test_bytes_are_stored_as_they_are(api: Any, value: Any) -> None:
    api.push("raw", value)
    assert api.read("raw", "0")[0].value == bytes(value)


@pytest.mark.parametrize("value", [None, 0, "text", 1.5, True, {"a": [1, None]}])
def test_any_json_value_can_be_pushed(api: Any, value: Any) -> None:
    api.push("q", [value])
    assert api.read("q", "0")[0].json() == value


def test_the_result_says_where_the_messages_went(api: Any) -> None:
    first = api.push("q", [1, 2], partition="p")
    second = api.push("q", 3, partition="p")
    assert (first.queue, first.partition, first.first_offset, first.count) == ("q", "p", 0, 2)
    assert (second.first_offset, second.count) == (2, 1)
    assert first.partition_id == second.partition_id
    read = api.read("q", "p")
    assert [message.id for message in read] == first.ids + second.ids
    assert [message.timestamp for message in read] == [first.timestamp, first.timestamp, second.timestamp]


def test_a_list_and_a_tuple_are_batches(api: Any) -> None:
    assert api.push("q", [1, 2, 3]).count == 3
    assert api.push("q", (4, 5)).count == 2
    assert [message.json() for message in api.read("q", "0")] == [1, 2, 3, 4, 5]


def test_key_and_headers_are_kept(api: Any) -> None:
    api.push("q", b"x", partition="p", key="ann", headers={"trace": "ü1", "": ""})
    (message,) = api.read("q", "p")
    assert (message.key, message.headers) == ("ann", {"trace": "ü1", "": ""})


def test_what_a_message_says_itself_comes_before_the_calls_arguments(api: Any) -> None:
    own = Message(b"1", key="own", headers={"of": "its own"}, partition="p")
    api.push("q", [own, Message(b"2", partition="p")], key="shared", headers={"of": "the call"})
    first, second = api.read("q", "p")
    assert (first.key, first.headers) == ("own", {"of": "its own"})
    assert (second.key, second.headers) == ("shared", {"of": "the call"})


def test_a_message_can_be_pushed_on_to_another_queue(api: Any) -> None:
    api.push("from", b"x", partition="deep", key="k", headers={"h": "1"})
    api.push("to", api.read("from", "deep"))
    (message,) = api.read("to", "0")
    assert (message.value, message.key, message.headers, message.partition) == (b"x", "k", {"h": "1"}, "0")


def test_a_key_always_picks_the_same_partition(api: Any) -> None:
    api.create("q", spread=8)
    for key in ("ann", "bob", "ann", "ü", "bob"):
        assert api.push("q", 1, key=key).partition == partition_for_key(key, 8)


def test_a_batch_without_keys_stays_together(api: Any) -> None:
    api.create("q", spread=8)
    assert api.push("q", list(range(50))).count == 50
    assert [partition.messages for partition in api.partitions("q")] == [50]


def test_push_many_returns_a_result_per_partition_in_order_of_appearance(api: Any) -> None:
    api.push("q", 0, partition="b")
    results = api.push_many("q", [("b", 1), ("a", 2), Message(3, partition="b"), ("a", Message(4, key="k"))])
    assert [(r.partition, r.first_offset, r.count) for r in results] == [("b", 1, 2), ("a", 0, 2)]
    assert [m.json() for m in api.read("q", "b")] == [0, 1, 3]
    assert [(m.json(), m.key) for m in api.read("q", "a")] == [(2, None), (4, "k")]


def test_push_many_places_messages_by_their_keys(api: Any) -> None:
    api.create("q", spread=4)
    keys = [f"key {number}" for number in range(20)]
    results = api.push_many("q", (Message(key, key=key) for key in keys))
    assert {r.partition for r in results} == {partition_for_key(key, 4) for key in keys}
    for result in results:
        expected = [key for key in keys if partition_for_key(key, 4) == result.partition]
        assert [message.key for message in api.read("q", result.partition)] == expected


def test_a_batch_over_the_segment_caps_is_one_run_of_offsets(api: Any) -> None:
    values = [bytes([number % 251]) * 100_000 for number in range(25)]
    result = api.push("q", values)
    assert (result.first_offset, result.count) == (0, 25)
    assert [message.value for message in api.read("q", "0")] == values


def test_names_may_be_any_text_without_control_characters(api: Any) -> None:
    for name in ("ü", "a b", "x" * 255, "-", "%", "'; DROP", "**", "😀"):
        api.push(name, b"x", partition=name)
        assert api.read(name, name)[0].partition == name


def test_a_mutable_value_is_taken_when_it_is_given(api: Any) -> None:
    order = {"id": 1}
    with api.transaction() as tx:
        tx.push("q", order)
        order["id"] = 2
    assert api.read("q", "0")[0].json() == {"id": 1}
