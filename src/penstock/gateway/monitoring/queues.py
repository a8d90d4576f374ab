"""Queue metrics by action: what waits warm and cold, which plugin brings an action class, and what runs.

The fields are those that pages and scripts for such queues know; their names are therefore in camel case.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.metrics import WorkInfo
from penstock.broker.tasks import TaskInfo

# A worker that has said nothing for so long is not believed any more: see list_tasks.
HEARTBEAT_THRESHOLD_MS = 30_000
_UNKNOWN = "UNKNOWN"
_UNKNOWN_PLUGIN = "unknown"


class WarmQueue(msgspec.Struct, frozen=True, rename="camel"):
    """What waits in memory for an action: in Valkey, or handed out to workers."""

    action_class: str
    flow_name: str
    flow_type: str
    action_name: str
    count: int
    oldest_queued_at: datetime | None
    oldest_did: str | None


class ColdQueue(msgspec.Struct, frozen=True, rename="camel"):
    """What waits for an action in PostgreSQL alone."""

    flow_name: str
    flow_type: str
    action_name: str
    action_class: str
    count: int
    oldest_queued_at: datetime | None


class DetailedQueues(msgspec.Struct, frozen=True, rename="camel"):
    """What waits, by action; an action that has nothing in a tier has no row there."""

    warm_queues: list[WarmQueue]
    cold_queues: list[ColdQueue]
    timestamp: datetime


class RunningTask(msgspec.Struct, frozen=True, rename="camel"):
    """An item whose handler runs; `app_name` is the worker."""

    action_class: str
    action_name: str
    did: str
    start_time: datetime
    running_for_ms: int
    app_name: str | None


class RunningTasks(msgspec.Struct, frozen=True, rename="camel"):
    """What runs, the longest first; a worker that has not reported within the threshold is left out."""

    tasks: list[RunningTask]
    heartbeat_threshold_ms: int = HEARTBEAT_THRESHOLD_MS


def detailed(
    work: Iterable[WorkInfo], flows: Iterable[FlowInfo], actions: Iterable[ActionInfo], now: datetime
) -> DetailedQueues:
    """Return what waits, from samples: warm is what was handed out and not settled, cold what was not.

    All actions of a Spark flow run as one query, so what waits for them is that of its first action.
    """
    warm: list[WarmQueue] = []
    cold: list[ColdQueue] = []
    for each in work:
        flow_name, action_name, action_class = labels(each)
        kind, oldest = each.flow_type or _UNKNOWN, utc(each.oldest_at)
        if each.lag > each.cold:
            handed_out = each.lag - each.cold
            warm.append(WarmQueue(action_class, flow_name, kind, action_name, handed_out, oldest, each.oldest_did))
        if each.cold:
            cold.append(ColdQueue(flow_name, kind, action_name, action_class, each.cold, oldest))
    first: dict[str, ActionInfo] = {}
    for action in actions:
        first.setdefault(action.flow, action)
    for flow in flows:
        if flow.checkpoint and (begins := first.get(flow.name)) is not None:
            names = flow.name, flow.flow_type, begins.action
            if flow.warm:
                warm.append(WarmQueue(begins.action_class, *names, flow.warm, utc(flow.oldest_since), None))
            if flow.cold:
                cold.append(ColdQueue(*names, begins.action_class, flow.cold, utc(flow.oldest_since)))
    return DetailedQueues(warm, cold, now.astimezone(UTC))


def labels(work: WorkInfo) -> tuple[str, str, str]:
    """Return flow, action and action class; of a group that is not that of an action, its queue and name stand in."""
    return work.flow or work.queue, work.action or work.group, work.action_class or work.queue


def plugins(actions: Iterable[ActionInfo], seen: Iterable[str]) -> Mapping[str, str]:
    """Return the plugin of each action class that is registered, or seen in a queue or a worker."""
    found = dict.fromkeys(sorted(seen), _UNKNOWN_PLUGIN)
    for each in actions:
        found[each.action_class] = each.plugin or _UNKNOWN_PLUGIN
    return found


def running(tasks: Sequence[TaskInfo]) -> RunningTasks:
    """Return what runs, as workers have reported it."""
    return RunningTasks(
        [
            RunningTask(
                task.action_class,
                task.action,
                str(task.did),
                task.started_at.astimezone(UTC),
                round(1000 * max(0.0, task.running_for)),
                task.worker or None,
            )
            for task in tasks
        ]
    )


def utc(moment: datetime | None) -> datetime | None:
    """Return a time in UTC, which is written with a Z."""
    return None if moment is None else moment.astimezone(UTC)
