"""The OpenAPI description: every answer fits it, whatever is sent, and none is an error of the server."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from gateways import RunningGateway, gateway
from penstock import Client, Message
from penstock.gateway.openapi import description_of_table
from penstock.gateway.route import Route
from penstock.gateway.table import TABLE

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# A long poll of a minute, a stream without end, and what the tests themselves live on.
ROOT = Path(__file__).parents[3]
LEFT_OUT = ["/api/v2/events", "/api/v2/hints"]


@pytest.fixture(scope="module")
def served(shared_dsn: str) -> Any:
    with Client(shared_dsn) as client:
        client.push("orders", [Message({"id": n}, key="k", partition="p") for n in range(5)])
        client.create_group("orders", "billing")
        client.schedule("daily", "orders", "x", every="1 day")
    with gateway(shared_dsn) as running:
        yield running


DESCRIBED = schemathesis.openapi.from_dict(description_of_table())
ROUTES = [row for row in TABLE if row.described and row.path not in LEFT_OUT]


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_every_answer_fits_its_description(row: Route, served: RunningGateway) -> None:
    @hypothesis.settings(
        max_examples=4, suppress_health_check=list(hypothesis.HealthCheck), database=None, derandomize=True
    )
    @hypothesis.given(case=DESCRIBED[row.path][row.method].as_strategy())
    def ask(case: Any) -> None:
        for given in (case.query, case.body):
            if isinstance(given, dict):
                given.pop("wait", None)
        case.call_and_validate(base_url=served.url, checks=CHECKS, timeout=60)

    ask()


def test_the_description_has_every_route_that_is_not_for_clients_alone() -> None:
    described = {
        (method.upper(), path) for path, methods in description_of_table()["paths"].items() for method in methods
    }

    assert described == {(row.method, row.path) for row in TABLE if row.described}
    assert {row.path.split("/")[3] for row in TABLE if not row.described and row.path.startswith("/api")} == {
        "operations"
    }
    names = [
        operation["operationId"]
        for methods in description_of_table()["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len(set(names))


def test_the_page_has_no_other_origin_and_no_inline_script(served: RunningGateway) -> None:
    page = served.ask("GET", "//docs")
    script = served.ask("GET", "//docs/docs.js")

    assert (page.status, script.status) == (200, 200)
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert b"<script src=" in page.body
    assert page.body.count(b"<script") == 1
    assert b"//" not in page.body.replace(b"<!doctype", b"")
    assert served.ask("GET", "//docs/../openapi.py").status == 404


def test_the_reference_has_every_route_with_its_scope() -> None:
    text = (ROOT / "docs" / "reference" / "rest.md").read_text("utf-8")

    assert [row for row in ROUTES if f"| {row.method} | `{row.path}` | {row.scope} |" not in text] == []
