"""What a key of some queues is shown of lists: its own rows, and no name of any other queue."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from databases import Connection, empty
from gateways import RunningGateway
from penstock import Client
from penstock.broker.health import ConsumerHealth, GroupHealth
from penstock.broker.operations.health import ReportHealth
from penstock.broker.operations.jobs import BeginJob
from penstock.broker.operations.workers import RegisterActions, RegisteredAction, ReportTasks
from penstock.broker.tasks import ReportedTask
from penstock.gateway.table import TABLE

from .conftest import Headers

QUEUES = ("orders", "secret")
# What has no rows here, or none that name a queue.
WITHOUT_ROWS = {"/api/v2/checks", "/api/v2/archives", "/api/v2/windows"}


@pytest.fixture(scope="module")
def owner(shared_dsn: str, cleaner: Connection) -> Iterator[Client]:
    """A penstock in which two queues have everything that lists show."""
    empty(cleaner)
    with Client(shared_dsn) as client:
        for number, queue in enumerate(QUEUES):
            client.create(queue)
            client.create_group(queue, f"{queue}-group", max_attempts=1)
            client.push(queue, [f"{queue}-value"] * 3, partition="p")
            batch = client.pop(queue, f"{queue}-group", max_messages=1)
            assert batch is not None
            batch.nack(error=f"{queue}-error")
            client.pop(queue, f"{queue}-group", max_messages=1)
            client.push(queue, "later", delay=600)
            client.schedule(f"{queue}-schedule", queue, 1, every="1h")
            client.add_rule(f"{queue}-rule", queue=queue)
            client.run(BeginJob("redrive", queue, {}, 1, None))
            client.run(
                RegisterActions(
                    [RegisteredAction(f"{queue}-flow", "a", "TRANSFORM", f"{queue}.A", "x:1", queue, f"{queue}-out")]
                )
            )
            name = (f"{queue}.A", f"{queue}-flow", "a")
            running = ReportedTask(*name, UUID(int=number), UUID(int=number), datetime.now(UTC), 1, None, None)
            client.run(ReportTasks(f"{queue}-worker", [running]))
            client.run(
                ReportHealth(
                    f"{queue}-consumer",
                    1,
                    ConsumerHealth("healthy"),
                    [GroupHealth(queue, f"{queue}-group", 0, 500, 500, f"{queue}-error")],
                )
            )
            cleaner.execute(
                "SELECT penstock.record_metrics(ARRAY[%s::text], '{pushed}', '{600}', ARRAY[NULL]::jsonb[])", (queue,)
            )
    # The client that popped has reported by now that it consumes from both queues.
    with Client(shared_dsn) as client:
        client.sample()
        yield client


@pytest.fixture(scope="module")
def limited(key: Callable[..., Headers]) -> Headers:
    return key("read:orders*", "admin:orders*")


LISTS = [row.path for row in TABLE if row.shows and row.method == "GET" and not row.streams and "{" not in row.path]


@pytest.mark.parametrize("path", LISTS)
def test_a_list_has_the_rows_of_the_keys_queues_and_no_others(
    http: RunningGateway, limited: Headers, key: Callable[..., Headers], path: str
) -> None:
    answer = http.ask("GET", f"/{path}", headers=limited)
    assert answer.status == 200, answer
    assert b"secret" not in answer.body
    if path not in WITHOUT_ROWS and not path.endswith("/totals"):
        assert b"orders" in answer.body
        everything = http.ask("GET", f"/{path}", headers=key("admin"))
        assert b"secret" in everything.body


@pytest.mark.parametrize("path", LISTS)
def test_a_key_that_may_not_read_gets_no_list(http: RunningGateway, key: Callable[..., Headers], path: str) -> None:
    assert http.ask("GET", f"/{path}", headers=key("push", "pop")).status == 403


@pytest.mark.parametrize("path", ["/claims", "/scheduled", "/work", "/archives"])
def test_a_list_of_another_queue_is_refused(http: RunningGateway, limited: Headers, path: str) -> None:
    assert http.ask("GET", f"{path}?queue=orders", headers=limited).status == 200
    assert http.ask("GET", f"{path}?queue=secret", headers=limited).status == 403


def test_totals_are_those_of_the_keys_queues(
    http: RunningGateway, limited: Headers, key: Callable[..., Headers]
) -> None:
    def pushed(headers: Headers) -> float:
        return sum(each or 0 for each in http.get("/metrics/totals", headers=headers)["pushed"]["values"])

    # What was just counted may lie in a minute that is not over.
    assert pushed(key("read")) in (0, 2 * pushed(limited))


def test_a_live_event_has_the_figures_of_the_keys_queues(http: RunningGateway, limited: Headers) -> None:
    connection = HTTPConnection(urlsplit(http.url).netloc, timeout=60)
    connection.request("GET", "/api/v2/events", headers=limited)
    response = connection.getresponse()
    while not (line := response.readline()).startswith(b"data:"):
        assert line
    connection.close()
    assert b"orders-group" in line
    assert b"secret" not in line
    assert b'"lag":2' in line


def test_a_message_is_found_by_its_id_where_its_queue_may_be_seen(
    http: RunningGateway, owner: Client, limited: Headers
) -> None:
    for ending in ("", "/state", "/result"):
        assert http.ask("GET", f"/messages/{owner.read('orders', 'p')[0].id}{ending}", headers=limited).status != 404
        hidden = http.ask("GET", f"/messages/{owner.read('secret', 'p')[0].id}{ending}", headers=limited)
        assert (hidden.status, hidden.json()["code"]) == (404, "not_found")
    children = f"/browse/messages/{owner.read('secret', 'p')[0].id}/children"
    assert http.ask("GET", children, headers=limited).status == 404


def test_a_job_a_schedule_and_a_flow_of_another_queue_are_not_there(
    http: RunningGateway, limited: Headers, key: Callable[..., Headers]
) -> None:
    jobs = {each["queue"]: each["job_id"] for each in http.get("/jobs", headers=key("read"))}
    assert http.ask("GET", f"/jobs/{jobs['orders']}", headers=limited).status == 200
    assert http.ask("GET", f"/jobs/{jobs['secret']}", headers=limited).status == 404
    assert http.ask("DELETE", f"/jobs/{jobs['secret']}", headers=limited).status == 404
    for path in ("schedules", "flows"):
        name = path.removesuffix("s")
        assert http.ask("GET", f"/{path}/orders-{name}", headers=limited).status == 200
        assert http.ask("GET", f"/{path}/secret-{name}", headers=limited).status == 404


def test_a_python_client_with_such_a_key_lists_its_own(http: RunningGateway, limited: Headers, owner: Client) -> None:
    key = limited["Authorization"].removeprefix("Bearer ")
    with Client(http.url.replace("http://", f"http://{key}@")) as client:
        assert [each.name for each in client.queues()] == ["orders"]
        assert [each.queue for each in client.groups()] == ["orders"]
        assert [each.consumer_id for each in client.consumers()] == ["orders-consumer"]
        assert [each.name for each in client.flows()] == ["orders-flow"]
        assert [(each.flow, each.output) for each in client.actions()] == [("orders-flow", "orders-out")]
        assert [each.worker for each in client.tasks()] == ["orders-worker"]
        assert [each.name for each in client.schedules()] == ["orders-schedule"]
        assert [each.queue for each in client.breakers()] == ["orders"]
        assert {each.queue for each in client.facts().work} == {"orders"}
        assert [each.name for each in client.rules()] == ["orders-rule"]


def test_a_key_for_one_queue_does_not_learn_of_another_by_asking(http: RunningGateway, limited: Headers) -> None:
    there = http.ask("GET", "/queues/secret", headers=limited)
    nowhere = http.ask("GET", "/queues/nowhere", headers=limited)
    assert (there.status, there.json()["code"]) == (nowhere.status, nowhere.json()["code"]) == (403, "forbidden")
