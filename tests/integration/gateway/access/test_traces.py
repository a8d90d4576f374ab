"""What callers leave behind: their name in what they push, and their acts in the audit log."""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from gateways import RunningGateway
from penstock import Client, Message
from penstock.broker.operations.log import PauseQueue
from penstock.broker.operations.pushing import Push
from penstock.broker.packing import MAX_SEGMENT_BYTES, Segment, Slice, pack, pack_values, unpack, with_header
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.errors import InvalidInput
from penstock.gateway.stamping import HEADER

from .conftest import Headers
from .test_bodies import run


@pytest.fixture(scope="module")
def shop(owner: Client) -> Headers:
    return {"Authorization": f"Bearer {owner.create_api_key('shop', ['push', 'pop']).key}"}


def headers_in(owner: Client, partition: str) -> list[dict[str, str] | None]:
    return [message.headers for message in owner.read("orders", partition)]


def test_who_pushed_is_in_a_header_that_the_caller_cannot_set(
    http: RunningGateway, owner: Client, shop: Headers
) -> None:
    evil = {"value": 2, "partition": "json", "headers": {HEADER: "key:root", "a": "b"}}
    http.post("/queues/orders/messages", {"messages": [{"value": 1, "partition": "json"}, evil]}, headers=shop)
    assert headers_in(owner, "json") == [{HEADER: "key:shop"}, {"a": "b", HEADER: "key:shop"}]


def test_operations_transactions_and_single_values_are_stamped_too(
    http: RunningGateway, owner: Client, shop: Headers
) -> None:
    by_hand = msgspec.json.encode({"a": "b"}).replace(b'"a"', b'"\\u0070enstock-pushed-by"')
    segment = msgspec.structs.replace(
        pack([Message(b"x", headers={"a": "b"})])[0],
        headers=by_hand,
        header_ends=len(by_hand).to_bytes(4, "little"),
    )
    operation = Push([PushBatch(Place("orders", "op"), [segment])])
    assert run(http, operation, shop).status == 200
    assert headers_in(owner, "op") == [{HEADER: "key:shop"}]
    message = {"value": 1, "partition": "tx", "headers": {HEADER: "x"}}
    http.post("/transactions", {"pushes": [{"queue": "orders", "messages": [message]}]}, headers=shop)
    assert headers_in(owner, "tx") == [{HEADER: "key:shop"}]
    octets = {**shop, "Content-Type": "application/octet-stream", "Idempotency-Key": "1"}
    http.post("/queues/orders/messages?partition=raw", b"\x00", headers=octets)
    assert headers_in(owner, "raw") == [{HEADER: "key:shop"}]


@pytest.mark.parametrize(
    "name", ["Penstock-Pushed-By", "PENSTOCK-PUSHED-BY", "penstoc\u212a-pushed-by", "pen\u017ftock-pushed-by"]
)
def test_the_stamp_has_no_twin_in_other_letters(http: RunningGateway, owner: Client, shop: Headers, name: str) -> None:
    partition = f"twin of {name}"
    message = {"value": 1, "partition": partition, "headers": {name: "somebody else", "a": "b"}}
    http.post("/queues/orders/messages", {"messages": [message]}, headers=shop)
    assert headers_in(owner, partition) == [{"a": "b", HEADER: "key:shop"}]
    (segment,) = pack([Message(b"1", headers={name: "x"})])
    assert headers_of(with_header(segment, HEADER, None)) == [None]


def headers_of(segments: list[Segment]) -> list[dict[str, str] | None]:
    """Return the headers of each message."""
    found: list[dict[str, str] | None] = []
    for each in segments:
        count, body, ends, keys, key_ends, headers, header_ends = msgspec.structs.astuple(each)
        packed = (0, body, ends, None if keys is None else 0, keys, key_ends, 0, headers, header_ends)
        part = Slice(0, count, datetime.now(UTC), 0, None, None, *packed)
        found += [message.headers for message in unpack("q", "p", 1, part)]
    return found


def test_a_header_is_set_or_removed_in_packed_messages() -> None:
    some = [Message(b"1", headers={"a": "b"}), Message(None, key="k"), Message(b"", headers={"x": "evil"})]
    (segment,) = pack(some)
    assert headers_of(with_header(segment, "x", "me")) == [{"a": "b", "x": "me"}, {"x": "me"}, {"x": "me"}]
    assert headers_of(with_header(segment, "x", None)) == [{"a": "b"}, None, None]
    (plain,) = pack_values([b"1", b"2"], None, None)
    assert with_header(plain, "x", None) == [plain]
    assert headers_of(with_header(plain, "x", "me")) == [{"x": "me"}] * 2


def test_segments_whose_headers_grow_too_large_are_cut() -> None:
    (segment,) = pack_values([b"1"] * 10_000, None, None)
    made = with_header(segment, "x", "y" * 200)
    assert len(made) > 1
    assert sum(each.count for each in made) == 10_000
    assert all(len(each.headers or b"") <= MAX_SEGMENT_BYTES for each in made)


def test_headers_that_cannot_be_read_are_refused() -> None:
    (segment,) = pack([Message(b"1", headers={"a": "b"})])
    broken = msgspec.structs.replace(segment, headers=b'{"a":\\u', header_ends=(7).to_bytes(4, "little"))
    with pytest.raises(InvalidInput, match="cannot be read"):
        with_header(broken, "x", "y")
    with pytest.raises(InvalidInput, match="headers of 2"):
        with_header(msgspec.structs.replace(segment, header_ends=bytes(8)), "x", "y")


def test_acts_are_written_with_who_what_where_and_the_result(
    http: RunningGateway, owner: Client, key: Callable[..., Headers]
) -> None:
    operator = {"Authorization": f"Bearer {owner.create_api_key('operator', ['admin']).key}"}
    began = owner.acts(limit=1)[0].act_id
    http.post("/queues/orders/pause", headers=operator)
    http.post("/queues/orders/resume", headers=operator)
    assert http.ask("PATCH", "/queues/orders", {"settings": {"max_attempts": -1}}, operator).status == 400
    assert run(http, PauseQueue("orders", paused=False), operator).status == 200
    http.post("/keys", {"name": "made over http", "scopes": ["read"]}, headers=operator)
    # What only asks is no act, and neither is what was refused.
    http.get("/keys", headers=operator)
    assert http.ask("POST", "/queues/orders/pause", headers=key("read")).status == 403
    acts = [act for act in owner.acts(actor="key:operator") if act.act_id > began]
    assert [(act.action, act.target, act.result) for act in reversed(acts)] == [
        ("POST /api/v2/queues/{queue}/pause", "/api/v2/queues/orders/pause", "ok"),
        ("POST /api/v2/queues/{queue}/resume", "/api/v2/queues/orders/resume", "ok"),
        ("PATCH /api/v2/queues/{queue}", "/api/v2/queues/orders", "invalid_input"),
        ("PauseQueue", "orders", "ok"),
        ("create_key", "made over http", "ok"),
    ]
    assert {act.origin for act in acts} == {"127.0.0.1"}
    assert acts[2].details == {"body": {"settings": {"max_attempts": -1}}}
    page = http.get("/audit?limit=2&actor=key:operator", headers=operator)
    assert [act["act_id"] for act in page["items"]] == [act.act_id for act in acts[:2]]
    rest = http.get(f"/audit?after={page['next']}&actor=key:operator", headers=operator)
    assert rest["items"][0]["act_id"] == acts[2].act_id
    assert [each.created_by for each in owner.api_keys() if each.name == "made over http"] == ["key:operator"]


def test_the_use_of_a_key_is_noted_now_and_then(http: RunningGateway, owner: Client) -> None:
    made = owner.create_api_key("noted", ["read"])
    sent = {"Authorization": f"Bearer {made.key}"}

    def noted() -> object:
        return next(each.last_used_at for each in owner.api_keys() if each.name == "noted")

    for _ in range(100):
        http.ask("GET", "/queues", headers=sent)
        if noted() is not None:
            break
    first = noted()
    assert first is not None
    http.ask("GET", "/queues", headers=sent)
    assert noted() == first
