"""Lists of everything as operations, as the Python client asks for them: each caller gets what it may see."""

from typing import Any

from penstock.broker.operations import (
    archives,
    browsing,
    flows,
    groups,
    health,
    jobs,
    log,
    metrics,
    rules,
    warm,
    workers,
)
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.schedules import ListSchedules
from penstock.gateway.call import Call
from penstock.gateway.sight import Sight

# Lists whose rows are queues, or name one.
_ROWS = (
    archives.ListArchives,
    browsing.GetOutline,
    groups.ListClaims,
    groups.ListGroups,
    health.ListBreakers,
    jobs.ListJobs,
    log.ListQueues,
    metrics.ListRates,
    metrics.ListWork,
    rules.ListRules,
    warm.ListQueuedWork,
    warm.ListWarmGroups,
)
# The settings of checks are everybody's.
LISTS = (
    *_ROWS,
    flows.ListActions,
    flows.ListFlows,
    health.ListConsumers,
    ListSchedules,
    metrics.GetFacts,
    metrics.ListChecks,
    metrics.ListMeasuredQueues,
    workers.ListTasks,
)


async def part_of(call: Call, operation: Operation[Any], reply: Any) -> Any:
    """Return the part of a reply that the caller may see."""
    sight = await call.sight()
    return reply if sight.whole else await _part(call, sight, operation, reply)


async def _part(call: Call, sight: Sight, operation: Operation[Any], reply: Any) -> Any:
    match operation:
        case flows.ListActions():
            return sight.actions(reply)
        case flows.ListFlows():
            return sight.flows(reply)
        case workers.ListTasks():
            return sight.tasks(reply, await call.gateway.monitor.actions())
        case metrics.GetFacts():
            return sight.facts(reply)
        case health.ListConsumers():
            return sight.facts(await call.gateway.monitor.facts()).consumers
        case ListSchedules():
            seen = [each for each in reply.found if sight.sees(each.schedule.queue)]
            return reply._replace(found=seen)
        case metrics.ListMeasuredQueues():
            return [queue for queue in reply if sight.sees(queue)]
        case metrics.ListChecks():
            return reply
        case _:
            return sight.rows(reply)
