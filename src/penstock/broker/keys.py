"""API keys: how one is made and checked, what it may do, and what a broker says of it.

A key is `pstk_`, an id that may be seen, and a secret of 256 random bits. The broker keeps the secret's SHA-256: there
is nothing to guess in so many random bits, so a slow hash would protect nothing and cost every request.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidInput

SCOPES = ("push", "pop", "read", "admin")
MOST_GRANTS = 100
_PREFIX = "pstk"
_KEY = re.compile(rf"{_PREFIX}_([0-9a-f]{{12}})_([0-9a-f]{{64}})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Grant(NamedTuple):
    """A scope, and the pattern of the names of queues that it holds for: `*`, `?` and `[abc]` as in a shell."""

    scope: str
    pattern: str = "*"

    def __str__(self) -> str:
        return f"{self.scope}:{self.pattern}"

    def allows(self, scope: str, queue: str | None) -> bool:
        """Say whether it allows this scope for a queue; None stands for all queues. An admin may do everything."""
        if self.scope not in (scope, "admin"):
            return False
        return self.pattern == "*" if queue is None else fnmatchcase(queue, self.pattern)


class Grants(tuple[Grant, ...]):
    """All that somebody may do."""

    def allow(self, scope: str, queue: str | None) -> bool:
        """Say whether one of them allows this scope for a queue; None stands for all queues."""
        return any(grant.allows(scope, queue) for grant in self)

    def texts(self) -> list[str]:
        """Return them as they are written."""
        return [str(grant) for grant in self]


EVERYTHING = Grants([Grant("admin")])


def parse_grants(texts: Iterable[str]) -> Grants:
    """Read grants such as `push:orders-*`; a scope alone holds for all queues."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidInput(f"scopes must be a list of texts such as push:orders-*, and {texts!r:.100} is not")
    grants = Grants(dict.fromkeys(map(_grant, texts)))
    if not 1 <= len(grants) <= MOST_GRANTS:
        raise InvalidInput(f"a key needs 1 to {MOST_GRANTS} scopes such as push:orders-*, and {len(grants)} were given")
    return grants


def _grant(text: str) -> Grant:
    scope, colon, pattern = text.partition(":") if isinstance(text, str) else ("", "", "")
    if scope not in SCOPES or (colon and not pattern) or len(text) > 250 or _CONTROL.search(pattern):
        raise InvalidInput(
            f"{text!r:.100} is not a scope: it is push, pop, read or admin, "
            "and after a colon a pattern of queue names such as orders-*"
        )
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{text!r:.100} cannot be written as UTF-8") from None
    return Grant(scope, pattern or "*")


class Secret(NamedTuple):
    """A key whose text was just made: it is shown once, and kept nowhere."""

    key_id: str
    text: str
    hash: bytes

    def __repr__(self) -> str:
        return f"Secret({self.key_id})"


def new_secret(key_id: str | None = None) -> Secret:
    """Make a key, or another secret for the key of an id."""
    name = key_id or secrets.token_hex(6)
    secret = secrets.token_hex(32)
    return Secret(name, f"{_PREFIX}_{name}_{secret}", hash_secret(secret))


def hash_secret(secret: str) -> bytes:
    """Return what is kept of a secret or a token."""
    return hashlib.sha256(secret.encode()).digest()


class GivenKey(NamedTuple):
    """A key that somebody sent: its id, and the hash of the secret that it claims to have."""

    key_id: str
    hash: bytes


def read_key(text: str) -> GivenKey | None:
    """Take a key apart; None if it has not the form of one."""
    found = _KEY.fullmatch(text) if len(text) < 100 else None
    return GivenKey(found[1], hash_secret(found[2])) if found else None


class KeyInfo(msgspec.Struct, frozen=True):
    """What there is to know of an API key, except for its secret.

    `rate_limit` is in requests a second and `burst` how many may come at once, for each process of a gateway.
    `last_used_at` is written about once a minute.
    """

    key_id: str
    name: str
    scopes: list[str]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    rate_limit: float | None
    burst: int | None
    rotated_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewKey(msgspec.Struct, frozen=True):
    """An API key with its secret: `key` is what a client sends. It cannot be had again."""

    info: KeyInfo
    key: str

    def __repr__(self) -> str:
        return f"NewKey({self.info!r}, key='{_PREFIX}_{self.info.key_id}_…')"


class StoredKey(msgspec.Struct, frozen=True):
    """A key as a gateway looks it up."""

    key_id: str
    name: str
    secret_hash: bytes
    previous_hash: bytes | None
    previous_until: datetime | None
    scopes: list[str]
    expires_at: datetime | None
    rate_limit: float | None
    burst: int | None

    def matches(self, given: bytes, now: datetime) -> bool:
        """Say whether a hash is that of the secret, or of the one before; the time it takes tells nothing."""
        current = hmac.compare_digest(self.secret_hash, given)
        previous = hmac.compare_digest(self.previous_hash or self.secret_hash, given)
        graced = self.previous_until is not None and now < self.previous_until
        return current or (previous and graced)

    def is_over(self, now: datetime) -> bool:
        """Say whether it has expired."""
        return self.expires_at is not None and now >= self.expires_at


class Session(msgspec.Struct, frozen=True):
    """Somebody who has signed in with a key, until a time."""

    key_id: str
    expires_at: datetime


def check_limit(rate_limit: float | None, burst: int | None) -> tuple[float | None, int | None]:
    """Return a rate and its burst, which is a second's worth unless it is given; refuse what is neither."""
    if rate_limit is None:
        if burst is not None:
            raise InvalidInput(f"burst is {burst!r}, but there is no rate_limit: give both or none")
        return None, None
    if isinstance(rate_limit, bool) or not isinstance(rate_limit, int | float) or not 0 < rate_limit <= 1_000_000:
        raise InvalidInput(f"rate_limit is {rate_limit!r} but must be a number above 0, in requests a second")
    some = max(1, round(rate_limit)) if burst is None else burst
    if isinstance(some, bool) or not isinstance(some, int) or not 1 <= some <= 1_000_000:
        raise InvalidInput(f"burst is {burst!r} but must be a whole number above 0")
    return float(rate_limit), some


def check_hash(value: bytes) -> None:
    """Refuse what is not a SHA-256."""
    if not isinstance(value, bytes) or len(value) != 32:
        raise InvalidInput("a hash is the 32 bytes of a SHA-256")


def check_key_ids(key_ids: Sequence[str]) -> None:
    """Refuse what is not a list of ids of keys."""
    for key_id in key_ids:
        if not isinstance(key_id, str) or not re.fullmatch(r"[0-9a-f]{12}", key_id):
            raise InvalidInput(f"{key_id!r:.100} is not the id of a key, which is 12 hexadecimal digits")
