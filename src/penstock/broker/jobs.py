"""Jobs: long work that a gateway does for somebody, as operators are shown it."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

KINDS = ("redrive", "discard")


class JobInfo(msgspec.Struct, frozen=True):
    """A job: `done` of `total`; its state is running, stopping, done, stopped, failed, or lost with its gateway."""

    job_id: UUID
    kind: str
    queue: str
    filter: dict[str, Any]
    started_by: str | None
    state: str
    total: int
    done: int
    error: str | None
    created_at: datetime
    changed_at: datetime
