"""Push messages, now or later; list and cancel what is scheduled."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from penstock.broker.arguments import list_of_ids
from penstock.broker.hints import Hint
from penstock.broker.infos import ScheduledInfo
from penstock.broker.messages import PushResult
from penstock.broker.names import check_moment, check_names, check_whole
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.pushing import PushBatch, Stamp
from penstock.errors import InvalidInput


class Push(Operation[list[PushResult]], frozen=True):
    """Push batches in one transaction; one result for each.

    With a stamp it may be run again: what was stored under it before is not stored again. `lock_timeout` is how many
    seconds it waits for a partition that somebody else has locked; None for as long as the broker allows. Past that
    it raises LockTimeout, and nothing was pushed. A hint goes to those who wait elsewhere when the push commits.
    """

    batches: Sequence[PushBatch]
    stamp: Stamp | None = None
    lock_timeout: float | None = None
    hint: Hint | None = None

    def __post_init__(self) -> None:
        if not self.batches:
            raise InvalidInput("an empty push: give at least one message")

    @property
    def stamped(self) -> bool:  # noqa: D102
        return self.stamp is not None


class NoteRequest(Operation[bool], frozen=True):
    """Note the digest of a request before its push, in the same transaction.

    The reply is false if another request was noted for the same producer.
    """

    producer: UUID
    digest: bytes


class ListScheduled(Repeatable[list[ScheduledInfo]], frozen=True):
    """List what is scheduled, the one that is due first at the front; `after` is the last one of the page before."""

    queue: str | None = None
    partition: str | None = None
    after_due_at: datetime | None = None
    after_id: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        if self.partition is not None and self.queue is None:
            raise InvalidInput("`partition` requires `queue`")
        check_whole("limit", self.limit)
        check_moment(self.after_due_at)
        check_names(*(name for name in (self.queue, self.partition) if name is not None))


class CancelScheduled(Operation[list[int]], frozen=True):
    """Cancel what is scheduled; the reply has the ids for which it was in time."""

    # Not repeatable: a second time, what the first one cancelled would look as if it had been too late.
    ids: Sequence[int]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "ids", list_of_ids("a scheduled push (see PushResult.scheduled)", self.ids))
