"""Every route of the table, with every scope, without a key, with one that is over, and with one of another queue."""

from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from gateways import RunningGateway, gateway
from penstock import Client
from penstock.gateway.access import keyring
from penstock.gateway.access.settings import Access
from penstock.gateway.route import Route
from penstock.gateway.scopes import Scope
from penstock.gateway.table import TABLE
from penstock.http import encoding

from .conftest import Headers

KEYS = {
    "push": ("push:*",),
    "pop": ("pop:*",),
    "read": ("read:*",),
    "admin": ("admin:*",),
    "other queue": ("push:other", "pop:other", "read:other", "admin:other"),
}
# What each scope is enough for.
ENOUGH = {
    Scope.PUSH: {"push", "admin"},
    Scope.POP: {"pop", "admin"},
    Scope.READ: {"read", "admin"},
    Scope.ADMIN: {"admin"},
    Scope.USE: {"push", "pop", "admin"},
}
CLOSED = [row for row in TABLE if row.scope is not Scope.NONE]


def path_of(route: Route) -> str:
    """Return a path of a route, about the queue `orders` where it has a place for one."""
    # Without arguments nothing can be decoded, so that a route that lets somebody in answers 400 and changes nothing.
    return "/" + "/".join(
        "orders" if part == "{queue}" else "zzz" if part.startswith("{") else part for part in route.path.split("/")
    )


def status(http: RunningGateway, route: Route, headers: Headers) -> int:
    """Ask for a route, with a body that no route can decode, so that who is let in changes as little as possible."""
    body = None if route.body is None else b"\xff"
    media = {"Content-Type": route.media[0]} if body else {}
    if route.streams:
        # It would not end.
        with closing(HTTPConnection(urlsplit(http.url).netloc, timeout=60)) as connection:
            connection.request(route.method, path_of(route)[1:], headers=headers)
            return connection.getresponse().status
    return http.ask(route.method, path_of(route), body, {**media, **headers}).status


@pytest.fixture(scope="module")
def keys(key: Callable[..., Headers]) -> dict[str, Headers]:
    return {name: key(*scopes) for name, scopes in KEYS.items()}


@pytest.fixture(scope="module")
def over(owner: Client, shared_dsn: str, http: RunningGateway) -> dict[str, Headers]:
    """Keys that were good for everything, and are not any more."""
    made = {name: owner.create_api_key(name, ["admin"]).key for name in ("expired", "revoked", "rotated")}
    sent = {name: {"Authorization": f"Bearer {text}"} for name, text in made.items()}
    # They must not be remembered as good ones.
    owner.revoke_api_key("revoked")
    owner.rotate_api_key("rotated")
    with psycopg.connect(shared_dsn) as connection:
        connection.execute("UPDATE penstock.api_keys SET expires_at = now() WHERE name = 'expired'")
    nearly = made["revoked"][:-1] + ("0" if made["revoked"][-1] != "0" else "1")
    return {
        **sent,
        "none": {},
        "wrong": {"Authorization": f"Bearer {nearly}"},
        "basic": {"Authorization": "Basic eA=="},
    }


def test_nobody_gets_in_without_a_key_that_counts(http: RunningGateway, over: dict[str, Headers]) -> None:
    found = {
        (row.method, row.path, kind): answered
        for row in CLOSED
        for kind, headers in over.items()
        if (answered := status(http, row, headers)) != 401
    }
    assert found == {}


def test_a_route_is_for_those_who_have_its_scope_and_for_nobody_else(
    http: RunningGateway, keys: dict[str, Headers], owner: Client
) -> None:
    wrong = {}
    for row in CLOSED:
        for name in ("push", "pop", "read", "admin"):
            if name == "admin" and row.method == "DELETE" and row.path == "/api/v2/queues/{queue}":
                # It would work.
                continue
            answered = status(http, row, keys[name])
            assert answered not in (401, 429), row
            if (answered != 403) != (name in ENOUGH[row.scope]):
                wrong[row.method, row.path, name] = answered
    assert wrong == {}


def test_a_key_of_another_queue_gets_nowhere(http: RunningGateway, keys: dict[str, Headers]) -> None:
    found = {
        (row.method, row.path): answered
        for row in CLOSED
        # What is only in the body is in test_bodies.py.
        if not (row.in_body or row.shows) and (answered := status(http, row, keys["other queue"])) != 403
        # A query may name a queue; here it does not, so all are meant.
    }
    assert found == {}


def test_routes_that_say_in_their_bodies_what_they_are_about_are_known() -> None:
    # The last one shows what the caller may see, and no more.
    known = {"pops", "acks", "nacks", "snoozes", "renewals", "releases", "transactions", "jobs", "hints"}
    found = {row.path.removeprefix("/api/v2/") for row in TABLE if row.in_body}
    assert {path for path in found if not path.startswith("operations/")} == known


@pytest.fixture(scope="module")
def standby(shared_dsn: str, owner: Client) -> Iterator[RunningGateway]:
    with gateway(shared_dsn, access=Access(keys=True, read_only=True)) as running:
        yield running


def test_a_read_only_gateway_refuses_every_change_and_answers_every_question(
    standby: RunningGateway, keys: dict[str, Headers]
) -> None:
    wrong = {}
    for row in CLOSED:
        if row.streams and row.scope is Scope.READ:
            # It has no end.
            assert status(standby, row, keys["admin"]) == 200
            continue
        answered = standby.ask(row.method, path_of(row), None, keys["admin"])
        reads = row.method == "GET" and row.scope in (Scope.READ, Scope.ADMIN)
        refused = answered.status == 503 and answered.json()["code"] == "read_only_server"
        if refused == reads:
            wrong[row.method, row.path] = answered
    assert wrong == {}


def test_a_read_only_gateway_serves_a_server_that_takes_no_writes(shared_dsn: str, keys: dict[str, Headers]) -> None:
    standby_dsn = make_conninfo(shared_dsn, options="-c default_transaction_read_only=on")
    with gateway(standby_dsn, access=Access(keys=True, read_only=True)) as http:
        assert http.ask("GET", "//readyz").status == 200
        for path in ("/queues", "/queues/orders", "/queues/orders/groups", "/groups", "/status", "/keys", "/audit"):
            assert http.ask("GET", path, headers=keys["admin"]).status == 200, path
        assert http.ask("GET", "/queues/orders/partitions/p/messages", headers=keys["read"]).status == 200
        # Nothing that only asks writes.
        asked = [row for row in CLOSED if row.method == "GET" and not row.streams]
        answers = {row.path: http.ask("GET", path_of(row), headers=keys["admin"]) for row in asked}
        assert {path: answer for path, answer in answers.items() if answer.status >= 500} == {}


def test_a_read_only_gateway_writes_nothing(standby: RunningGateway, owner: Client, shared_dsn: str) -> None:
    made = owner.create_api_key("standby", ["read"])
    sent = {"Authorization": f"Bearer {made.key}"}
    assert standby.ask("GET", "//readyz").status == 200
    assert len(standby.get("/queues", headers=sent)["items"]) == 2
    signed_in = standby.ask("POST", "/session", {"key": made.key})
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    assert standby.get("/session", headers=cookie)["name"] == "key:standby"
    assert standby.get("/session", headers=cookie)["read_only"] is True
    assert standby.ask("DELETE", "/session", headers=cookie).status == 204
    assert standby.ask("GET", "/session", headers=cookie).status == 401
    with psycopg.connect(shared_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM penstock.key_sessions").fetchone() == (0,)
        used = connection.execute("SELECT last_used_at FROM penstock.api_keys WHERE name = 'standby'").fetchone()
    assert used == (None,)


@pytest.mark.parametrize("grace", [0, 600])
def test_rotating_a_key_ends_its_sessions_at_a_read_only_gateway(
    standby: RunningGateway, owner: Client, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    monkeypatch.setattr(keyring, "KEPT_FOR", 0.0)
    made = owner.create_api_key(f"rotated {grace}", ["read"])
    signed_in = standby.ask("POST", "/session", {"key": made.key})
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    assert standby.ask("GET", "/session", headers=cookie).status == 200

    owner.rotate_api_key(made.info.name, grace=grace)

    assert standby.ask("GET", "/session", headers=cookie).status == 401


def test_every_operation_says_which_queues_it_is_about() -> None:
    names = {*encoding.operations(), encoding.TOGETHER}
    assert {row.path for row in TABLE if row.path.startswith("/api/v2/operations/")} <= {
        f"/api/v2/operations/{name}" for name in names
    }
    assert all(row.in_body for row in TABLE if row.path.startswith("/api/v2/operations/"))


def test_a_revoked_key_is_refused_within_the_bound_and_at_once_where_it_was_not_used(
    http: RunningGateway, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = owner.create_api_key("brief", ["read"])
    sent = {"Authorization": f"Bearer {made.key}"}
    assert http.ask("GET", "/queues", headers=sent).status == 200
    owner.revoke_api_key("brief")
    monkeypatch.setattr(keyring, "KEPT_FOR", 0.0)
    assert http.ask("GET", "/queues", headers=sent).status == 401
