"""The queue metrics of a real flow: what waits warm and cold, plugins and running tasks, with exact names and types."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from workers.processes import running as running_worker

from databases import Connection
from gateways import RunningGateway
from penstock import Client
from windows import ValkeyServer, dispatching

from .served import eventually

ROOT = "/metrics/queues"
MOMENT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")

APP = """
import os, time
from pathlib import Path
from penstock import Item, action

@action(queue="incoming", to="parsed", flow="orders", mode="shared")
def parse(item: Item) -> object:
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.05)
    return item.json()

@action(queue="parsed", flow="orders")
def store(item: Item) -> None:
    pass
"""


@pytest.fixture
def flow(client: Client, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A flow whose first action holds some items and cannot go on, with more of them waiting."""
    (tmp_path / "shop.py").write_text(APP)
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    client.push_many("incoming", [(str(number % 5), {"n": number}) for number in range(500)])
    client.create_group("plain", "readers")
    client.push("plain", [1, 2, 3])
    with running_worker(dsn, tmp_path / "shop.py", "--concurrency", "2"):
        yield client
        (tmp_path / "go").touch()


def typed(row: dict[str, Any], types: dict[str, type | tuple[type, ...]]) -> None:
    assert list(row) == list(types), "the fields, in the order of the document"
    for name, kind in types.items():
        assert isinstance(row[name], kind), (name, row[name])
        assert not isinstance(row[name], bool)


def test_a_flow_shows_what_waits_what_runs_and_where_its_actions_come_from(flow: Client, http: RunningGateway) -> None:
    tasks = eventually(lambda: http.get(f"{ROOT}/running")["tasks"])
    answer = http.get(f"{ROOT}/running")
    assert list(answer) == ["tasks", "heartbeatThresholdMs"]
    assert answer["heartbeatThresholdMs"] == 30000
    typed(
        tasks[0],
        {
            "actionClass": str,
            "actionName": str,
            "did": str,
            "startTime": str,
            "runningForMs": int,
            "appName": (str, type(None)),
        },
    )
    assert (tasks[0]["actionClass"], tasks[0]["actionName"]) == ("shop.parse", "parse")
    assert MOMENT.match(tasks[0]["startTime"])
    assert UUID(tasks[0]["did"])
    assert [task["startTime"] for task in tasks] == sorted(task["startTime"] for task in tasks)

    def both() -> Any:
        found = http.get(f"{ROOT}/detailed")
        return found if {row["flowName"] for row in found["warmQueues"]} >= {"orders"} else None

    found = eventually(both)
    assert list(found) == ["warmQueues", "coldQueues", "timestamp"]
    assert MOMENT.match(found["timestamp"])
    [warm] = found["warmQueues"]
    typed(
        warm,
        {
            "actionClass": str,
            "flowName": str,
            "flowType": str,
            "actionName": str,
            "count": int,
            "oldestQueuedAt": str,
            "oldestDid": str,
        },
    )
    cold = {row["actionName"]: row for row in found["coldQueues"]}
    typed(
        cold["parse"],
        {
            "flowName": str,
            "flowType": str,
            "actionName": str,
            "actionClass": str,
            "count": int,
            "oldestQueuedAt": str,
        },
    )
    assert (warm["actionClass"], warm["flowName"], warm["flowType"]) == ("shop.parse", "orders", "TRANSFORM")
    assert warm["count"] + cold["parse"]["count"] == 500
    assert warm["count"] > 0
    assert MOMENT.match(warm["oldestQueuedAt"])
    assert UUID(warm["oldestDid"])
    assert (cold["readers"]["flowName"], cold["readers"]["flowType"], cold["readers"]["count"]) == (
        "plain",
        "UNKNOWN",
        3,
    )

    plugins = http.get(f"{ROOT}/action-plugins")
    assert set(plugins) == {"shop.parse", "shop.store", "plain"}
    assert "shop.py" in plugins["shop.parse"]
    assert plugins["plain"] == "unknown"


def test_a_window_in_valkey_is_warm_and_what_it_has_no_room_for_is_cold(
    client: Client, dsn: str, http: RunningGateway
) -> None:
    client.create_group("burst", "readers", warm=True, in_memory_queue_size=40)
    for partition in "abcde":
        client.push("burst", [b"x"] * 20, partition=partition)
    server = ValkeyServer()
    try:
        with dispatching(dsn, server.url):

            def filled() -> Any:
                found = http.get(f"{ROOT}/detailed")
                return found if found["warmQueues"] and found["coldQueues"] else None

            found = eventually(filled)
            [warm], [cold] = found["warmQueues"], found["coldQueues"]
    finally:
        server.close()
    assert (warm["flowName"], warm["flowType"], warm["actionName"]) == ("burst", "UNKNOWN", "readers")
    assert 0 < warm["count"] <= 40
    assert warm["count"] + cold["count"] == 100
    assert UUID(warm["oldestDid"])


def test_workers_that_no_longer_report_have_no_running_tasks(
    client: Client, sql: Connection, http: RunningGateway
) -> None:
    sql.execute(
        "SELECT penstock.report_tasks(w, jsonb_build_array(jsonb_build_object('action_class', 'm.' || w, 'flow', 'f', "
        "'action', 'a', 'did', gen_random_uuid(), 'message_id', gen_random_uuid(), 'started_at', now(), 'attempt', 2)))"
        " FROM unnest(ARRAY['stale', 'live']) w"
    )
    sql.execute("UPDATE penstock.running_tasks SET heartbeat_at = now() - interval '31 s' WHERE worker = 'stale'")
    eventually(lambda: [task["appName"] for task in http.get(f"{ROOT}/running")["tasks"]] == ["live"])


def test_nothing_waits_in_an_empty_penstock(client: Client, http: RunningGateway) -> None:
    def found() -> Any:
        answer = http.get(f"{ROOT}/detailed")
        return answer["warmQueues"] == answer["coldQueues"] == []

    eventually(found)
    assert http.get(f"{ROOT}/running")["tasks"] == []


def test_the_figures_cost_the_same_however_much_waits(client: Client, sql: Connection) -> None:
    def pages() -> int:
        """Return how many pages are read for a sample and for what is asked of it."""
        read = 0
        for asked in ("penstock.sample()", "penstock.health_facts()"):
            sql.execute(f"SELECT {asked}".encode())
            [(plan,)] = sql.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT {asked}".encode()).fetchall()
            read += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        return read

    client.create_group("orders", "billing")
    client.push("orders", [b"x"] * 10, partition="p")
    few = pages()
    for _ in range(20):
        client.push("orders", [b"x"] * 10_000, partition="p")
    many = pages()
    assert client.work("orders")[0].lag == 200_010
    # The index of the log may be one level deeper.
    assert many <= 1.2 * few, (few, many)
