"""Tokens: good ones are taken, and whatever somebody can do to one is refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from gateways import RunningGateway, gateway
from penstock import Client, SetupError
from penstock.errors import Unauthenticated, Unavailable
from penstock.gateway.access import jwks
from penstock.gateway.access.jwks import load_keys
from penstock.gateway.access.settings import Access
from penstock.gateway.access.tokens import LONGEST, Tokens

SECRET = b"0123456789abcdef0123456789abcdef"
RSA_KEY = rsa.generate_private_key(65537, 2048)
ED_KEY = ed25519.Ed25519PrivateKey.generate()
ISSUER = "https://id.example.org"


def public_set() -> dict[str, Any]:
    secret = {"kty": "oct", "kid": "h", "k": base64.urlsafe_b64encode(SECRET).decode().rstrip("=")}
    return {
        "keys": [
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "r", "use": "sig"},
            {**OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True), "kid": "e"},
            secret,
            {"kty": "EC", "kid": "another kind", "crv": "P-256", "x": "", "y": ""},
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "for encryption", "use": "enc"},
        ]
    }


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("jwks") / "keys.json"
    path.write_text(json.dumps(public_set()))
    return str(path)


@pytest.fixture
def tokens(key_file: str) -> Tokens:
    return Tokens(load_keys(key_file, None), issuer=ISSUER, audience="penstock", leeway=5)


def claims(**changed: Any) -> dict[str, Any]:
    some = {"sub": "ada", "iss": ISSUER, "aud": "penstock", "exp": time.time() + 60, "penstock": ["read"]}
    return {name: value for name, value in {**some, **changed}.items() if value is not None}


def signed(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "r", **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm, {"kid": kid} if kid else {})


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def by_hand(header: dict[str, Any], sign: Callable[[bytes], bytes], payload: Any = None) -> str:
    """Make a token of any kind, as no library would."""
    text = f"{encoded(header)}.{encoded(claims() if payload is None else payload)}"
    return f"{text}.{base64.urlsafe_b64encode(sign(text.encode())).decode().rstrip('=')}"


def hs256(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.new(secret, text, hashlib.sha256).digest()


PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
PUBLIC_ED = ED_KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

GOOD: dict[str, Callable[[], str]] = {
    "RS256": signed,
    "EdDSA": lambda: signed(ED_KEY, "EdDSA", "e"),
    "HS256": lambda: signed(SECRET, "HS256", "h"),
    "without kid": lambda: signed(kid=None),
    "of one audience of several": lambda: signed(aud=["penstock", "shop"]),
    "expired within the leeway": lambda: signed(exp=time.time() - 2),
}
BAD: dict[str, Callable[[], str]] = {
    "none": lambda: by_hand({"alg": "none", "kid": "r"}, lambda text: b""),
    "None": lambda: by_hand({"alg": "None"}, lambda text: b""),
    "public key as a secret": lambda: by_hand({"alg": "HS256", "kid": "r"}, hs256(PUBLIC_PEM)),
    "public key as a secret, without kid": lambda: by_hand({"alg": "HS256"}, hs256(PUBLIC_PEM)),
    "public Ed25519 key as a secret": lambda: by_hand({"alg": "HS256", "kid": "e"}, hs256(PUBLIC_ED)),
    "another algorithm of the same key": lambda: signed(RSA_KEY, "RS512", "r"),
    "PS256": lambda: signed(RSA_KEY, "PS256", "r"),
    "empty secret": lambda: by_hand({"alg": "HS256", "kid": "h"}, hs256(b"")),
    "expired": lambda: signed(exp=time.time() - 60),
    "never expires": lambda: signed(exp=None),
    "not yet": lambda: signed(nbf=time.time() + 60),
    "wrong audience": lambda: signed(aud="shop"),
    "no audience": lambda: signed(aud=None),
    "wrong issuer": lambda: signed(iss="https://evil.example.org"),
    "no issuer": lambda: signed(iss=None),
    "no subject": lambda: signed(sub=None),
    "subject with a line break": lambda: signed(sub="a\nb"),
    "subject too long": lambda: signed(sub="x" * 201),
    "unknown kid": lambda: signed(kid="x"),
    "kid of an encryption key": lambda: signed(kid="for encryption"),
    "another's key": lambda: signed(rsa.generate_private_key(65537, 2048)),
    "huge": lambda: signed(padding="x" * LONGEST),
    "critical header": lambda: jwt.encode(claims(), RSA_KEY, "RS256", {"kid": "r", "crit": ["b64"]}),
    "key in the header": lambda: by_hand({"alg": "HS256", "jwk": {"kty": "oct", "k": "eA"}, "kid": "x"}, hs256(b"x")),
    "no JSON": lambda: "a.b.c",
    "claims are a list": lambda: by_hand({"alg": "HS256", "kid": "h"}, hs256(SECRET), [1]),
    "times are texts": lambda: signed(SECRET, "HS256", "h", exp="soon"),
    "times without end": lambda: by_hand({"alg": "HS256", "kid": "h"}, hs256(SECRET), claims(exp=float("inf"))),
    "header is a list": lambda: f"{encoded([])}.{encoded(claims())}.x",
    "deep": lambda: base64.urlsafe_b64encode(b"[" * 3000).decode() + ".e30.x",
    "empty": lambda: "",
    "dots": lambda: "..",
    "bad scopes": lambda: signed(penstock=["everything"]),
    "scopes of another type": lambda: signed(penstock={"a": 1}),
    "scopes as the names of an object": lambda: signed(penstock={"admin": True}),
    "scopes as one text": lambda: signed(penstock="admin"),
    "an empty object": lambda: signed(penstock={}),
    "false": lambda: signed(penstock=False),
    "a list in the list": lambda: signed(penstock=[["admin"]]),
    "words as a list": lambda: signed(penstock=None, scope=["penstock:admin"]),
    "words as an object": lambda: signed(penstock=None, scope={"penstock:admin": 1}),
}


@pytest.mark.parametrize("name", GOOD)
async def test_a_good_token_is_taken(tokens: Tokens, name: str) -> None:
    caller = await tokens.by_token(GOOD[name]())
    assert (caller.name, caller.grants.texts()) == ("jwt:ada", ["read:*"])


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(Unauthenticated):
        await tokens.by_token(BAD[name]())


async def test_a_changed_token_is_refused_wherever_it_was_changed(tokens: Tokens) -> None:
    good = signed()
    for place in range(0, len(good), 37):
        other = "A" if good[place] != "A" else "B"
        with pytest.raises(Unauthenticated):
            await tokens.by_token(good[:place] + other + good[place + 1 :])


async def test_scopes_come_from_a_list_or_from_words_with_our_prefix(tokens: Tokens) -> None:
    listed = await tokens.by_token(signed(penstock=["push:orders-*", "read"]))
    worded = await tokens.by_token(signed(penstock=None, scope="openid admin penstock:pop:orders penstock:read"))
    neither = await tokens.by_token(signed(penstock=None, scope="admin push"))
    assert listed.grants.texts() == ["push:orders-*", "read:*"]
    assert worded.grants.texts() == ["pop:orders", "read:*"]
    assert neither.grants.texts() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no JSON", "not a JWK set"),
        ("{}", "not a JWK set"),
        ('{"keys": []}', "no key"),
        ('{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "has 5 bytes"),
        ('{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}]}', "JWK set|bits"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed448"}]}', "JWK set"),
    ],
)
def test_a_set_without_good_keys_is_refused_and_not_shown(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SetupError, match=said) as raised:
        load_keys(str(path), None)
    assert "c2hvcnQ" not in str(raised.value)


def test_files_and_addresses_are_checked(tmp_path: Path) -> None:
    short = tmp_path / "secret"
    short.write_text("short\n")
    with pytest.raises(SetupError, match="openssl rand"):
        load_keys(None, str(short))
    with pytest.raises(SetupError, match="cannot read"):
        load_keys(str(tmp_path / "missing"), None)
    with pytest.raises(SetupError, match="https"):
        load_keys("http://id.example.org/jwks.json", None)


class Issuer(HTTPServer):
    """Serves a JWK set, and counts who asks."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (200, json.dumps(public_set()).encode())
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                self.asked += 1
                handler.send_response(self.answer[0])
                handler.send_header("Location", "http://127.0.0.1:1/")
                handler.end_headers()
                handler.wfile.write(self.answer[1])

            def log_message(handler, format: str, *arguments: Any) -> None:  # noqa: A002, N805
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/jwks.json"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_keys_at_an_address_are_fetched_once_and_again_for_an_unknown_one(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(load_keys(issuer.url, None), issuer=ISSUER, audience="penstock", leeway=5)
    await asyncio.gather(*(tokens.by_token(signed()) for _ in range(5)))
    assert issuer.asked == 1
    new = rsa.generate_private_key(65537, 2048)
    jwk = {**RSAAlgorithm.to_jwk(new.public_key(), as_dict=True), "kid": "n"}
    issuer.answer = 200, json.dumps({"keys": [jwk]}).encode()
    # Nobody can have it fetched all the time.
    with pytest.raises(Unauthenticated):
        await tokens.by_token(signed(new, kid="n"))
    assert issuer.asked == 1
    monkeypatch.setattr(jwks, "_SOONEST", 0.0)
    assert (await tokens.by_token(signed(new, kid="n"))).name == "jwt:ada"
    with pytest.raises(Unauthenticated):
        await tokens.by_token(signed())


async def test_a_secret_counts_beside_the_keys_at_an_address(issuer: Issuer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 48)
    public = [each for each in public_set()["keys"] if each["kty"] != "oct"]
    issuer.answer = 200, json.dumps({"keys": public}).encode()
    tokens = Tokens(load_keys(issuer.url, str(secret)), issuer=ISSUER, audience="penstock", leeway=5)
    claims = jwt.decode(signed(), options={"verify_signature": False})
    assert (await tokens.by_token(signed())).name == "jwt:ada"
    assert (await tokens.by_token(jwt.encode(claims, "s" * 48, "HS256"))).name == "jwt:ada"


@pytest.mark.parametrize("answer", [(500, b""), (302, b""), (200, b"x" * (2 << 20)), (200, b'{"keys": []}')])
async def test_an_issuer_that_fails_does_not_let_anybody_in(issuer: Issuer, answer: tuple[int, bytes]) -> None:
    issuer.answer = answer
    tokens = Tokens(load_keys(issuer.url, None), issuer=ISSUER, audience="penstock", leeway=5)
    with pytest.raises(Unavailable, match="cannot be fetched"):
        await tokens.by_token(signed())


def test_a_gateway_takes_tokens_and_keys(shared_dsn: str, owner: Client, key_file: str) -> None:
    access = Access(keys=True, jwt_keys=key_file, jwt_issuer=ISSUER)
    key = owner.create_api_key("beside", ["read"]).key
    with gateway(shared_dsn, access=access) as http:
        assert _ask(http, signed()) == 200
        assert _ask(http, key) == 200
        assert _ask(http, signed(penstock=["push"])) == 403
        assert _ask(http, signed(penstock=None)) == 403
        assert _ask(http, BAD["none"]()) == 401
        assert _ask(http, BAD["huge"]()) == 401


def _ask(http: RunningGateway, credential: str) -> int:
    return http.ask("GET", "/queues", headers={"Authorization": f"Bearer {credential}"}).status
