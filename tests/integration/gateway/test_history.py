"""Series for charts, the server panel, request ids and the log, over HTTP."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from databases import Connection
from gateways import RunningGateway
from penstock import Client

from .served import eventually, served


def test_a_series_comes_with_that_of_the_same_hour_yesterday(
    client: Client, sql: Connection, http: RunningGateway
) -> None:
    client.create("orders")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    for day, value in ((0, 60), (1, 30)):
        for minute in range(60):
            sql.execute(
                "INSERT INTO penstock.queue_metrics VALUES ('orders', 'pushed', %s, %s, NULL)",
                (value, hour - timedelta(days=day) + timedelta(minutes=minute)),
            )
    span = f"begin={hour:%Y-%m-%dT%H:%M:%SZ}&end={hour + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    found = http.get(f"/queues/orders/series/pushed?{span}&points=4&compare=86400")
    assert (found["kind"], found["step"], found["compare"]) == ("count", 900, 86400)
    assert [(point["value"], point["rate"]) for point in found["points"]] == [(900, 1.0)] * 4
    assert [point["value"] for point in found["before"]] == [450] * 4
    assert all(point["time"].endswith("Z") for point in found["points"])
    assert http.get("/queues/orders/series/lag")["points"] == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("points=0", "invalid_input"),
        ("points=1001", "invalid_input"),
        ("begin=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "invalid_input"),
        ("begin=2026-01-02T00:00:00", "invalid_input"),
        ("begin=0001-01-01T00:00:00Z&end=0001-01-02T00:00:00Z&compare=86400000", "invalid_input"),
        ("nonsense=1", "invalid_input"),
    ],
)
def test_a_series_that_cannot_be_is_refused(client: Client, http: RunningGateway, query: str, code: str) -> None:
    client.create("orders")
    answer = http.ask("GET", f"/queues/orders/series/lag?{query}")
    assert (answer.status, answer.json()["code"]) == (400, code)


def test_the_server_is_described_with_the_checks_of_doctor(client: Client, http: RunningGateway) -> None:
    client.push("orders", b"x" * 1000)
    panel = http.get("/server")
    assert panel["checks"] is None
    assert panel["server"]["queues"][0]["queue"] == "orders"
    assert panel["server"]["max_connections"] > 0
    checks = http.get("/server?checks=true")["checks"]
    assert {check["name"]: check["outcome"] for check in checks}["schema"] == "ok"


def test_requests_have_ids_which_answers_problems_and_the_log_have(dsn: str) -> None:
    secret = "s3cret-in-a-header"
    with served(dsn, "--log-format", "json", "--log-requests", "all") as gateway:
        fine = gateway.get("/api/v2/queues", X_Request_Id="from-me", Authorization=f"Bearer {secret}")
        assert fine.headers["x-request-id"] == "from-me"
        bad = gateway.get("/api/v2/queues/no%20such%20queue?x=private", X_Request_Id="not\tfit to be logged")
        assert (bad.status, bad.json()["request_id"]) == (404, bad.headers["x-request-id"])
        assert len(bad.headers["x-request-id"]) == 32

        def logged() -> list[dict[str, object]]:
            lines = [json.loads(line) for line in gateway.lines if line.startswith("{")]
            found = [line for line in lines if line.get("route", "").startswith("/api")]
            return found if len(found) == 2 else []

        first, second = eventually(logged)
        text = "\n".join(gateway.lines)
    assert (first["request_id"], first["status"], first["method"]) == ("from-me", 200, "GET")
    assert second["route"] == "/api/v2/queues/{queue}"
    assert isinstance(first["duration_ms"], float)
    assert str(first["time"]).endswith("Z")
    assert secret not in text
    assert "private" not in text
