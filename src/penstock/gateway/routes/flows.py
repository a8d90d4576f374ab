"""Flows and actions: describe, pause, resume, forget; what workers are at; what is archived."""

import msgspec

from penstock.broker.archives import ArchiveInfo
from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.tasks import TaskInfo
from penstock.errors import NotFound
from penstock.gateway.call import Call, Reply


class FlowQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which flow; of all without it."""

    flow: str | None = None


class QueueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which queue; of all without it."""

    queue: str | None = None


async def list_flows(call: Call) -> list[FlowInfo]:
    """Describe the flows and their status."""
    return (await call.sight()).flows(await call.gateway.client.flows())


async def get_flow(call: Call) -> FlowInfo:
    """Describe one flow."""
    for flow in await list_flows(call):
        if flow.name == call.path["flow"]:
            return flow
    raise NotFound(f"there is no flow {call.path['flow']!r}")


async def pause_flow(call: Call) -> FlowInfo:
    """Pause a flow, wherever it runs."""
    await call.gateway.client.pause_flow(call.path["flow"])
    return await get_flow(call)


async def resume_flow(call: Call) -> FlowInfo:
    """Let a paused flow go on."""
    await call.gateway.client.resume_flow(call.path["flow"])
    return await get_flow(call)


async def forget_flow(call: Call) -> Reply:
    """Remove a flow that no longer runs from the registry."""
    await call.gateway.client.forget_flow(call.path["flow"])
    return Reply(status=204)


async def list_actions(call: Call) -> list[ActionInfo]:
    """List the actions of a flow, or of all: the registry."""
    return (await call.sight()).actions(await call.gateway.client.actions(call.query.flow))


async def list_tasks(call: Call) -> list[TaskInfo]:
    """List the items whose handlers run, the longest running first."""
    actions = await call.gateway.monitor.actions()
    return (await call.sight()).tasks(await call.gateway.client.tasks(call.query.flow), actions)


async def list_archives(call: Call) -> list[ArchiveInfo]:
    """List what is archived of a queue, or of all."""
    return (await call.sight()).rows(await call.gateway.client.archives(call.query.queue))
