"""Jobs: begin one, note how far it is, list them, ask one to stop."""

from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.arguments import storable
from penstock.broker.jobs import KINDS, JobInfo
from penstock.broker.names import check_names, checked_settings
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.errors import InvalidInput


class BeginJob(Operation[UUID], frozen=True):
    """Note that a job begins; the reply is its id."""

    kind: str
    queue: str
    filter: dict[str, Any] = msgspec.field(default_factory=dict)
    total: int = 0
    started_by: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue)
        if self.kind not in KINDS:
            raise InvalidInput(f"a job is one of {', '.join(KINDS)}, and {self.kind!r} is not")
        msgspec.structs.force_setattr(self, "filter", checked_settings(self.filter))


class NoteJob(Repeatable[bool], frozen=True):
    """Note how far a job is; the reply is whether it is to stop."""

    job_id: UUID
    done: int
    state: str = "running"
    error: str | None = None

    def __post_init__(self) -> None:
        if self.error is not None:
            msgspec.structs.force_setattr(self, "error", storable(self.error))


class ListJobs(Repeatable[list[JobInfo]], frozen=True):
    """List jobs, the newest first, or one of them."""

    job_id: UUID | None = None
    limit: int = 100


class StopJob(Repeatable[bool], frozen=True):
    """Ask a job to stop; the reply is whether it runs."""

    job_id: UUID
