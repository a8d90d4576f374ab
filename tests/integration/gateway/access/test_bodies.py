"""What a body names must be allowed, queue by queue, and nothing of it happens otherwise."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from gateways import Answer, RunningGateway
from penstock import Client, Message
from penstock.broker.claims import ClaimRange, Lease
from penstock.broker.health import ConsumerHealth, GroupHealth
from penstock.broker.items import Output, SettledClaim
from penstock.broker.metrics import Measured
from penstock.broker.operations.claiming import Ack, AckAndPop, Pop, PopMany, Release, Renew
from penstock.broker.operations.groups import DeleteGroup, GetHistory, Verify
from penstock.broker.operations.health import ReportHealth
from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.keys import CreateKey
from penstock.broker.operations.log import CreatePartition, Delete, GetSpread
from penstock.broker.operations.metrics import GetDifferences, RecordMetrics
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.operations.reading import Read
from penstock.broker.operations.schedules import DefineSchedule
from penstock.broker.operations.workers import RegisterActions, RegisteredAction, ReportTasks
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.broker.schedules import Seen, schedule_every
from penstock.broker.tasks import ReportedTask
from penstock.gateway import reports
from penstock.http import encoding
from penstock.http.reads import READS

from .conftest import Headers

LEASE = Lease(1, 1, UUID(int=1))


def batch(queue: str) -> PushBatch:
    return PushBatch.of(Place(queue, "new"), [Message(b"x")])


def run(http: RunningGateway, operation: Operation[Any], headers: Headers) -> Answer:
    """Send an operation as the Python client does."""
    path, sent = f"/operations/{type(operation).__name__}", encoding.encode_operation(operation)
    if type(operation) in READS:
        return http.ask("GET", f"{path}?arguments={urlsafe_b64encode(sent).decode().rstrip('=')}", headers=headers)
    return http.ask("POST", path, sent, {"Content-Type": encoding.MEDIA, **headers})


SCHEDULE = schedule_every("1h", queue="orders", value=1, name="s")
MIXED: dict[str, Operation[Any]] = {
    "push": Push([batch("orders"), batch("other")]),
    "pops": PopMany([Pop("orders", "g"), Pop("other", "g")]),
    "ack and pop": AckAndPop([ClaimRange(1, 1, UUID(int=1), 0, 1)], Pop("other", "g")),
    "settle and pop": SettleItems([SettledClaim(LEASE, release_rest=True)], pop=Pop("other", "g")),
    "settle with outputs": SettleItems([SettledClaim(LEASE, release_rest=True)], [Output(0, batch("other"))]),
    "partition": CreatePartition(Place("other", "made")),
    "read": Read(Place("other", "p"), 0, 10),
    "spread": GetSpread("other"),
    "verify": Verify(),
    "differences anew": GetDifferences(0.0),
    "delete": Delete("other"),
    "delete group": DeleteGroup("other", "g"),
    "metrics": RecordMetrics([Measured("other", "m", 1)]),
    "a schedule, which may be another's": DefineSchedule(SCHEDULE, Seen("s", 0, None), "command"),
    "a claim that another one holds": Release(Lease(1, 1, None)),
    "health of another group": ReportHealth(
        "me", 1, ConsumerHealth("healthy"), [GroupHealth("other", "g", 0, 500, 500)]
    ),
    "a key": CreateKey("0123456789ab", "mine", bytes(32), ["admin"]),
}


@pytest.fixture(scope="module")
def limited(key: Callable[..., Headers]) -> Headers:
    return key("admin:orders*")


@pytest.mark.parametrize("name", MIXED)
def test_an_operation_that_names_another_queue_is_refused(
    http: RunningGateway, limited: Headers, owner: Client, name: str
) -> None:
    before = owner.describe("orders").messages, owner.describe("other").messages
    answer = run(http, MIXED[name], limited)
    assert (answer.status, answer.json()["code"]) == (403, "forbidden")
    assert (owner.describe("orders").messages, owner.describe("other").messages) == before


def test_what_a_key_may_use_it_can_use(http: RunningGateway, limited: Headers, owner: Client) -> None:
    assert run(http, Push([batch("orders")]), limited).status == 200
    popped = http.post("/queues/orders/groups/g/pop", headers=limited)
    lease = popped["claims"][0]["lease"]
    assert http.ask("POST", "/renewals", {"leases": [lease], "seconds": 60}, limited).status == 200
    # Whoever has a lease has got it from a pop, so acknowledging needs no queue; but a scope.
    assert http.post("/acks", {"acks": [{"lease": lease}]}, headers=limited) == {"results": ["done"]}
    assert run(http, Ack([ClaimRange(1, 1, UUID(int=1), 0, 1)]), limited).status == 200
    assert run(http, Renew([LEASE], 5.0), limited).status == 200


def test_bodies_of_json_routes_are_asked_about_too(http: RunningGateway, key: Callable[..., Headers]) -> None:
    some = key("pop:orders", "push:orders")
    pops = {"pops": [{"queue": "orders", "group": "g"}, {"queue": "other", "group": "g"}]}
    assert http.ask("POST", "/pops", pops, some).status == 403
    messages = [{"value": 1}]
    pushes = {"pushes": [{"queue": "orders", "messages": messages}, {"queue": "other", "messages": messages}]}
    assert http.ask("POST", "/transactions", pushes, some).status == 403
    assert http.ask("POST", "/transactions", {"pushes": pushes["pushes"][:1]}, some).status == 200
    job = {"kind": "discard", "queue": "other"}
    assert http.ask("POST", "/jobs", job, key("admin:orders")).status == 403
    only_pops = key("pop:orders")
    assert http.ask("POST", "/transactions", {"pushes": pushes["pushes"][:1]}, only_pops).status == 403
    assert http.ask("POST", "/acks", {"acks": []}, key("push:orders")).status == 403


def test_a_queue_in_the_query_is_the_one_that_is_asked_about(http: RunningGateway, key: Callable[..., Headers]) -> None:
    some = key("read:orders")
    assert http.ask("GET", "/work?queue=orders", headers=some).status == 200
    assert http.ask("GET", "/work?queue=other", headers=some).status == 403
    assert {each["queue"] for each in http.get("/work", headers=some)} <= {"orders"}


def test_a_name_is_compared_as_it_is_and_not_as_it_is_written(
    http: RunningGateway, key: Callable[..., Headers]
) -> None:
    some = key("read:orders*")
    for path in (
        "/queues/%6Fther",
        "/queues/orders%2F..%2Fother/../other",
        "/queues/orders/../other",
        "/queues/Orders",
    ):
        assert http.ask("GET", path, headers=some).status in (403, 404), path
    assert http.ask("GET", "/queues/%6Frders", headers=some).status == 200


def test_a_reader_does_not_learn_lease_ids(
    http: RunningGateway, owner: Client, key: Callable[..., Headers], limited: Headers
) -> None:
    popped = owner.pop("orders", "other group")
    assert popped is not None
    path = f"/queues/orders/groups/other%20group/partitions/{popped.claims[0].partition}/history"
    reader = key("read:orders")
    assert {step["lease_id"] for step in http.get(path, headers=reader)} == {None}
    assert len({step["lease_id"] for step in http.get(path, headers=limited)}) > 1
    asked = GetHistory("orders", "other group", popped.claims[0].partition)
    lease = str(popped.claims[0].lease_id).replace("-", "")
    assert bytes.fromhex(lease) not in run(http, asked, reader).body
    assert str(popped.claims[0].lease_id).encode() not in run(http, asked, reader).body
    popped.release()


def test_a_consumer_takes_no_claim_from_another_and_opens_no_breaker_of_another(
    http: RunningGateway, key: Callable[..., Headers], owner: Client
) -> None:
    owner.push("kept", "x")
    held = owner.pop("kept", "g", lease=600)
    assert held is not None
    lease = held.claims[0].lease
    report = ReportHealth("me", 1, ConsumerHealth("healthy"), [GroupHealth("kept", "g", 0, 500, 500)])
    for scope in ("pop", "pop:orders", "push:orders", "admin:orders"):
        assert run(http, Release(lease._replace(lease_id=None)), key(scope)).status == 403
    for scope in ("pop:orders", "push", "push:orders", "read"):
        assert run(http, report, key(scope)).status == 403
    assert owner.breakers() == []
    held.renew()
    assert run(http, Release(lease._replace(lease_id=None)), key("admin")).status == 200
    assert owner.acts(action="Release")[0].result == "ok"


def test_what_costs_the_database_dearly_is_for_admins(http: RunningGateway, key: Callable[..., Headers]) -> None:
    reader, admin = key("read"), key("admin")
    for operation in (Verify(), GetDifferences(0.0)):
        assert run(http, operation, reader).status == 403
        assert run(http, operation, admin).status == 200
    assert run(http, GetDifferences(), reader).status == 200


def action(flow: str, queue: str, to: str | None = None) -> RegisteredAction:
    return RegisteredAction(flow, "a", "TRANSFORM", "x.A", "x:1", queue, to)


def task(flow: str) -> ReportedTask:
    return ReportedTask("x.A", flow, "a", UUID(int=1), UUID(int=2), datetime.now(UTC), 1, None, None)


def test_a_worker_reports_actions_and_tasks_of_its_own_queues_alone(
    http: RunningGateway, owner: Client, key: Callable[..., Headers]
) -> None:
    ours, theirs = key("pop:orders*", "push:orders*"), key("pop:*", "push:*")
    assert run(http, RegisterActions([action("theirs", "other", "other2")]), theirs).status == 200
    assert run(http, ReportTasks("their worker", [task("theirs")]), theirs).status == 200
    assert run(http, RegisterActions([action("ours", "orders", "orders2")]), ours).status == 200
    assert run(http, ReportTasks("our worker", [task("ours")]), ours).status == 200

    refused = [
        RegisterActions([action("theirs", "orders")]),
        RegisterActions([action("new", "orders", to="other")]),
        ReportTasks("our worker", [task("theirs")]),
        ReportTasks("our worker", [task("unknown")]),
        ReportTasks("their worker", [task("ours")]),
        ReportTasks("their worker", []),
    ]
    for operation in refused:
        answer = run(http, operation, ours)
        assert (answer.status, answer.json()["code"]) == (403, "forbidden"), operation

    known = {(each.flow, each.queue, each.output) for each in owner.actions()}
    assert known == {("theirs", "other", "other2"), ("ours", "orders", "orders2")}
    assert {(each.worker, each.flow) for each in owner.tasks()} == {("their worker", "theirs"), ("our worker", "ours")}
    assert run(http, ReportTasks("our worker", []), ours).status == 200


def test_nobody_reports_the_health_of_anothers_consumer(
    http: RunningGateway, owner: Client, key: Callable[..., Headers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_CONSUMERS_AGE", 0.0)
    ours, theirs = key("pop:orders*"), key("pop:*")
    of_theirs = ReportHealth("their consumer", 1, ConsumerHealth("healthy"), [GroupHealth("other", "g")])
    assert run(http, of_theirs, theirs).status == 200

    broken = ReportHealth("their consumer", 9, ConsumerHealth("gone"), [GroupHealth("orders", "g")])
    assert run(http, broken, ours).status == 403

    own = ReportHealth("our consumer", 1, ConsumerHealth("healthy"), [GroupHealth("orders", "g")])
    assert run(http, own, ours).status == 200
    assert {each.consumer_id: each.status for each in owner.consumers()}["their consumer"] == "healthy"


def test_no_consumer_reports_what_others_could_not_decode(http: RunningGateway, key: Callable[..., Headers]) -> None:
    report = ReportHealth("deep", 1, ConsumerHealth("healthy"), [GroupHealth("orders", "g")], metadata={"a": "MARK"})
    sent = encoding.encode_operation(report)
    headers = {"Content-Type": encoding.MEDIA, **key("pop:orders")}

    for depth in (60, 900, 955):
        # A list of a list, and so on; the last one is empty.
        deep = sent.replace(b"\xa4MARK", b"\x91" * depth + b"\x90")
        answer = http.ask("POST", "/operations/ReportHealth", deep, headers)
        assert (answer.status, answer.json()["code"]) == (400, "invalid_input")

    assert http.ask("POST", "/operations/ReportHealth", sent, headers).status == 200
    assert http.ask("GET", "/status", headers=key("read")).status == 200
