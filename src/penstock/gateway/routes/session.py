"""Signing in: a browser shows an API key once, and has a cookie from then on that no script can read."""

from datetime import UTC, datetime

import msgspec

from penstock.errors import Unauthenticated
from penstock.gateway.access.authority import COOKIE
from penstock.gateway.access.callers import ANYBODY, Caller
from penstock.gateway.call import Call, Reply


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An API key."""

    key: str

    def __repr__(self) -> str:
        return "SignIn(…)"


class SignedIn(msgspec.Struct, frozen=True):
    """Who calls, and its scopes with their patterns of queues.

    `name` is null where the gateway asks nobody. `read_only`: the gateway refuses every change.
    """

    name: str | None
    scopes: list[str]
    read_only: bool
    expires_at: datetime | None = None


async def sign_in(call: Call) -> Reply:
    """Begin a session: the answer sets a cookie, which lasts for twelve hours at most."""
    keys = call.gateway.authority.keys
    if keys is None:
        raise Unauthenticated("this gateway takes no API keys, so nobody can sign in")
    caller = await keys.by_key(call.body.key)
    caller.count_request()
    assert caller.key_id is not None  # noqa: S101 - whoever has a key has its id
    token, ends = await keys.begin_session(caller.key_id)
    seconds = max(0, int((ends - datetime.now(UTC)).total_seconds()))
    return Reply(_shown(call, caller, ends), headers={"Set-Cookie": _cookie(call, token, seconds)})


async def who(call: Call) -> SignedIn:
    """Say who calls, so that a page shows only what may be used."""
    return _shown(call, await call.gateway.authority.caller_of(call.request))


async def sign_out(call: Call) -> Reply:
    """End a session, and have the browser forget it."""
    token = call.request.cookies.get(COOKIE)
    if token and call.gateway.authority.keys is not None:
        await call.gateway.authority.keys.end_session(token)
    return Reply(status=204, headers={"Set-Cookie": _cookie(call, "", 0)})


def _shown(call: Call, caller: Caller, ends: datetime | None = None) -> SignedIn:
    name = None if caller is ANYBODY else caller.name
    return SignedIn(name, caller.grants.texts(), call.gateway.authority.read_only, ends)


def _cookie(call: Call, token: str, seconds: int) -> str:
    secure = "; Secure" if call.request.url.scheme == "https" else ""
    return f"{COOKIE}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
