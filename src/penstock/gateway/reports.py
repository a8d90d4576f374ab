"""What workers and consumers say of themselves, which must be about queues that their key is for.

The operations name flows, actions and consumers; which queues those belong to is in the registry.
"""

from typing import Any

from penstock.broker.operations.health import ReportHealth
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.workers import RegisterActions, ReportTasks
from penstock.gateway.access.callers import Caller
from penstock.gateway.call import Call
from penstock.gateway.scopes import Scope
from penstock.gateway.sight import queues_of

# Who consumes for which group changes rarely, and whoever has just begun has little to lose.
_CONSUMERS_AGE = 30.0


async def check_report(call: Call, operation: Operation[Any]) -> None:
    """Raise Forbidden where a report is about something of another queue."""
    if not isinstance(operation, RegisterActions | ReportTasks | ReportHealth):
        return
    caller = await call.gateway.authority.caller_of(call.request)
    if caller.allows(Scope.POP, None):
        return
    match operation:
        case RegisterActions():
            await _check_actions(call, caller, operation)
        case ReportTasks():
            await _check_tasks(call, caller, operation)
        case ReportHealth():
            facts = await call.gateway.monitor.facts(_CONSUMERS_AGE)
            for queue, _, consumer in facts.consuming:
                if consumer == operation.consumer:
                    caller.require(Scope.POP, queue)


async def _check_actions(call: Call, caller: Caller, operation: RegisterActions) -> None:
    """Allow actions that push where the caller may push, and that take no other's place."""
    known = queues_of(await call.gateway.monitor.actions(0.0))
    for action in operation.actions:
        if action.to is not None:
            caller.require(Scope.PUSH, action.to)
        if (action.flow, action.name) in known:
            caller.require(Scope.POP, known[action.flow, action.name])


async def _check_tasks(call: Call, caller: Caller, operation: ReportTasks) -> None:
    """Allow tasks of actions of the caller's queues, from a worker that has reported no others."""
    monitor = call.gateway.monitor
    others = [task for task in await monitor.tasks() if task.worker == operation.worker]
    named = {(task.flow, task.action) for task in operation.tasks}
    named |= {(task.flow, task.action) for task in others}
    known = queues_of(await monitor.actions())
    if not named <= known.keys():
        # A worker reports soon after it has registered its actions.
        known = queues_of(await monitor.actions(0.0))
    for name in named:
        caller.require(Scope.POP, known.get(name))
