"""API keys and the audit log."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from penstock.broker.audit import ActInfo
from penstock.broker.keys import KeyInfo, check_limit, new_secret, parse_grants
from penstock.broker.operations.keys import CreateKey, ListActs, RevokeKey, RotateKey
from penstock.errors import InvalidInput, NotFound
from penstock.gateway.auditing import origin_of
from penstock.gateway.call import Call
from penstock.gateway.pages import Limit, Number, Page, page_of


class KeysQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which keys."""

    revoked: bool = False


class KeyDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be created, with scopes such as `push:orders-*`; `expires_in` is in seconds."""

    name: str
    scopes: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
    expires_at: datetime | None = None
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=3_155_760_000)] | None = None
    rate_limit: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    burst: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how many seconds the old secret is valid beside the new one."""

    grace: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0


class ShownKey(msgspec.Struct, frozen=True):
    """A key with its secret, which is shown only now."""

    key: str
    info: KeyInfo

    def __repr__(self) -> str:
        return f"ShownKey({self.info!r})"


class ActsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which acts; `after` is the `next` of the page before."""

    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    after: Number | None = None
    limit: Limit = 100


async def list_keys(call: Call) -> list[KeyInfo]:
    """Describe the API keys, without their secrets."""
    return await call.gateway.client.api_keys(revoked=call.query.revoked)


async def create_key(call: Call) -> ShownKey:
    """Create an API key; its secret is in this answer and nowhere else."""
    given: KeyDefinition = call.body
    if given.expires_at is not None and given.expires_in is not None:
        raise InvalidInput("give expires_at or expires_in, and not both")
    until = given.expires_at
    if given.expires_in is not None:
        until = datetime.now(UTC) + timedelta(seconds=given.expires_in)
    rate, burst = check_limit(given.rate_limit, given.burst)
    secret = new_secret()
    scopes = parse_grants(given.scopes).texts()
    info = await call.gateway.client.run(
        CreateKey(
            secret.key_id,
            given.name,
            secret.hash,
            scopes,
            until,
            rate,
            burst,
            call.caller or "anybody",
            origin_of(call),
        )
    )
    return ShownKey(secret.text, info)


async def rotate_key(call: Call) -> ShownKey:
    """Give an API key a new secret; name, id and scopes stay."""
    wanted = call.path["key"]
    for info in await call.gateway.client.api_keys():
        if wanted in (info.name, info.key_id):
            secret = new_secret(info.key_id)
            rotation = RotateKey(info.key_id, secret.hash, call.body.grace, call.caller or "anybody", origin_of(call))
            return ShownKey(secret.text, await call.gateway.client.run(rotation))
    raise NotFound(f"there is no key {wanted!r:.100} that is not revoked")


async def revoke_key(call: Call) -> KeyInfo:
    """Revoke an API key by its name or id; every gateway refuses it after five seconds at the latest."""
    return await call.gateway.client.run(RevokeKey(call.path["key"], call.caller or "anybody", origin_of(call)))


async def list_acts(call: Call) -> Page[ActInfo]:
    """Describe administrative acts, newest first."""
    wanted: ActsQuery = call.query
    found = await call.gateway.client.run(
        ListActs(wanted.after, wanted.limit + 1, wanted.actor, wanted.action, wanted.since)
    )
    return page_of(found, wanted.limit, lambda act: act.act_id)
