"""Schedules: describe, define, pause, resume, run now, delete."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from penstock.broker.operations.schedules import ListSchedules
from penstock.broker.schedules import ScheduleInfo
from penstock.errors import NotFound
from penstock.gateway.call import Call, Reply
from penstock.gateway.routes.messages import PushedTo, pushed_to
from penstock.operations.envelopes import PushedEnvelope, value_of


class ScheduleDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a schedule pushes, and when: `every` so often, or by a `cron` expression in a time zone."""

    queue: str
    message: PushedEnvelope
    every: str | float | None = None
    cron: str | None = None
    tz: str = "UTC"
    start: datetime | None = None
    missed: Literal["skip", "last", "all"] = "last"


class ShownSchedule(msgspec.Struct, frozen=True):
    """A schedule, where it stands, and its last failure."""

    name: str
    words: str
    kind: str
    spec: str
    tz: str
    start: datetime | None
    queue: str
    partition: str | None
    key: str | None
    headers: dict[str, str] | None
    missed: str
    source: str
    origin: str | None
    paused: bool
    declared: bool
    next_at: datetime | None
    last_slot: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    error: str | None
    failed_at: datetime | None
    created_at: datetime
    changed_at: datetime
    value: Any | msgspec.UnsetType = msgspec.UNSET
    value_text: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET


async def list_schedules(call: Call) -> list[ShownSchedule]:
    """Describe all schedules."""
    return (await call.sight()).rows([shown(each) for each in await call.gateway.client.schedules()])


async def get_schedule(call: Call) -> ShownSchedule:
    """Describe one schedule."""
    name = call.path["name"]
    found = (await call.gateway.client.run(ListSchedules([name]))).found
    missing = f"there is no schedule {name!r}"
    if not found:
        raise NotFound(missing)
    await call.show(found[0].schedule.queue, missing)
    return shown(found[0])


async def put_schedule(call: Call) -> ShownSchedule:
    """Define a schedule, or change it; no slot is pushed twice."""
    given: ScheduleDefinition = call.body
    await call.authorize(call.route.scope, given.queue)
    defined = await call.gateway.client.schedule(
        call.path["name"],
        given.queue,
        given.message.content(),
        every=given.every,
        cron=given.cron,
        tz=given.tz,
        start=given.start,
        partition=given.message.partition,
        key=given.message.key,
        headers=given.message.all_headers(),
        missed=given.missed,
    )
    return shown(defined)


async def pause_schedule(call: Call) -> ShownSchedule:
    """Let no slot of a schedule be pushed until it is resumed."""
    await call.gateway.client.pause_schedule(call.path["name"])
    return await get_schedule(call)


async def resume_schedule(call: Call) -> ShownSchedule:
    """Let a paused schedule go on with its next slot."""
    return shown(await call.gateway.client.resume_schedule(call.path["name"]))


async def run_schedule(call: Call) -> PushedTo:
    """Push the message of a schedule now, beside its slots."""
    return pushed_to(await call.gateway.client.run_schedule_now(call.path["name"]))


async def delete_schedule(call: Call) -> Reply:
    """Delete a schedule; what it has pushed stays."""
    await call.gateway.client.delete_schedule(call.path["name"])
    return Reply(status=204)


def shown(known: ScheduleInfo) -> ShownSchedule:
    """Return a schedule as it is shown."""
    schedule = known.schedule
    return ShownSchedule(
        known.name,
        known.words,
        schedule.kind,
        schedule.spec,
        schedule.tz,
        schedule.start,
        schedule.queue,
        schedule.partition,
        schedule.key,
        schedule.headers,
        schedule.missed,
        known.source,
        known.origin,
        known.paused,
        known.declared,
        known.next_at,
        known.last_slot,
        known.last_at,
        known.last_id,
        known.error,
        known.failed_at,
        known.created_at,
        known.changed_at,
        **value_of(schedule.value),
    )
