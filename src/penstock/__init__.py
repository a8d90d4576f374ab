"""A message log and work queue that lives inside PostgreSQL.

The public surface is here: the two clients, messages, and one hierarchy of errors. The names are loaded when they are
first used, so that `import penstock` costs next to nothing.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AlreadyExists,
    CheckpointError,
    DataLost,
    EmbeddedError,
    HandlerTimeout,
    InvalidFlows,
    InvalidInput,
    LeaseLost,
    LockTimeout,
    MessageTooLarge,
    MissingExtra,
    NotFound,
    PenstockError,
    ReadOnlyServer,
    Retryable,
    SetupError,
    TimedOut,
    Unavailable,
)

if TYPE_CHECKING:
    from penstock.broker.infos import DeadLetter, GroupInfo, PartitionInfo, QueueInfo, ScheduledInfo
    from penstock.broker.messages import Duplicate, Message, PushResult, Scheduled, StoredMessage
    from penstock.client.async_client import AsyncClient
    from penstock.client.client import Client
    from penstock.client.gathering import PendingPush
    from penstock.client.transaction import Transaction
    from penstock.consuming.async_batch import AsyncBatch
    from penstock.consuming.batch import Batch

__version__ = "0.1.0"

# What penstock has to say goes to the logger `penstock`, and nowhere unless the program says so.
logging.getLogger("penstock").addHandler(logging.NullHandler())

_HOMES = {
    "AsyncBatch": "penstock.consuming.async_batch",
    "AsyncClient": "penstock.client.async_client",
    "Batch": "penstock.consuming.batch",
    "Client": "penstock.client.client",
    "DeadLetter": "penstock.broker.infos",
    "Duplicate": "penstock.broker.messages",
    "GroupInfo": "penstock.broker.infos",
    "Message": "penstock.broker.messages",
    "PartitionInfo": "penstock.broker.infos",
    "PendingPush": "penstock.client.gathering",
    "PushResult": "penstock.broker.messages",
    "QueueInfo": "penstock.broker.infos",
    "Scheduled": "penstock.broker.messages",
    "ScheduledInfo": "penstock.broker.infos",
    "StoredMessage": "penstock.broker.messages",
    "Transaction": "penstock.client.transaction",
}

__all__ = [
    "AlreadyExists",
    "AsyncBatch",
    "AsyncClient",
    "Batch",
    "CheckpointError",
    "Client",
    "DataLost",
    "DeadLetter",
    "Duplicate",
    "EmbeddedError",
    "GroupInfo",
    "HandlerTimeout",
    "InvalidFlows",
    "InvalidInput",
    "LeaseLost",
    "LockTimeout",
    "Message",
    "MessageTooLarge",
    "MissingExtra",
    "NotFound",
    "PartitionInfo",
    "PendingPush",
    "PenstockError",
    "PushResult",
    "QueueInfo",
    "ReadOnlyServer",
    "Retryable",
    "Scheduled",
    "ScheduledInfo",
    "SetupError",
    "StoredMessage",
    "TimedOut",
    "Transaction",
    "Unavailable",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
