"""What else keeps people out: limits, sessions, checks of what browsers send, hostile bytes, unsafe addresses."""

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateways import RunningGateway, gateway
from penstock import Client, SetupError
from penstock.gateway.access.callers import Bucket
from penstock.gateway.access.settings import Access
from penstock.gateway.serving import Serving, bind

from .conftest import Headers


def test_requests_over_the_rate_limit_are_refused_with_the_time_to_wait(
    http: RunningGateway, key: Callable[..., Headers]
) -> None:
    sent = key("read", rate_limit=0.001, burst=3)
    answers = [http.ask("GET", "/queues", headers=sent) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[3].json()["code"] == "rate_limited"
    assert int(answers[3].headers["retry-after"]) > 1
    # It does not get more by asking for nothing.
    assert http.ask("GET", "/session", headers=sent).status == 429
    assert http.ask("GET", "//healthz", headers=sent).status == 200


def test_a_bucket_fills_up_again_and_not_beyond_its_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bucket = Bucket(2.0, 3)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now = 0.5
    assert [bucket.take(), bucket.take()] == [0.0, 0.5]
    now = 100.0
    assert [bucket.take() > 0 for _ in range(4)] == [False, False, False, True]


def test_a_browser_signs_in_with_a_key_and_has_a_cookie_that_no_script_reads(
    http: RunningGateway, owner: Client, shared_dsn: str
) -> None:
    made = owner.create_api_key("page", ["read", "pop:orders"])
    signed_in = http.ask("POST", "/session", {"key": made.key})
    cookie, *attributes = signed_in.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert made.key not in str(signed_in)
    assert signed_in.json()["scopes"] == ["read:*", "pop:orders"]
    who = http.get("/session", headers={"Cookie": cookie})
    assert (who["name"], who["scopes"], who["read_only"]) == ("key:page", ["read:*", "pop:orders"], False)
    assert http.ask("GET", "/queues", headers={"Cookie": cookie}).status == 200
    assert http.ask("DELETE", "/queues/orders", headers={"Cookie": cookie}).status == 403
    with psycopg.connect(shared_dsn) as connection:
        rows = connection.execute("SELECT s::text FROM penstock.key_sessions s").fetchall()
    assert cookie.partition("=")[2] not in str(rows)
    assert http.ask("DELETE", "/session", headers={"Cookie": cookie}).status == 204
    assert http.ask("GET", "/queues", headers={"Cookie": cookie}).status == 401


def test_nobody_signs_in_with_a_wrong_key_or_a_made_up_cookie(http: RunningGateway) -> None:
    for body in ({"key": "x"}, {"key": "pstk_0123456789ab_" + "0" * 64}, {"key": ""}):
        assert http.ask("POST", "/session", body).status == 401
    assert http.ask("POST", "/session", {"password": "x"}).status == 400
    assert http.ask("GET", "/session").status == 401
    assert http.ask("GET", "/session", headers={"Cookie": "penstock_session=x"}).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(
    http: RunningGateway, key: Callable[..., Headers], headers: Headers
) -> None:
    sent = {**key("admin"), **headers}
    answer = http.ask("POST", "/queues/orders/pause", headers=sent)
    assert (answer.status, answer.json()["code"]) == (403, "foreign_origin")
    read = http.ask("GET", "/queues", headers=sent)
    assert read.status == 200
    assert not [name for name in read.headers if name.startswith("access-control")]


def test_the_gateways_own_page_may_change_things(http: RunningGateway, key: Callable[..., Headers]) -> None:
    own = {"Origin": http.url, "Sec-Fetch-Site": "same-origin"}
    assert http.ask("POST", "/queues/orders/resume", headers={**key("admin"), **own}).status == 200


@pytest.fixture(scope="module")
def anybody(shared_dsn: str, owner: Client) -> Iterator[RunningGateway]:
    """A gateway on loopback that asks nobody."""
    with gateway(shared_dsn) as running:
        yield running


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:80", "127.0.0.1.evil.org", "", "[::1", "a@b"])
def test_without_authentication_only_names_of_this_machine_are_answered(anybody: RunningGateway, host: str) -> None:
    answer = anybody.ask("GET", "/queues", headers={"Host": host})
    assert answer.status in (400, 421)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered(anybody: RunningGateway, host: str) -> None:
    assert anybody.ask("GET", "/queues", headers={"Host": host}).status == 200
    who = anybody.get("/session", headers={"Host": host})
    assert (who["name"], who["scopes"]) == (None, ["admin:*"])


def raw(http: RunningGateway, request: bytes) -> bytes:
    """Send bytes, and return the first line of the answer."""
    with socket.create_connection((urlsplit(http.url).hostname, urlsplit(http.url).port), timeout=30) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline()


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization: Bearer \xff\xfe",
        b"Authorization: Bearer pstk_\xc3\xa9",
        b"Authorization: Bearer " + b"a" * 20_000,
        b"Authorization: Bearer " + b"." * 5_000,
        b"Authorization: ",
        b"Authorization: Bearer",
        b"Authorization: Bearer a\r\nAuthorization: Bearer b",
        b"Cookie: penstock_session=\xff",
        b"Cookie: penstock_session=" + b"x" * 10_000,
        b"Cookie: \x01=\x02;;;=",
    ],
)
def test_hostile_headers_are_refused_and_break_nothing(http: RunningGateway, header: bytes) -> None:
    line = raw(http, b"GET /api/v2/queues HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\nConnection: close\r\n\r\n")
    assert line.split(b" ")[1] in (b"400", b"401", b"431")


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (Access(), "would serve anybody"),
        (Access(keys=True), "in the clear"),
        (Access(keys=True, tls_cert="x"), "belong together"),
        (Access(keys=True, tls_cert="missing", tls_key="missing"), "cannot be used for TLS"),
        (Access(jwt_secret_file="x", insecure_http=True), "--jwt-issuer"),
        (Access(jwt_secret_file="missing", jwt_issuer="i", insecure_http=True), "cannot read"),
    ],
)
def test_a_gateway_that_would_be_open_to_the_world_does_not_start(access: Access, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        bind(Serving(host="0.0.0.0", port=0, access=access))


def test_behind_a_proxy_it_listens_without_tls(shared_dsn: str) -> None:
    bind(Serving(shared_dsn, host="0.0.0.0", port=0, access=Access(keys=True, insecure_http=True))).close()


def make_certificate(cert: Path, key: Path) -> None:
    """Make a certificate for this machine that signs itself."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        name, name, secret.public_key(), x509.random_serial_number(), now, now + timedelta(1)
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = made.add_extension(names, critical=False).sign(secret, SHA256())
    cert.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_tls_is_served_and_the_cookie_is_for_it_alone(shared_dsn: str, owner: Client, tmp_path: Path) -> None:
    cert, secret = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make_certificate(Path(cert), Path(secret))
    key = owner.create_api_key("over tls", ["read"]).key
    with gateway(shared_dsn, access=Access(keys=True, tls_cert=cert, tls_key=secret)) as http:
        trusted = ssl.create_default_context(cafile=cert)
        connection = HTTPSConnection("127.0.0.1", urlsplit(http.url).port, context=trusted, timeout=60)
        connection.request("POST", "/api/v2/session", f'{{"key": "{key}"}}')
        answer = connection.getresponse()
        assert answer.status == 200
        assert "; Secure" in str(answer.getheader("Set-Cookie"))
        connection.close()


def test_no_secret_is_in_a_log_or_an_answer(
    http: RunningGateway, owner: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = owner.create_api_key("quiet", ["read", "admin"])
    secret = made.key[-64:]
    sent = {"Authorization": f"Bearer {made.key}"}
    wrong = {"Authorization": f"Bearer pstk_0123456789ab_{secret}"}
    other = http.ask("POST", "/keys", {"name": "second", "scopes": ["read"]}, sent)
    rotated = http.ask("POST", "/keys/second/rotate", {}, sent)
    answers = [
        http.ask("GET", "/queues", headers=sent),
        http.ask("GET", "/nowhere", headers=sent),
        http.ask("GET", "/queues", headers=wrong),
        http.ask("POST", "/session", {"key": made.key, "more": 1}),
        http.ask("POST", "/session", {"key": [made.key]}),
        http.ask("POST", "/session", {"key": made.key}),
        http.ask("GET", "/keys?revoked=true", headers=sent),
        http.ask("GET", "/audit", headers=sent),
        http.ask("DELETE", "/keys/second", headers=sent),
    ]
    secrets = [secret, other.json()["key"][-64:], rotated.json()["key"][-64:]]
    assert [answer.status for answer in answers] == [200, 404, 401, 400, 400, 200, 200, 200, 200]
    everything = caplog.text + "".join(str((answer.headers, answer.body)) for answer in answers)
    assert not [each for each in secrets if each in everything]
    token = answers[5].headers["set-cookie"].partition("=")[2].partition(";")[0]
    assert token not in caplog.text


@pytest.mark.parametrize(
    "away", ["postgresql://its-user@127.0.0.1:1/its-name", "host=127.0.0.1 port=1 user=its-user dbname=its-name"]
)
def test_nobody_is_told_where_the_database_is_when_it_is_away(away: str) -> None:
    with gateway(away, timeout=1, access=Access(keys=True)) as http:
        answer = http.ask("GET", "/queues", headers={"Authorization": f"Bearer pstk_0123456789ab_{'0' * 64}"})
        ready = http.ask("GET", "//readyz")

    assert (answer.status, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert ready.status == 503
    for body in (answer.body, ready.body):
        assert b"its-" not in body
        assert b"127.0.0.1" not in body
