"""Running tasks: what workers are at, as they report it and as operators are shown it."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec


class ReportedTask(NamedTuple):
    """An item whose handler runs, as its worker reports it."""

    action_class: str
    flow: str
    action: str
    did: UUID
    message_id: UUID
    started_at: datetime
    attempt: int
    percent: float | None
    text: str | None


class TaskInfo(msgspec.Struct, frozen=True):
    """An item whose handler runs. `flow_type` is UNKNOWN where the action is not registered."""

    worker: str
    flow: str
    flow_type: str
    action: str
    action_class: str
    did: UUID
    message_id: UUID
    attempt: int
    started_at: datetime
    running_for: float
    progress: float | None
    text: str | None
    heartbeat_at: datetime
