"""Pushing, taking and settling over HTTP, with nothing but requests."""

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateways import RunningGateway
from penstock import Client


def test_a_message_goes_in_and_out(http: RunningGateway) -> None:
    pushed = http.ask("POST", "/queues/orders/messages", {"messages": [{"value": {"id": 1}, "partition": "a"}]})
    popped = http.post("/queues/orders/groups/billing/pop")
    [claim] = popped["claims"]
    acked = http.post("/acks", {"acks": [{"lease": claim["lease"]}]})

    assert pushed.status == 201
    [result] = pushed.json()["results"]
    assert (result["partition"], result["first_offset"], result["count"]) == ("a", 0, 1)
    [message] = claim["messages"]
    assert (message["value"], message["id"], message["attempt"]) == ({"id": 1}, result["ids"][0], 1)
    assert acked == {"results": ["done"]}
    assert http.ask("POST", "/queues/orders/groups/billing/pop").status == 204


def test_ndjson_and_bytes_are_pushed_too(http: RunningGateway, dsn: str) -> None:
    lines = b'{"value":1,"partition":"a"}\n\n{"value_text":"two","partition":"b"}\n'
    http.post("/queues/q/messages", lines, headers={"Content-Type": "application/x-ndjson"})
    http.post("/queues/q/messages?partition=c&key=k", b"\x00\xff", headers={"Content-Type": "application/octet-stream"})

    with Client(dsn) as client:
        values = {name: [m.value for m in client.read("q", name)] for name in "abc"}
        assert values == {"a": [b"1"], "b": [b"two"], "c": [b"\x00\xff"]}
        assert client.read("q", "c")[0].key == "k"


def test_a_push_that_is_sent_again_under_its_key_is_stored_once(http: RunningGateway, dsn: str) -> None:
    body = {"messages": [{"value": n} for n in range(3)]}
    first = http.post("/queues/q/messages", body, headers={"Idempotency-Key": "order-7"})
    again = http.post("/queues/q/messages", body, headers={"Idempotency-Key": "order-7"})
    other = http.post("/queues/q/messages", body, headers={"Idempotency-Key": "order-8"})

    assert again == first
    assert other != first
    with Client(dsn) as client:
        assert client.describe("q").messages == 6


ONE = {"value": 1, "partition": "p1"}


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("", [ONE, {"value": 2, "partition": "p2"}]),
        ("", [{"value": 1, "partition": "p2"}]),
        ("", [{"value": 2, "partition": "p1"}]),
        ("", [{"value": 1, "partition": "p1", "headers": {"a": "b"}}]),
        ("", [{"value": 1, "key": "p1"}]),
        ("?delay=60", [ONE]),
    ],
    ids=["more", "another partition", "another value", "more headers", "a key", "later"],
)
def test_another_push_under_a_key_that_was_used_is_refused(
    http: RunningGateway, dsn: str, path: str, messages: list[Any]
) -> None:
    key = {"Idempotency-Key": "order-9"}
    first = http.post("/queues/q/messages", {"messages": [ONE]}, headers=key)

    answer = http.ask("POST", f"/queues/q/messages{path}", {"messages": messages}, key)

    assert (answer.status, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert "key of its own" in answer.json()["hint"]
    assert http.post("/queues/q/messages", {"messages": [ONE]}, headers=key) == first
    with Client(dsn) as client:
        assert client.describe("q").messages == 1


def test_of_different_pushes_under_one_key_at_the_same_time_one_is_stored(http: RunningGateway, dsn: str) -> None:
    key = {"Idempotency-Key": "race"}

    def push(number: int) -> int:
        body = {"messages": [{"value": number, "partition": f"p{number}"}]}
        return http.ask("POST", "/queues/q/messages", body, key).status

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(push, range(8)))

    assert statuses == [201, *[422] * 7]
    with Client(dsn) as client:
        assert client.describe("q").messages == 1


def test_a_message_without_a_result_says_why(http: RunningGateway, dsn: str) -> None:
    with Client(dsn) as client:
        client.create_group("q", "g")
        message_id = client.push("q", 1).ids[0]
        client.cancel(message_id)

    answer = http.ask("GET", f"/messages/{message_id}/result")

    assert (answer.status, answer.json()["code"]) == (409, "cancelled")


def test_a_long_poll_answers_as_soon_as_something_is_pushed(http: RunningGateway) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(http.post("/queues/q/groups/g/pop?wait=30")))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    http.post("/queues/q/messages", {"messages": [{"value": 1}]})
    waiting.join(30)

    assert found[0]["claims"][0]["messages"][0]["value"] == 1
    assert time.monotonic() - began < 15


def test_a_long_poll_of_a_caller_who_is_gone_claims_nothing(http: RunningGateway) -> None:
    connection = HTTPConnection(urlsplit(http.url).netloc)
    connection.request("POST", "/api/v2/queues/q/groups/g/pop?wait=30")
    time.sleep(0.3)
    connection.close()
    time.sleep(0.3)
    http.post("/queues/q/messages", {"messages": [{"value": 1}]})

    assert http.post("/queues/q/groups/g/pop?wait=10")["claims"][0]["attempt"] == 1


def test_large_answers_are_packed_where_the_caller_takes_that(http: RunningGateway) -> None:
    http.post("/queues/q/messages", {"messages": [{"value": "x" * 5000, "partition": "p"}]})

    packed = http.ask("GET", "/queues/q/partitions/p/messages", headers={"Accept-Encoding": "gzip, br"})
    plain = http.ask("GET", "/queues/q/partitions/p/messages")

    assert (packed.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert gzip.decompress(packed.body) == plain.body


def test_a_trace_id_goes_in_with_a_message_and_comes_out_with_it(http: RunningGateway) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    messages = [
        {"value": 1, "partition": "p", "traceId": "order-7"},
        {"value": 2, "partition": "p", "headers": {"traceId": "order-8", "a": "b"}, "traceId": "order-8"},
        {"value": 3, "partition": "p", "headers": parent},
        {"value": 4, "partition": "p", "headers": {"traceparent": "nonsense"}},
        {"value": 5, "partition": "p"},
    ]
    http.post("/queues/q/messages", {"messages": messages})
    line = b'{"value": 6, "partition": "p", "traceId": "order-9"}\n'
    http.post("/queues/q/messages", line, headers={"Content-Type": "application/x-ndjson"})

    popped = http.post("/queues/q/groups/g/pop")["claims"][0]["messages"]
    read = http.get("/queues/q/partitions/p/messages")["items"]

    traces = ["order-7", "order-8", trace, None, None, "order-9"]
    assert [each.get("traceId") for each in popped] == [each.get("traceId") for each in read] == traces
    assert popped[1]["headers"] == {"traceId": "order-8", "a": "b"}


def test_two_trace_ids_of_one_message_are_refused(http: RunningGateway, dsn: str) -> None:
    for both in ({"traceId": "a", "headers": {"traceId": "b"}}, {"traceId": ""}):
        answer = http.ask("POST", "/queues/q/messages", {"messages": [{"value": 1, **both}]})
        assert (answer.status, answer.json()["code"]) == (400, "invalid_input")
    with Client(dsn) as client:
        assert client.queues() == []
