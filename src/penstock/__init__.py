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
    MessageTooLarge,
    MissingExtra,
    NotFound,
    PenstockError,
    Retryable,
    SetupError,
    TimedOut,
    Unavailable,
)

if TYPE_CHECKING:
    from penstock.engine.async_client import AsyncClient
    from penstock.engine.batch import AsyncBatch, Batch
    from penstock.engine.calls import PartitionInfo, QueueInfo
    from penstock.engine.client import Client
    from penstock.engine.group_calls import DeadLetter, GroupInfo
    from penstock.engine.messages import Duplicate, Message, PushResult, Scheduled, StoredMessage
    from penstock.engine.option_calls import ScheduledInfo
    from penstock.engine.transaction import PendingPush, Transaction

__version__ = "0.1.0"

# What penstock has to say goes to the logger `penstock`, and nowhere unless the program says so.
logging.getLogger("penstock").addHandler(logging.NullHandler())

_HOMES = {
    "AsyncBatch": "penstock.engine.batch",
    "AsyncClient": "penstock.engine.async_client",
    "Batch": "penstock.engine.batch",
    "Client": "penstock.engine.client",
    "DeadLetter": "penstock.engine.group_calls",
    "Duplicate": "penstock.engine.messages",
    "GroupInfo": "penstock.engine.group_calls",
    "Message": "penstock.engine.messages",
    "PartitionInfo": "penstock.engine.calls",
    "PendingPush": "penstock.engine.transaction",
    "PushResult": "penstock.engine.messages",
    "QueueInfo": "penstock.engine.calls",
    "Scheduled": "penstock.engine.messages",
    "ScheduledInfo": "penstock.engine.option_calls",
    "StoredMessage": "penstock.engine.messages",
    "Transaction": "penstock.engine.transaction",
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
    "Message",
    "MessageTooLarge",
    "MissingExtra",
    "NotFound",
    "PartitionInfo",
    "PendingPush",
    "PenstockError",
    "PushResult",
    "QueueInfo",
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
