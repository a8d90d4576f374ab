"""Groups: describe, create, configure, pause, seek, delete; their claims and their history."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.broker.claims import Lease
from penstock.broker.infos import GroupInfo, Transition
from penstock.broker.operations.claiming import Release
from penstock.broker.operations.groups import ConfigureGroup, CreateGroup, ListClaims, ListGroups
from penstock.broker.operations.warm import ListWarmGroups
from penstock.broker.warm import WarmGroup
from penstock.errors import AlreadyExists, InvalidInput, NotFound
from penstock.gateway.call import Call, Reply
from penstock.gateway.envelopes import LeaseText, read_lease
from penstock.gateway.pages import Limit, Page, page_by_name
from penstock.gateway.routes.queues import Changed
from penstock.gateway.scopes import Scope


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a group: a setting that is null, or left out of a PUT, is the queue's.

    `mode` and `subscription` (all, new, or a time) are for a new group, and stay as they are.
    """

    settings: dict[str, Any] = {}
    mode: Literal["ordered", "shared"] = "ordered"
    subscription: str = "all"


class GroupChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a group to change; null means that of the queue."""

    settings: dict[str, Any] = {}


class SeekTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to move a group: earliest, latest, an offset, or a time. With `preview` it only says what that would do."""

    to: int | str
    partition: str | None = None
    preview: bool = False


class Sought(msgspec.Struct, frozen=True):
    """What a seek did, or would do: partitions visited and moved, messages redelivered and skipped, claims revoked."""

    preview: bool
    visited: int
    moved: int
    redelivered: int
    skipped: int
    revoked: int


class Lag(msgspec.Struct, frozen=True):
    """How many messages a group has still to acknowledge."""

    lag: int


class ClaimsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose claims."""

    queue: str | None = None
    group: str | None = None


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim that is held now; `lease` settles it, so only admins are told."""

    queue: str
    group: str
    partition: str
    lease: str
    consumer: str | None
    attempt: int
    start: int
    stop: int
    acquired_at: datetime
    expires_at: datetime
    shared: bool


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a history."""

    limit: Limit = 100


async def list_all_groups(call: Call) -> Page[GroupInfo]:
    """Describe the groups of all queues."""
    found = (await call.sight()).rows(await call.gateway.client.groups())
    return page_by_name(found, call.query, lambda group: f"{group.queue}/{group.name}")


async def list_groups(call: Call) -> Page[GroupInfo]:
    """Describe the groups of a queue."""
    return page_by_name(await call.gateway.client.groups(call.path["queue"]), call.query, lambda group: group.name)


async def get_group(call: Call) -> GroupInfo:
    """Describe one group."""
    queue, name = call.path["queue"], call.path["group"]
    for group in await call.gateway.client.run(ListGroups(queue)):
        if group.name == name:
            return group
    raise NotFound(f"queue {queue!r} has no group {name!r}")


async def put_group(call: Call) -> Reply:
    """Create a group, or replace all of its settings; with `If-None-Match: *` it only creates."""
    queue, name, given = call.path["queue"], call.path["group"], call.body
    settings = {key: value for key, value in given.settings.items() if value is not None}
    try:
        await call.gateway.client.run(
            CreateGroup.reading(queue, name, given.mode, subscription_of(given.subscription), settings)
        )
        return Reply(await get_group(call), 201)
    except AlreadyExists:
        if call.only_creates:
            raise
        known = await get_group(call)
    if known.mode != given.mode:
        raise InvalidInput(f"group {name!r} is {known.mode}, which cannot be changed; delete it to begin anew")
    changes = {**dict.fromkeys(known.config), **given.settings}
    await call.gateway.client.run(ConfigureGroup(queue, name, changes))
    return Reply(await get_group(call))


async def patch_group(call: Call) -> GroupInfo:
    """Change some settings of a group; null means that of the queue."""
    await get_group(call)
    await call.gateway.client.run(ConfigureGroup(call.path["queue"], call.path["group"], call.body.settings))
    return await get_group(call)


async def delete_group(call: Call) -> Reply:
    """Delete a group with its positions and dead letters."""
    await call.gateway.client.delete_group(call.path["queue"], call.path["group"])
    return Reply(status=204)


async def pause_group(call: Call) -> Changed:
    """Deliver nothing more to a group until it is resumed."""
    return Changed(await call.gateway.client.pause_group(call.path["queue"], call.path["group"]))


async def resume_group(call: Call) -> Changed:
    """Deliver to a paused group again."""
    return Changed(await call.gateway.client.resume_group(call.path["queue"], call.path["group"]))


async def lag(call: Call) -> Lag:
    """Say how much a group has still to do."""
    return Lag(await call.gateway.client.lag(call.path["queue"], call.path["group"]))


async def seek(call: Call) -> Sought:
    """Move a group; claims that are held there lose their lease. With `preview`, change nothing."""
    given: SeekTo = call.body
    to = given.to if isinstance(given.to, int) or given.to in ("earliest", "latest") else moment(given.to)
    done = await call.gateway.client.seek(
        call.path["queue"], call.path["group"], to, partition=given.partition, preview=given.preview
    )
    return Sought(given.preview, *done[:5])


async def history(call: Call) -> list[Transition]:
    """Tell what happened to a partition in a group, newest first."""
    path = call.path
    found = await call.gateway.client.history(path["queue"], path["group"], path["partition"], limit=call.query.limit)
    return found if await call.may(Scope.ADMIN, path["queue"]) else without_leases(found)


def without_leases(transitions: Sequence[Transition]) -> list[Transition]:
    """Return transitions without their lease ids: whoever has one can settle the claim."""
    return [msgspec.structs.replace(each, lease_id=None) for each in transitions]


async def list_claims(call: Call) -> list[HeldClaim]:
    """List the claims that are held now, the one that ends first at the front."""
    found = await call.gateway.client.run(ListClaims(call.query.queue, call.query.group))
    return [
        HeldClaim(
            claim.queue,
            claim.group,
            claim.partition,
            str(LeaseText(Lease(claim.group_id, claim.partition_id, claim.lease_id), claim.start)),
            claim.consumer,
            claim.attempt,
            claim.start,
            claim.stop,
            claim.acquired_at,
            claim.expires_at,
            claim.shared,
        )
        for claim in (await call.sight()).rows(found)
    ]


async def release_claim(call: Call) -> Changed:
    """Take a claim away from whoever holds it; its messages are delivered again at once."""
    return Changed(await call.gateway.client.run(Release(read_lease(call.path["lease"]).lease)))


async def list_windows(call: Call) -> list[WarmGroup]:
    """Describe the groups that are served from memory: the state of each window, how full it is, and who keeps it."""
    found = await call.gateway.client.run(ListWarmGroups())
    return (await call.sight()).rows(found)


def subscription_of(given: str) -> str | datetime:
    """Read where a new group begins."""
    return given if given in ("all", "new") else moment(given)


def moment(given: str) -> datetime:
    """Read a time that has a zone."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(f"{given!r:.100} is not a time such as 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise InvalidInput(f"{given!r} has no time zone; write it as {given}Z for UTC")
    return found
