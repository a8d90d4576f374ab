"""A message log and work queue that lives inside PostgreSQL.

The public surface is here: the two clients, messages, and one hierarchy of errors. The names are loaded when they are
first used, so that `import penstock` costs next to nothing.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AlreadyExists,
    Cancelled,
    CheckpointError,
    DataLost,
    EmbeddedError,
    Forbidden,
    HandlerFailed,
    HandlerTimeout,
    InvalidFlows,
    InvalidInput,
    LeaseLost,
    LockTimeout,
    MessageTooLarge,
    MissingExtra,
    NotFound,
    NotOverHttp,
    PenstockError,
    QueuePaused,
    RateLimited,
    ReadOnlyServer,
    Retryable,
    SetupError,
    TimedOut,
    Unauthenticated,
    Unavailable,
    ValkeyUnavailable,
    ValkeyUnusable,
)

if TYPE_CHECKING:
    from penstock.broker.infos import (
        DeadLetterInfo,
        GroupInfo,
        MessageState,
        PartitionInfo,
        QueueInfo,
        ScheduledInfo,
    )
    from penstock.broker.messages import Duplicate, Message, PushResult, Scheduled, StoredMessage
    from penstock.broker.schedules import Schedule, ScheduleInfo
    from penstock.broker.tasks import TaskInfo
    from penstock.client.async_client import AsyncClient
    from penstock.client.client import Client
    from penstock.client.gathering import PendingPush
    from penstock.client.transaction import Transaction
    from penstock.consuming.async_batch import AsyncBatch
    from penstock.consuming.batch import Batch
    from penstock.scheduling.declaring import cron, every
    from penstock.workers.actions import Action, action
    from penstock.workers.items import Item
    from penstock.workers.middleware import middleware
    from penstock.workers.outcomes import DeadLetter, Discard, Retry, Snooze
    from penstock.workers.resources import resource
    from penstock.workers.running import Worker

__version__ = "0.1.0"

# What penstock has to say goes to the logger `penstock`, and nowhere unless the program says so.
logging.getLogger("penstock").addHandler(logging.NullHandler())

_HOMES = {
    "Action": "penstock.workers.actions",
    "action": "penstock.workers.actions",
    "AsyncBatch": "penstock.consuming.async_batch",
    "AsyncClient": "penstock.client.async_client",
    "Batch": "penstock.consuming.batch",
    "Client": "penstock.client.client",
    "DeadLetter": "penstock.workers.outcomes",
    "DeadLetterInfo": "penstock.broker.infos",
    "Discard": "penstock.workers.outcomes",
    "Duplicate": "penstock.broker.messages",
    "GroupInfo": "penstock.broker.infos",
    "Item": "penstock.workers.items",
    "Message": "penstock.broker.messages",
    "middleware": "penstock.workers.middleware",
    "MessageState": "penstock.broker.infos",
    "PartitionInfo": "penstock.broker.infos",
    "PendingPush": "penstock.client.gathering",
    "PushResult": "penstock.broker.messages",
    "QueueInfo": "penstock.broker.infos",
    "resource": "penstock.workers.resources",
    "Retry": "penstock.workers.outcomes",
    "Schedule": "penstock.broker.schedules",
    "ScheduleInfo": "penstock.broker.schedules",
    "Scheduled": "penstock.broker.messages",
    "ScheduledInfo": "penstock.broker.infos",
    "Snooze": "penstock.workers.outcomes",
    "StoredMessage": "penstock.broker.messages",
    "TaskInfo": "penstock.broker.tasks",
    "Transaction": "penstock.client.transaction",
    "Worker": "penstock.workers.running",
    "cron": "penstock.scheduling.declaring",
    "every": "penstock.scheduling.declaring",
}

__all__ = [
    "Action",
    "AlreadyExists",
    "AsyncBatch",
    "AsyncClient",
    "Batch",
    "Cancelled",
    "CheckpointError",
    "Client",
    "DataLost",
    "DeadLetter",
    "DeadLetterInfo",
    "Discard",
    "Duplicate",
    "EmbeddedError",
    "Forbidden",
    "GroupInfo",
    "HandlerFailed",
    "HandlerTimeout",
    "InvalidFlows",
    "InvalidInput",
    "Item",
    "LeaseLost",
    "LockTimeout",
    "Message",
    "MessageState",
    "MessageTooLarge",
    "MissingExtra",
    "NotFound",
    "NotOverHttp",
    "PartitionInfo",
    "PendingPush",
    "PenstockError",
    "PushResult",
    "QueueInfo",
    "QueuePaused",
    "RateLimited",
    "ReadOnlyServer",
    "Retry",
    "Retryable",
    "Schedule",
    "ScheduleInfo",
    "Scheduled",
    "ScheduledInfo",
    "SetupError",
    "Snooze",
    "StoredMessage",
    "TaskInfo",
    "TimedOut",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "ValkeyUnavailable",
    "ValkeyUnusable",
    "Worker",
    "__version__",
    "action",
    "cron",
    "every",
    "middleware",
    "resource",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
