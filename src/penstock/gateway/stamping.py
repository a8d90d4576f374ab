"""Who pushed: a header that the gateway writes into each message, and that no client can set."""

from contextvars import ContextVar
from typing import Any

import msgspec

from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.operations.schedules import DefineSchedule
from penstock.broker.packing import with_header
from penstock.broker.pushing import PushBatch

HEADER = "penstock-pushed-by"
# The name of the caller whose request this task answers; None where the gateway does not know it.
PUSHER: ContextVar[str | None] = ContextVar("pusher", default=None)


def stamped(operation: Operation[Any]) -> Operation[Any]:
    """Return an operation with the name of the caller in the messages that it pushes, and no other name."""
    match operation:
        case Push():
            return msgspec.structs.replace(operation, batches=[_batch(each) for each in operation.batches])
        case SettleItems() if operation.outputs:
            outputs = [each._replace(push=_batch(each.push)) for each in operation.outputs]
            return msgspec.structs.replace(operation, outputs=outputs)
        case DefineSchedule():
            given = operation.schedule.headers or {}
            headers = {name: text for name, text in given.items() if name.casefold() != HEADER}
            if (pusher := PUSHER.get()) is not None:
                headers[HEADER] = pusher
            schedule = msgspec.structs.replace(operation.schedule, headers=headers or None)
            return msgspec.structs.replace(operation, schedule=schedule)
    return operation


def _batch(batch: PushBatch) -> PushBatch:
    pusher = PUSHER.get()
    segments = [made for each in batch.segments for made in with_header(each, HEADER, pusher)]
    return msgspec.structs.replace(batch, segments=segments)
