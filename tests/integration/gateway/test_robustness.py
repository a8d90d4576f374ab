"""large and broken bodies, slow heads, polls by the thousand; SIGTERM under load."""

import asyncio
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from databases import Connection
from gateways import Answer, RunningGateway, gateway
from penstock import AsyncClient, Client
from penstock.errors import PenstockError
from penstock.gateway import protocol
from penstock.gateway.gateway import Limits
from penstock.http import encoding

from .served import eventually

LEASE = b"1.1.0.00000000-0000-0000-0000-000000000001"


def test_a_body_over_the_limit_is_refused_and_one_below_is_taken(dsn: str) -> None:
    with gateway(dsn, max_body=10_000) as http:
        large = http.ask("POST", "/queues/q/messages", b"x" * 10_001, {"Content-Type": "application/octet-stream"})
        bomb = http.ask(
            "POST",
            "/queues/q/messages",
            gzip.compress(b"x" * 100_000),
            {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"},
        )
        packed = http.ask(
            "POST",
            "/queues/q/messages",
            gzip.compress(json.dumps({"messages": [{"value": "x" * 5000}]}).encode()),
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )

        assert (large.status, large.json()["code"]) == (413, "request_too_large")
        assert (bomb.status, bomb.json()["code"]) == (413, "request_too_large")
        assert packed.status == 201


@pytest.mark.parametrize("declared", [True, False])
def test_a_caller_that_sends_too_much_before_it_reads_gets_the_answer(dsn: str, declared: bool) -> None:
    limit = 4 << 20
    body = b"x" * (2 * limit)
    with gateway(dsn, max_body=limit) as http:
        # Far more than the buffers of a connection hold: if it were closed with that unread, it would be reset.
        sent = body if declared else (body[at : at + (1 << 16)] for at in range(0, len(body), 1 << 16))
        connection = HTTPConnection(urlsplit(http.url).netloc, timeout=60)
        with closing(connection):
            headers = {"Content-Type": "application/octet-stream"}
            connection.request("POST", "/api/v2/queues/q/messages", sent, headers)
            assert connection.getresponse().status == 413

        with Client(http.url) as client, pytest.raises(PenstockError, match="a request may have"):
            client.push("q", [body[: 1 << 20]] * 6)


def test_a_caller_that_asks_first_is_told_at_once_that_its_body_is_too_large(dsn: str) -> None:
    with gateway(dsn, max_body=10_000) as http:
        where = urlsplit(http.url)
        with socket.create_connection((where.hostname, where.port), 10) as raw:
            raw.sendall(
                b"POST /api/v2/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                b"Content-Type: application/octet-stream\r\nContent-Length: 10001\r\n\r\n"
            )
            raw.settimeout(20)
            assert raw.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_all_members_of_a_gzipped_body_are_taken(dsn: str) -> None:
    def push(body: bytes) -> Answer:
        return http.ask(
            "POST",
            "/queues/q/messages",
            body,
            {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )

    two = gzip.compress(b'{"value": 1, "partition": "p"}\n') + gzip.compress(b'{"value": 2, "partition": "p"}\n')
    with gateway(dsn, max_body=10_000) as http:
        assert push(two).json()["results"][0]["count"] == 2
        assert push(two + b"and more").status == 400
        assert push(two[:-1]).status == 400
        assert push(b"").status == 400
        assert push(gzip.compress(b" " * 9_000) * 2).status == 413
        assert [each["value"] for each in http.get("/queues/q/partitions/p/messages")["items"]] == [1, 2]


def test_a_batch_of_pops_may_wait_as_long_as_a_single_one(served: RunningGateway) -> None:
    known = served.server.gateway
    assert known is not None
    limits, known.limits = known.limits, Limits(answer_seconds=0.5)
    try:
        answer = served.ask("POST", "/pops", {"pops": [{"queue": "q"}], "wait": 1.5})
    finally:
        known.limits = limits
    assert answer.status == 204


@pytest.mark.parametrize("options", [{"lock_timeout": float("nan")}, {"batches": []}])
def test_an_operation_with_impossible_arguments_is_refused(served: RunningGateway, options: dict[str, Any]) -> None:
    segment = [1, b"x", b"\x01\0\0\0", None, None, None, None]
    names = ("count", "body", "ends", "keys", "key_ends", "headers", "header_ends")
    push = {"batches": [{"place": ["q", "p"], "segments": [dict(zip(names, segment, strict=True))]}], **options}

    answer = served.ask("POST", "/operations/Push", msgspec.msgpack.encode(push), {"Content-Type": encoding.MEDIA})

    assert (answer.status, answer.json()["code"]) == (400, "invalid_input")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", "/queues/q/messages", b"{", {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages", b"[" * 100_000, {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages", b'{"messages":[]}', {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages", b'{"messages":[{"value":"\\ud800"}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages", b"x", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ("POST", "/queues/q/messages", b"x", {"Content-Encoding": "br"}, 415, "unsupported_encoding"),
        ("POST", "/queues/q/messages", b"x", {"Content-Encoding": "gzip"}, 400, "invalid_input"),
        ("POST", "/queues/q/messages?partition=%ff", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages?dedupe_id=x", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/q/messages?unique_key=x", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/~x/messages", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/%ff/messages", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/%00/messages", b'{"messages":[{"value":1}]}', {}, 400, "invalid_input"),
        ("POST", "/queues/q/groups/g/pop?wait=-1", None, {}, 400, "invalid_input"),
        ("POST", "/queues/q/groups/g/pop?wait=1e9", None, {}, 400, "invalid_input"),
        ("POST", "/queues/q/groups/g/pop?nonsense=1", None, {}, 400, "invalid_input"),
        ("POST", "/acks", b'{"acks":[{"lease":"1.2.3"}]}', {}, 400, "invalid_input"),
        ("POST", "/acks", b'{"acks":[{"lease":"%b","start":2,"stop":1}]}' % LEASE, {}, 400, "invalid_input"),
        ("DELETE", f"/scheduled/{'9' * 5000}", None, {}, 400, "invalid_input"),
        ("GET", "/queues/nowhere", None, {}, 404, "not_found"),
        ("GET", "/nowhere", None, {}, 404, "no_such_route"),
        ("DELETE", "/acks", None, {}, 405, "method_not_allowed"),
        ("POST", "/operations/Push", b"\xc1", {"Content-Type": "application/msgpack"}, 400, "invalid_input"),
        ("GET", "/operations/ListQueues?arguments=!", None, {}, 400, "invalid_input"),
    ],
)
def test_a_request_that_is_wrong_gets_a_problem_with_a_code_and_changes_nothing(
    method: str, path: str, body: bytes | None, headers: dict[str, str], status: int, code: str, served: RunningGateway
) -> None:
    types = {} if body is None else {"Content-Type": "application/json"}

    answer = served.ask(method, path, body, {**types, **headers})

    assert (answer.status, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["hint"]
    assert served.get("/queues")["items"] == []


@pytest.fixture(scope="module")
def served(shared_dsn: str) -> Iterator[RunningGateway]:
    with gateway(shared_dsn) as running:
        yield running


@pytest.fixture(autouse=True)
def _emptied(dsn: str) -> None:
    """Begin with nothing."""


def test_a_body_of_any_depth_is_taken_or_refused(served: RunningGateway) -> None:
    # Who decodes it, and who writes it to the audit log, have the same limit at different depths of calls.
    answers = {
        served.ask(
            "PATCH", "/checks/breaker_open", b'{"settings":{"advice":%b}}' % (b"[" * depth + b"]" * depth)
        ).status
        for depth in range(900, 1000)
    }
    assert answers == {400}
    # The log of it can be read.
    acts = served.get("/audit")["items"]
    assert acts[0]["target"] == "/api/v2/checks/breaker_open"
    assert "…" in json.dumps(acts[0]["details"], ensure_ascii=False)


def test_a_head_of_a_stream_ends(served: RunningGateway) -> None:
    for path in ("/hints", "/events"):
        connection = HTTPConnection(urlsplit(served.url).netloc, timeout=20)
        with closing(connection):
            connection.request("HEAD", f"/api/v2{path}")
            assert connection.getresponse().read() == b""
            # It would wait for the end of the one before.
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity, gzip; q=0.0", False), ("x-gz", False)],
)
def test_answers_are_gzipped_for_those_who_take_it(served: RunningGateway, accepted: str, packed: bool) -> None:
    answer = served.ask("GET", "//openapi.json", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
    assert json.loads(gzip.decompress(answer.body) if packed else answer.body)["openapi"] == "3.1.0"


def test_names_may_have_any_characters(served: RunningGateway, dsn: str) -> None:
    served.post("/queues/a%2Fb/messages?partition=%E2%98%83%20%3F", {"messages": [{"value": 1}]})

    with Client(dsn) as client:
        assert [(queue.name, queue.messages) for queue in client.queues()] == [("a/b", 1)]
    assert served.get("/queues/a%2Fb/partitions/%E2%98%83%20%3F/messages")["items"][0]["value"] == 1


def test_bytes_that_are_no_request_are_refused_and_others_go_on(served: RunningGateway) -> None:
    chance = random.Random(7)
    where = urlsplit(served.url)
    for _ in range(50):
        with socket.create_connection((where.hostname, where.port), 10) as raw:
            raw.sendall(chance.randbytes(chance.randrange(1, 300)) + b"\r\n\r\n")
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(20)
            assert raw.recv(4096)[:12] in (b"HTTP/1.1 400", b"")

    assert served.get("//healthz")["status"] == "alive"


def test_a_head_that_does_not_end_is_cut_off(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with gateway(dsn) as http:
        where = urlsplit(http.url)
        for sent in (b"", b"GET / HTTP/1.1\r\nX-Slow: "):
            with socket.create_connection((where.hostname, where.port), 10) as raw:
                raw.sendall(sent)
                raw.settimeout(20)
                assert raw.recv(100) == b""
        with socket.create_connection((where.hostname, where.port), 10) as raw:
            raw.settimeout(20)
            raw.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * (protocol.HEAD_BYTES + 1))
            answer = raw.recv(4096)
            assert answer[:12] == b"HTTP/1.1 431"
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "head_too_large"


@pytest.mark.parametrize("more", [b"\r\n", b"x"])
def test_a_connection_whose_next_request_does_not_begin_is_cut_off(
    dsn: str, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with gateway(dsn) as http:
        where = urlsplit(http.url)
        with socket.create_connection((where.hostname, where.port), 10) as raw:
            raw.settimeout(20)
            # It is answered before its body is there: what comes then is the rest of that, or an empty line.
            length = b"Content-Length: 1000\r\n" if more == b"x" else b""
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n")
            answer = raw.recv(4096)
            while not answer.endswith(b"}"):
                answer += raw.recv(4096)
            assert answer[:12] == b"HTTP/1.1 200"
            raw.sendall(more)
            assert raw.recv(100) == b""


def test_what_cannot_be_read_gets_a_problem_like_all_else(served: RunningGateway) -> None:
    where = urlsplit(served.url)
    with socket.create_connection((where.hostname, where.port), 10) as raw:
        raw.sendall(b"GET nonsense\r\n\r\n")
        head, _, body = b"".join(iter(lambda: raw.recv(4096), b"")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (400, "bad_request")
    assert problem["hint"]


@pytest.mark.parametrize("host", ["localhost", "localhost:1"])
def test_a_slash_too_many_leads_to_the_path_without_it_whatever_the_host_is(served: RunningGateway, host: str) -> None:
    answer = served.ask("GET", "/queues/?limit=5", headers={"Host": host})
    assert (answer.status, answer.headers["location"]) == (307, "/api/v2/queues?limit=5")
    named = served.ask("GET", "/queues/a%2Fb/", headers={"Host": host})
    assert named.headers["location"] == "/api/v2/queues/a%2Fb"


@pytest.mark.parametrize("path", ["///evil.example.org/", "//%2F%2Fevil.example.org/", "//nowhere/", "//queues//"])
def test_a_slash_too_many_leads_nowhere_else(served: RunningGateway, path: str) -> None:
    answer = served.ask("GET", path)
    assert (answer.status, answer.headers.get("location")) == (404, None)


def test_a_caller_who_does_not_read_its_answer_is_cut_off(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)
    with Client(dsn) as client, gateway(dsn) as http:
        client.push("q", ["x" * 100_000] * 300, partition="p")
        where = urlsplit(http.url)
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(20)
            raw.connect((where.hostname, where.port))
            raw.sendall(b"GET /api/v2/queues/q/partitions/p/messages?limit=300 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(15) == b"HTTP/1.1 200 OK"
            deadline = time.monotonic() + 60
            while http.server.server_state.connections:
                assert time.monotonic() < deadline, "the connection is still there"
                time.sleep(0.05)


def test_a_caller_who_reads_slowly_gets_all_of_its_answer(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.5)
    with Client(dsn) as client, gateway(dsn) as http:
        client.push("q", ["x" * 100_000] * 100, partition="p")
        where = urlsplit(http.url)
        request = b"GET /api/v2/queues/q/partitions/p/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            raw.settimeout(20)
            raw.connect((where.hostname, where.port))
            raw.sendall(request)
            size = 0
            while part := raw.recv(65_536):
                size += len(part)
                time.sleep(0.01)
    assert size > 10_000_000


def test_a_thousand_idle_polls_write_nothing_and_hold_nobody_up(served: RunningGateway, sql: Connection) -> None:
    served.post("/queues/q/messages", {"messages": [{"value": 1}]})
    assert served.post("/queues/q/groups/g/pop?auto_ack=true&wait=10") is not None
    served.ask("POST", "/queues/q/groups/g/pop")

    async def poll_many() -> tuple[int, int, float]:
        where = urlsplit(served.url)
        request = b"POST /api/v2/queues/q/groups/g/pop?wait=%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

        async def poll() -> bytes:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(request % 5)
            answer = await reader.read(12)
            writer.close()
            return answer

        polls = [asyncio.create_task(poll()) for _ in range(1000)]
        await asyncio.sleep(2)
        written = _written(sql)
        began = time.monotonic()
        await asyncio.to_thread(served.get, "//healthz")
        took = time.monotonic() - began
        await asyncio.sleep(1)
        return _written(sql) - written, [await each for each in polls].count(b"HTTP/1.1 204"), took

    written, empty, took = asyncio.run(poll_many())

    assert empty == 1000
    assert took < 5
    # The server itself may write a little, a snapshot of what runs; a thousand pops that write would be far more.
    assert written < 100_000


def _written(sql: Connection) -> int:
    [(position,)] = sql.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchall()
    return int(position)


@contextmanager
def serving(dsn: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `penstock serve` as a process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_URL": dsn},
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def test_sigterm_under_load_loses_no_push_that_was_answered(dsn: str) -> None:
    with serving(dsn, "--workers", "2") as (process, url):
        answered: list[int] = []

        def push() -> None:
            # One connection each: what is cut off is not sent again.
            number = threading.get_ident()
            with Client(url, timeout=10) as client:
                for count in range(10_000):
                    try:
                        client.push("load", f"{number}-{count}".encode(), partition=str(number % 4))
                    except Exception:
                        return
                    answered.append(1)

        with Client(url, timeout=60):
            # Both processes have begun, or the first to answer has.
            pass
        threads = [threading.Thread(target=push) for _ in range(4)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(answered) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        for thread in threads:
            thread.join(60)

    with Client(dsn) as client:
        assert code == 0
        assert client.describe("load").messages >= len(answered)


def test_processes_end_when_the_one_that_started_them_is_killed(dsn: str) -> None:
    def answers() -> bool:
        try:
            with closing(HTTPConnection(urlsplit(url).netloc, timeout=10)) as connection:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
        except OSError:
            return False

    with serving(dsn, "--workers", "2") as (process, url):
        eventually(answers)
        process.kill()
        process.wait(60)

        # The port is free again, so that it can be started anew.
        eventually(lambda: not answers())


def test_two_gateways_of_one_database_never_lease_a_message_twice(dsn: str) -> None:
    count = 200
    with Client(dsn) as client:
        client.push_many("q", [(str(n % 20), n) for n in range(count)])
    with gateway(dsn) as first, gateway(dsn) as second:

        async def consume() -> list[Any]:
            async with AsyncClient(first.url) as one, AsyncClient(second.url) as other:

                async def take(client: AsyncClient) -> list[Any]:
                    found = []
                    while (batch := await client.pop("q", "g", max_messages=3, wait=0.5)) is not None:
                        found += [message.json() for message in batch]
                        await batch.ack()
                    return found

                taken = await asyncio.gather(*(take(client) for client in (one, other) for _ in range(4)))
                return [each for some in taken for each in some]

        handled = asyncio.run(consume())

    assert sorted(handled) == list(range(count))
