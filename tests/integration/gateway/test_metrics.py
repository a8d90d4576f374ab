"""Metrics for Prometheus: names, values, a limit to how many there are, and what the rules and the dashboard use."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from databases import Connection
from gateways import gateway as run_gateway
from penstock import Client
from penstock.broker.counters import NAMES
from penstock.gateway.monitoring import exposition

from .served import ServedGateway, eventually, served

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = re.compile(r"\bpenstock_[a-z0-9_]+")


@pytest.fixture(scope="module")
def gateway(shared_dsn: str) -> Iterator[ServedGateway]:
    with served(shared_dsn, "--verify-every", "0.5", "--workers", "2") as gateway:
        yield gateway


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(gateway: ServedGateway) -> Values:
    answer = gateway.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return values_of(answer.body)


def values_of(text: bytes) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def at(values: Values, name: str, **labels: str) -> float | None:
    return values.get((name, frozenset(labels.items())))


def names_in(values: Values) -> set[str]:
    return {name for name, _ in values}


def used_names() -> dict[str, set[str]]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) >= 10
    assert len(targets) >= 12
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= set(rule)
            assert {"summary", "description"} <= set(rule["annotations"])
    return {"alerts.yml": set(NAME.findall(" ".join(alerts))), "penstock.json": set(NAME.findall(" ".join(targets)))}


@pytest.fixture
def populated(client: Client, sql: Connection, gateway: ServedGateway) -> Client:
    """A group that fails, one that waits, and a check of state against log."""
    client.create_group("orders", "billing", max_attempts=1, breaker_errors=3)
    client.create_group("orders", "idle")

    def fail(message: Any) -> None:
        raise OSError("no")

    with Client(client.dsn) as other:
        other.push("orders", [b"%d" % number for number in range(5)], partition="p")
        other.process("orders", fail, group="billing", idle_timeout=0, handle_signals=False)
    client.sample()
    for _ in client.maintain():
        pass
    return client


def test_groups_breakers_server_and_checks_have_metrics(populated: Client, gateway: ServedGateway) -> None:
    gateway.get("/api/v2/metrics/queues/running")
    gateway.get("/no/such/route")

    def all_there() -> Values | None:
        values = scrape(gateway)
        there = at(values, "penstock_group_lag_messages", queue="orders", group="idle") == 5
        return values if there and "penstock_verify_differences" in names_in(values) else None

    values = eventually(all_there)
    assert at(values, "penstock_up") == 1
    assert at(values, "penstock_group_cold_messages", queue="orders", group="idle") == 5
    assert at(values, "penstock_group_warm_messages", queue="orders", group="idle") == 0
    assert (at(values, "penstock_group_oldest_age_seconds", queue="orders", group="idle") or 0) > 0
    assert at(values, "penstock_breaker_state", queue="orders", group="billing", state="open") == 1
    assert at(values, "penstock_breaker_state", queue="orders", group="billing", state="closed") == 0
    assert at(values, "penstock_breakers_open") == 1
    # The breaker opens when the first report has told it after how many errors: some messages may not have been tried.
    failed = len(populated.dead_letters("orders", "billing"))
    assert at(values, "penstock_cold_queued_count") == 5 + 5 - failed
    assert at(values, "penstock_queue_pushed_per_second", queue="orders") == pytest.approx(5 / 300)
    assert at(values, "penstock_group_failed_per_second", queue="orders", group="billing") == pytest.approx(
        failed / 300
    )
    assert at(values, "penstock_problems", check="breaker_open") == 1
    assert at(values, "penstock_lock_waits") == 0
    assert at(values, "penstock_pool_limit") == 16, "eight in each of two processes"
    assert all(value == 0 for (name, _), value in values.items() if name == "penstock_verify_differences")
    assert at(values, "penstock_http_requests_total", method="OTHER", route="none", status="404") == 1
    running = {"method": "GET", "route": "/api/v2/metrics/queues/running"}
    assert at(values, "penstock_http_requests_total", **running, status="200") == 1
    assert at(values, "penstock_http_request_seconds_count", **running) == 1
    assert {f"penstock_{name}_total" for name in NAMES} <= names_in(values)
    assert not any("partition" in dict(labels) for _, labels in values)


def test_alerts_and_dashboard_use_names_that_are_exported(populated: Client, gateway: ServedGateway) -> None:
    wanted = {name for used in used_names().values() for name in used}

    eventually(lambda: at(scrape(gateway), "penstock_group_lag_messages", queue="orders", group="idle") == 5)
    # Differences are there once the gateway has looked for them.
    eventually(lambda: wanted <= names_in(scrape(gateway)))


def test_a_database_that_is_away_is_shown_as_away_and_its_figures_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_CONNECT_TIMEOUT", "1")
    with run_gateway("postgresql://127.0.0.1:1/nowhere", timeout=1) as away:
        values = values_of(away.ask("GET", "//metrics").body)
        assert at(values, "penstock_up") == 0
        assert not any(name.startswith(("penstock_group_", "penstock_lock_")) for name in names_in(values))
        assert away.ask("GET", "//healthz").status == 200
        ready = away.ask("GET", "//readyz", headers={"X-Request-Id": "mine"})
        assert (ready.status, ready.json()["request_id"], ready.headers["x-request-id"]) == (503, "mine", "mine")


def test_groups_above_the_limit_are_added_up(client: Client, sql: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST", 3)
    for number in range(5):
        client.create_group("q", f"g{number}")
    client.push("q", [b"1", b"2"])
    client.sample()
    known = exposition.Known(client.facts(), client.tasks(), client.rates(), client.server(), client.differences())
    text = exposition.expose([], known).decode()
    found = {
        sample.labels["group"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "penstock_group_lag_messages"
    }
    assert found == {"g0": 2, "g1": 2, "g2": 2, "other": 4}
    assert "penstock_groups_not_shown 2.0" in text
