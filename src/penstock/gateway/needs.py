"""What a caller must be allowed to do for each operation: the scopes of the table's rows for operations."""

from collections.abc import Iterator
from typing import Any

from penstock.broker.operations import (
    claiming,
    flows,
    groups,
    health,
    items,
    jobs,
    keys,
    log,
    metrics,
    pushing,
    reading,
    rules,
    schedules,
    workers,
)
from penstock.broker.operations.operation import Operation
from penstock.gateway.scopes import ANY_QUEUE, AnyQueue, Scope
from penstock.http.reads import READS

# Operations that are not here are not offered: Spark's, which want a connection to the database.
SCOPES: dict[type[Operation[Any]], Scope] = {
    **dict.fromkeys([pushing.Push, pushing.CancelScheduled, log.GetSpread], Scope.PUSH),
    metrics.RecordMetrics: Scope.USE,
    **dict.fromkeys(
        [
            claiming.Pop,
            claiming.PopMany,
            claiming.HasPending,
            claiming.HasPendingMany,
            claiming.Ack,
            claiming.AckAndPop,
            claiming.Renew,
            claiming.Nack,
            claiming.Release,
            claiming.ReleaseMany,
            claiming.Sweep,
            items.SettleItems,
            items.NoteItems,
            items.SaveStep,
            items.ReadNotes,
            items.ListCancelled,
            groups.CreateGroup,
            health.ReportHealth,
            metrics.Sample,
            rules.RunRules,
            schedules.FindDueSchedules,
            schedules.FireSchedule,
            schedules.FailSchedule,
            workers.RegisterActions,
            workers.ReportTasks,
        ],
        Scope.POP,
    ),
    **dict.fromkeys(READS, Scope.READ),
    **dict.fromkeys(
        [
            flows.ForgetFlow,
            flows.PauseFlow,
            groups.ConfigureGroup,
            groups.DeleteGroup,
            groups.Discard,
            groups.ListClaims,
            groups.PauseGroup,
            groups.Redrive,
            groups.Resync,
            groups.Seek,
            groups.Verify,
            health.ResetBreaker,
            health.ResetConsumer,
            items.CancelMessages,
            jobs.BeginJob,
            jobs.NoteJob,
            jobs.StopJob,
            keys.CreateKey,
            keys.HasKeys,
            keys.ListActs,
            keys.ListKeys,
            keys.RevokeKey,
            keys.RotateKey,
            log.ConfigureDatabase,
            log.ConfigurePartition,
            log.ConfigureQueue,
            log.CreatePartition,
            log.CreateQueue,
            log.Delete,
            log.Maintain,
            log.PauseQueue,
            log.Purge,
            metrics.ConfigureCheck,
            metrics.StoreRollups,
            rules.AddRule,
            rules.DeleteRule,
            schedules.DefineSchedule,
            schedules.DeleteSchedule,
            schedules.PauseSchedule,
            schedules.ResumeSchedule,
            schedules.RunSchedule,
            schedules.UndeclareSchedules,
        ],
        Scope.ADMIN,
    ),
}


# What names no queue, and needs none: leases are secrets of who has them, timers fire for everybody, and a worker says
# what it is at.
_OF_ANY_QUEUE = (
    claiming.Ack,
    claiming.Nack,
    claiming.Release,
    claiming.ReleaseMany,
    claiming.Renew,
    claiming.Sweep,
    items.ListCancelled,
    items.NoteItems,
    items.ReadNotes,
    items.SaveStep,
    metrics.Sample,
    rules.RunRules,
    workers.ReportTasks,
)


# What admins alone may ask, and what maintenance does all the time: no acts for the audit log.
_NO_ACTS = (
    groups.ListClaims,
    groups.Verify,
    jobs.NoteJob,
    keys.HasKeys,
    keys.ListActs,
    keys.ListKeys,
    log.Maintain,
)


def is_act(operation: Operation[Any]) -> bool:
    """Say whether an operation belongs into the audit log."""
    if isinstance(operation, _NO_ACTS) or operation == log.ConfigureDatabase():
        return False
    return SCOPES[type(operation)] is Scope.ADMIN or _takes_away(operation)


def _takes_away(operation: Operation[Any]) -> bool:
    """Say whether a claim is taken from whoever holds it, for which nobody needs to know its lease."""
    return isinstance(operation, claiming.Release) and operation.lease.lease_id is None


def needs_of(operation: Operation[Any]) -> Iterator[tuple[Scope, str | AnyQueue | None]]:
    """Yield each scope and queue that an operation needs; None, for all queues, where it does not name one."""
    scope = SCOPES[type(operation)]
    queues: set[str | AnyQueue | None]
    match operation:
        case pushing.Push():
            hinted = operation.hint.queues if operation.hint else ()
            queues = {*(batch.place.queue for batch in operation.batches), *hinted}
        case claiming.HasPendingMany():
            queues = {each.queue for each in operation.asks}
        case claiming.PopMany():
            queues = {pop.queue for pop in operation.pops}
        case claiming.Release() if _takes_away(operation):
            scope, queues = Scope.ADMIN, {None}
        case health.ReportHealth():
            # What it says of a group counts for the group's breaker.
            queues = {group.queue for group in operation.groups} or {ANY_QUEUE}
        case metrics.GetDifferences() if operation.max_age is not None:
            # It may compare state and log, which reads a lot.
            scope, queues = Scope.ADMIN, {None}
        case claiming.AckAndPop():
            queues = {operation.pop.queue}
        case items.SettleItems():
            queues = {ANY_QUEUE if operation.pop is None else operation.pop.queue}
            for queue in {output.push.place.queue for output in operation.outputs}:
                yield Scope.PUSH, queue
        case reading.Read() | log.CreatePartition() | log.ConfigurePartition():
            queues = {operation.place.queue}
        case metrics.RecordMetrics():
            queues = {value.queue for value in operation.values}
        case schedules.DefineSchedule():
            # It may replace a schedule of any queue that has the same name.
            queues = {None}
        case workers.RegisterActions():
            queues = {action.queue for action in operation.actions}
        case _:
            queues = {ANY_QUEUE if isinstance(operation, _OF_ANY_QUEUE) else getattr(operation, "queue", None)}
    for each in queues:
        yield scope, each
