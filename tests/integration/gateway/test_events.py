"""Server-sent events: whole snapshots for all who listen, from one poller, which rests while nobody does."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from databases import Connection
from gateways import RunningGateway, gateway
from penstock import Client
from penstock.gateway import protocol
from penstock.gateway.monitoring import feed

from .served import eventually


class Event(NamedTuple):
    id: str
    figures: dict[str, Any]


class Listener:
    """Reads events from a connection."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.heartbeats = 0

    def next(self) -> Event:
        """Wait for the next event."""
        fields: dict[str, str] = {}
        while True:
            line = self.response.readline().decode()
            assert line, "the stream has ended"
            name, _, value = line.rstrip("\n").partition(": ")
            if line.startswith(":"):
                self.heartbeats += 1
            elif name:
                fields[name] = value
            elif "data" in fields:
                assert fields["event"] == "figures"
                return Event(fields["id"], json.loads(fields["data"]))

    def until(self, wanted: Any) -> Event:
        while not wanted((event := self.next()).figures):
            pass
        return event


@contextmanager
def listening(running: RunningGateway, last_id: str | None = None) -> Iterator[Listener]:
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    connection.request("GET", "/api/v2/events", headers=headers)
    response = connection.getresponse()
    try:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield Listener(response)
    finally:
        response.close()
        connection.close()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "EVERY", 0.1)
    monkeypatch.setattr(feed, "HEARTBEAT", 0.3)


def test_an_event_has_totals_rows_of_groups_and_problems_with_advice(client: Client, http: RunningGateway) -> None:
    client.create_group("orders", "billing")
    client.configure_check("workers_missing", duration=0)
    with listening(http) as listener:
        empty = listener.next().figures
        assert (empty["reachable"], empty["totals"]["lag"], empty["groups"]) == (True, 0, [])
        client.push("orders", [1, 2, 3])
        found = listener.until(lambda figures: figures["totals"]["lag"] == 3 and figures["problems"]).figures
    assert {name: found["totals"][name] for name in ("cold", "warm", "open_breakers", "running_tasks")} == {
        "cold": 3,
        "warm": 0,
        "open_breakers": 0,
        "running_tasks": 0,
    }
    assert found["totals"]["oldest_at"].endswith("Z")
    assert (found["totals"]["rate_period"], found["totals"]["rates_as_of"]) == (300, None)
    [row] = found["groups"]
    assert (row["queue"], row["group"], row["lag"], row["breaker"]) == ("orders", "billing", 3, "closed")
    [problem] = found["problems"]
    assert (problem["check"], problem["group"]) == ("workers_missing", "billing")
    assert problem["advice"]


def test_rates_come_with_the_time_of_the_last_report(client: Client, sql: Connection, http: RunningGateway) -> None:
    client.create_group("orders", "billing")
    client.push("orders", 1)
    sql.execute(
        "SELECT penstock.record_metrics('{orders,orders}', '{pushed,failed}', '{600,300}',"
        ' ARRAY[NULL, \'{"group": "billing"}\']::jsonb[])'
    )
    with listening(http) as listener:
        found = listener.until(lambda figures: figures["groups"]).figures
    assert (found["totals"]["push_rate"], found["totals"]["error_rate"]) == (2, 1)
    assert found["totals"]["rates_as_of"]
    assert (found["groups"][0]["push_rate"], found["groups"][0]["error_rate"]) == (2, 1)


def test_who_comes_back_gets_what_it_has_not_seen_and_nothing_twice(client: Client, http: RunningGateway) -> None:
    client.create_group("orders", "billing")
    with listening(http) as first, listening(http) as second:
        seen = first.next()
        assert second.next() == seen, "all who listen get the same snapshot"
        with listening(http, seen.id) as again:
            client.push("orders", 1)
            assert again.next().figures["totals"]["lag"] == 1
            eventually(lambda: again.response.readline().startswith(b":"))


def test_nobody_polls_while_nobody_listens(client: Client, http: RunningGateway) -> None:
    assert http.server.gateway is not None
    counted = http.server.gateway.instruments.operations.labels("GetFacts")._value
    with listening(http) as listener:
        listener.next()
    eventually(lambda: http.server.gateway and http.server.gateway.feed.listeners == 0)
    before = counted.get()
    # Long enough for several polls, were there any.
    threading.Event().wait(10 * feed.EVERY)
    assert counted.get() == before


def test_there_is_a_limit_to_how_many_listen(
    client: Client, http: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.server.gateway is not None
    monkeypatch.setattr(http.server.gateway.feed.slots, "most", 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(listening(http)).next()
        refused = http.ask("GET", "/events")
        assert (refused.status, refused.json()["code"]) == (503, "too_many_listeners")
        assert refused.headers["retry-after"] == "10"
    eventually(lambda: http.server.gateway and http.server.gateway.feed.listeners == 0)


def test_a_database_that_is_away_gives_an_event_without_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_CONNECT_TIMEOUT", "1")
    with gateway("postgresql://127.0.0.1:1/nowhere", timeout=1, verify_every=0) as away, listening(away) as listener:
        found = listener.next().figures
    assert found["reachable"] is False
    assert "127.0.0.1" in found["error"]
    assert (found["totals"], found["groups"], found["problems"]) == (None, None, None)


def test_a_gateway_that_ends_ends_its_streams(client: Client, dsn: str) -> None:
    with gateway(dsn) as running, listening(running) as listener:
        listener.next()
        running.server.handle_exit(15, None)
        eventually(lambda: not listener.response.readline())


def test_a_listener_who_never_reads_is_cut_off_and_frees_its_place(
    client: Client, http: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)
    # So often that what may wait unread is soon too much.
    monkeypatch.setattr(feed, "HEARTBEAT", 0.0001)
    where = urlsplit(http.url)
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((where.hostname, where.port))
        silent.sendall(b"GET /api/v2/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: http.server.gateway and http.server.gateway.feed.listeners == 1)
        eventually(lambda: http.server.gateway and http.server.gateway.feed.listeners == 0)
