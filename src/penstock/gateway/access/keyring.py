"""API keys and sessions as a gateway sees them: looked up when needed, and kept for a few seconds."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from penstock.broker.keys import GivenKey, Session, StoredKey, hash_secret, parse_grants, read_key
from penstock.broker.operations.keys import BeginSession, EndSession, FindKey, FindSession, NoteKeyUse
from penstock.client.async_client import AsyncClient
from penstock.errors import PenstockError, RateLimited, Unauthenticated
from penstock.gateway.access.callers import Bucket, Caller

log = logging.getLogger("penstock.gateway")

# A key that is revoked is refused after this many seconds at the latest.
KEPT_FOR = 5.0
# What nobody has shown before is looked up so often a second at most: keys are too long to be guessed, but each guess
# would be a query.
_LOOKUPS = Bucket(100.0, 200)
_MOST_KEPT = 10_000
_NOTED_EVERY = 60.0
SESSION_SECONDS = 12 * 3600.0

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Answers of the database, kept for a few seconds; callers who ask for the same at the same time ask once.

    What does not exist is kept apart: a flood of made-up keys must not drive out those that are in use.
    """

    def __init__(self, look_up: Callable[[K], Awaitable[V | None]]) -> None:
        self._look_up = look_up
        self._found: dict[K, tuple[float, V]] = {}
        self._missing: dict[K, float] = {}
        self._asked: dict[K, asyncio.Future[V | None]] = {}

    async def get(self, key: K) -> V | None:
        """Return what is known, or look it up; raises RateLimited where too much is asked that was never found."""
        now = time.monotonic()
        kept = self._found.get(key)
        if kept is not None and now - kept[0] < KEPT_FOR:
            return kept[1]
        if now - self._missing.get(key, -KEPT_FOR) < KEPT_FOR:
            return None
        asked = self._asked.get(key)
        if asked is None:
            if kept is None and (wait := _LOOKUPS.take()):
                raise RateLimited("too many unknown keys were sent", wait)
            asked = self._asked[key] = asyncio.ensure_future(self._ask(key))
        # Whoever goes away takes nobody else's answer along.
        return await asyncio.shield(asked)

    async def _ask(self, key: K) -> V | None:
        began = time.monotonic()
        try:
            found = await self._look_up(key)
        finally:
            del self._asked[key]
        self.forget(key)
        if found is None:
            _make_room(self._missing)
            self._missing[key] = began
        else:
            _make_room(self._found)
            self._found[key] = began, found
        return found

    def forget(self, key: K) -> None:
        """Look it up anew next time."""
        self._found.pop(key, None)
        self._missing.pop(key, None)


def _make_room(kept: dict[K, Any]) -> None:
    if len(kept) >= _MOST_KEPT:
        # The oldest first: a dictionary keeps its order.
        for key in list(kept)[: max(1, _MOST_KEPT // 10)]:
            del kept[key]


class KeyRing:
    """Finds callers by the API keys that they send, or by the session that they began with one."""

    def __init__(self, client: AsyncClient, *, read_only: bool = False) -> None:
        self._client = client
        self._read_only = read_only
        self._keys: Kept[str, StoredKey] = Kept(lambda key_id: client.run(FindKey(key_id)))
        self._sessions: Kept[bytes, Session] = Kept(lambda token: client.run(FindSession(token)))
        # A standby cannot store sessions: they are here, and end with the process. Beside each is the hash of the
        # secret that it was begun with: a key that has another one was rotated, which ends it.
        self._own_sessions: dict[bytes, tuple[Session, bytes]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._callers: dict[str, tuple[StoredKey, Caller]] = {}
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def by_key(self, text: str) -> Caller:
        """Return who sent a key; raises Unauthenticated, which says nothing of what was wrong with it."""
        given = read_key(text)
        stored = None if given is None else await self._keys.get(given.key_id)
        now = datetime.now(UTC)
        if given is None or not _matches(stored, given, now) or stored is None or stored.is_over(now):
            raise Unauthenticated("the API key is wrong, expired or revoked")
        return self._caller(stored)

    async def by_session(self, token: str) -> Caller:
        """Return who began a session; raises Unauthenticated."""
        hashed = hash_secret(token)
        session, begun_with = await self._session(hashed)
        now = datetime.now(UTC)
        stored = None
        if session is not None and session.expires_at > now:
            stored = await self._keys.get(session.key_id)
        if stored is None or stored.is_over(now) or begun_with not in (None, stored.secret_hash):
            raise Unauthenticated("the session is over: sign in again")
        return self._caller(stored)

    async def _session(self, hashed: bytes) -> tuple[Session | None, bytes | None]:
        if self._read_only:
            return self._own_sessions.get(hashed, (None, None))
        return await self._sessions.get(hashed), None

    async def begin_session(self, key_id: str) -> tuple[str, datetime]:
        """Begin a session; return its token and when it ends."""
        token = secrets.token_urlsafe(32)
        if not self._read_only:
            return token, await self._client.run(BeginSession(hash_secret(token), key_id, SESSION_SECONDS))
        ends = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
        if len(self._own_sessions) >= _MOST_KEPT:
            self._own_sessions.pop(next(iter(self._own_sessions)))
        stored = await self._keys.get(key_id)
        if stored is None:
            raise Unauthenticated("the API key is wrong, expired or revoked")
        self._own_sessions[hash_secret(token)] = Session(key_id, ends), stored.secret_hash
        return token, ends

    async def end_session(self, token: str) -> None:
        """End a session."""
        hashed = hash_secret(token)
        if self._read_only:
            self._own_sessions.pop(hashed, None)
            return
        await self._client.run(EndSession(hashed))
        self._sessions.forget(hashed)

    def _caller(self, stored: StoredKey) -> Caller:
        self._note_use(stored.key_id)
        known = self._callers.get(stored.key_id)
        if known is None or known[0] is not stored:
            caller = Caller(f"key:{stored.name}", parse_grants(stored.scopes), self._bucket(stored), stored.key_id)
            known = self._callers[stored.key_id] = stored, caller
        return known[1]

    def _bucket(self, stored: StoredKey) -> Bucket | None:
        if stored.rate_limit is None or stored.burst is None:
            return None
        known = self._buckets.get(stored.key_id)
        if known is None or (known.rate, known.burst) != (stored.rate_limit, stored.burst):
            known = self._buckets[stored.key_id] = Bucket(stored.rate_limit, stored.burst)
        return known

    def _note_use(self, key_id: str) -> None:
        now = time.monotonic()
        if self._read_only or now - self._noted.get(key_id, -_NOTED_EVERY) < _NOTED_EVERY:
            return
        self._noted[key_id] = now
        noting = asyncio.ensure_future(self._write_use(key_id))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _write_use(self, key_id: str) -> None:
        try:
            await self._client.run(NoteKeyUse([key_id]))
        except PenstockError as error:
            log.warning("the use of key %s could not be noted: %s", key_id, error)


_NOBODY = StoredKey("0" * 12, "", bytes(32), None, None, [], None, None, None)


def _matches(stored: StoredKey | None, given: GivenKey, now: datetime) -> bool:
    # Compared in any case, so that the time does not tell whether there is such a key.
    return (stored or _NOBODY).matches(given.hash, now)
