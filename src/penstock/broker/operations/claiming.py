"""Take messages and settle them: pop, ack, nack, renew, release, and the timers behind them.

With `durable` false the caller does not need what it asks for to survive a crash of the server: what that undoes is
delivered again. It is for operations in transactions of their own.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from penstock.broker.arguments import delay_time, lease_time, storable
from penstock.broker.claims import MAX_BYTES, AckedAndPopped, Claim, ClaimRange, Lease
from penstock.broker.infos import SweepResult
from penstock.broker.names import check_group_names
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.errors import InvalidInput


class Pop(Operation[list[Claim]], frozen=True):
    """Claim what is next of any partition, or of a named one.

    `ready_from` says where in the ready list to begin, for each level of priority; None for its front. It is a hint
    that saves work, see `consuming.polling`. With `ahead`, what was delivered before is begun with `Renew`; if its
    lease ends before that, no attempt counts. Unless it `creates` queue and group where they are not there, it raises
    NotFound then.
    """

    queue: str
    group: str
    partition: str | None = None
    max_messages: int = 100
    max_bytes: int = MAX_BYTES
    max_partitions: int = 1
    lease: float | None = None
    consumer: str | None = None
    auto_ack: bool = False
    ready_from: Sequence[int] | None = None
    durable: bool = True
    ahead: bool = False
    creates: bool = True

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group, self.partition)
        lease_time(self.lease)


class PopMany(Operation[list[list[Claim] | None]], frozen=True):
    """Claim what is next for many callers; None for a pop that must be run again by itself."""

    pops: Sequence[Pop]


class HasPending(Repeatable[bool], frozen=True):
    """Return whether a pop could get something now."""

    queue: str
    group: str
    partition: str | None = None
    ready_from: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group, self.partition)


class HasPendingMany(Repeatable[list[bool]], frozen=True):
    """Ask for several groups at once whether a pop could get something now."""

    asks: Sequence[HasPending]


class Ack(Operation[list[bool]], frozen=True):
    """Acknowledge ranges of claims; for each, whether its lease was live and it is done.

    `lock_timeout` is how many seconds to wait for a claim that somebody else has locked; past that it raises
    LockTimeout, and nothing was acknowledged. Only groups whose `durable_acks` is off heed that it is not `durable`.
    """

    ranges: Sequence[ClaimRange]
    lock_timeout: float | None = None
    durable: bool = True


class AckAndPop(Operation[AckedAndPopped], frozen=True):
    """Acknowledge ranges of claims and claim what is next, in one transaction.

    The acks do not depend on what is there to pop, and a pop that finds neither queue nor group claims nothing. Where
    it raises, nothing was acknowledged.
    """

    ranges: Sequence[ClaimRange]
    pop: Pop


class Renew(Operation[list[datetime | None]], frozen=True):
    """Extend leases from now, by `lease` seconds or the group's lease time; for each the new deadline, None if lost.

    `begun` says that the messages, which were claimed ahead, are handled from now on.
    """

    leases: Sequence[Lease]
    lease: float | None = None
    lock_timeout: float | None = None
    durable: bool = True
    begun: bool = False

    def __post_init__(self) -> None:
        lease_time(self.lease)


class Nack(Operation[str | None], frozen=True):
    """Say that a claim failed, at `failed_offset` if that is known: all before it is done.

    The reply is 'retry' or 'dead letter', None where the lease is lost. Any texts are stored.
    """

    lease: Lease
    failed_offset: int | None = None
    error: str | None = None
    reason: str | None = None
    delay: float | None = None
    traceback: str | None = None

    def __post_init__(self) -> None:
        delay_time(self.delay)
        for name in ("error", "reason", "traceback"):
            text = getattr(self, name)
            if text is not None:
                msgspec.structs.force_setattr(self, name, storable(text))


class Release(Operation[bool], frozen=True):
    """Give a claim back without counting an attempt; without a lease id, take it from whoever holds it."""

    lease: Lease


class ReleaseMany(Operation[list[bool]], frozen=True):
    """Give claims back without counting an attempt; for each, whether its lease was live."""

    leases: Sequence[Lease]

    def __post_init__(self) -> None:
        if not self.leases or any(lease.lease_id is None for lease in self.leases):
            raise InvalidInput("give the lease_id of each claim")


class Sweep(Repeatable[SweepResult | None], frozen=True):
    """Fire due timers, all or those since a moment, and at most `max_timers`; None when another process is at it."""

    since: datetime | None = None
    max_timers: int = 1000
    durable: bool = True
