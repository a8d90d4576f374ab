"""The keys that sign tokens: a JWK set in a file or at an address, or one secret in a file."""

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.exceptions import PyJWTError

from penstock.errors import SetupError, Unavailable
from penstock.gateway.scopes import is_loopback

log = logging.getLogger("penstock.gateway")

# A set at an address is fetched again after this many seconds, and sooner where a token names a key that is unknown.
_KEPT_FOR = 3600.0
_SOONEST = 10.0
_TIMEOUT = 5.0
_MOST_BYTES = 1 << 20
_SHORTEST_SECRET = 32
_SMALLEST_RSA = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key and the one algorithm that it verifies."""

    kid: str | None
    algorithm: str
    key: Any = field(repr=False)


class KeySet:
    """Keys by their ids."""

    def __init__(self, keys: list[SigningKey], url: str | None = None) -> None:
        # Those of files, which stay when the set at the address is fetched again.
        self._own = tuple(keys)
        self._keys = keys
        self._url = url
        self._fetched_at: float | None = None
        self._fetching = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of an id, or the only one of an algorithm where a token names none."""
        if self._url is not None and self._is_older_than(_KEPT_FOR):
            await self._fetch()
        found = self._find(kid, algorithm)
        if found is None and self._url is not None and self._is_older_than(_SOONEST):
            await self._fetch()
            found = self._find(kid, algorithm)
        return found

    def _find(self, kid: str | None, algorithm: str) -> SigningKey | None:
        fitting = [key for key in self._keys if key.algorithm == algorithm and kid in (None, key.kid)]
        return fitting[0] if len(fitting) == 1 else None

    def _is_older_than(self, seconds: float) -> bool:
        return self._fetched_at is None or time.monotonic() - self._fetched_at > seconds

    async def _fetch(self) -> None:
        if self._url is None:
            return
        before = self._fetched_at
        async with self._fetching:
            if self._fetched_at != before:
                return
            try:
                self._keys = [*self._own, *parse_set(await asyncio.to_thread(_download, self._url), self._url)]
            except (OSError, ValueError, SetupError) as error:
                log.warning("the keys at %s could not be fetched: %s", self._url, error)
                if not self._keys:
                    raise Unavailable("the keys that sign tokens cannot be fetched just now") from None
            finally:
                self._fetched_at = time.monotonic()


def load_keys(place: str | None, secret_file: str | None) -> KeySet:
    """Return the keys of a JWK set in a file or at an address, and of a file that has a secret for HS256."""
    keys: list[SigningKey] = []
    if secret_file is not None:
        keys.append(SigningKey(None, "HS256", _secret(_read(secret_file).strip(), secret_file)))
    if place is None:
        return KeySet(keys)
    if "://" in place:
        return KeySet(keys, _checked_url(place))
    return KeySet(keys + parse_set(_read(place), place))


def parse_set(text: bytes, place: str) -> list[SigningKey]:
    """Read a JWK set; keys that are for something else are left out."""
    try:
        listed = json.loads(text)["keys"]
        keys = [made for jwk in listed if (made := _key(jwk, place)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PyJWTError):
        # The error's text may have a part of a secret in it.
        raise SetupError(f"{place} is not a JWK set: JSON with a list of keys") from None
    if not keys:
        raise SetupError(f"{place} has no key for HS256, RS256 or EdDSA")
    return keys


def _key(jwk: dict[str, Any], place: str) -> SigningKey | None:
    algorithm = {"oct": "HS256", "RSA": "RS256", "OKP": "EdDSA"}.get(jwk["kty"])
    if algorithm is None or jwk.get("use", "sig") != "sig" or jwk.get("alg", algorithm) != algorithm:
        return None
    kid = jwk.get("kid")
    key = jwt.PyJWK(jwk, algorithm).key
    if algorithm == "HS256":
        key = _secret(key, place)
    elif algorithm == "RS256":
        # A set for verifying may hold private keys, too; they are used as public ones.
        public = key if isinstance(key, RSAPublicKey) else key.public_key()
        if public.key_size < _SMALLEST_RSA:
            raise SetupError(f"{place} has an RSA key of {public.key_size} bits; use {_SMALLEST_RSA} or more")
        key = public
    else:
        public = key if hasattr(key, "public_bytes") else key.public_key()
        if not isinstance(public, Ed25519PublicKey):
            return None
        key = public
    return SigningKey(kid if isinstance(kid, str) else None, algorithm, key)


def _secret(secret: bytes, place: str) -> bytes:
    if len(secret) < _SHORTEST_SECRET:
        raise SetupError(
            f"the secret in {place} has {len(secret)} bytes; use {_SHORTEST_SECRET} random ones or more, "
            "such as those of `openssl rand -base64 48`"
        )
    return secret


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror or error}") from None


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "?")):
        return url
    raise SetupError(f"{url} is not an https:// address: whoever could change the answer could sign tokens")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "it redirects elsewhere, which is not followed", headers, fp)


def _download(url: str) -> bytes:
    response: HTTPResponse
    with urllib.request.build_opener(_NoRedirect).open(url, timeout=_TIMEOUT) as response:
        text = response.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return text
