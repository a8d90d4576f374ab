"""Health: what consumers report of themselves, and what operators are shown of consumers and breakers."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec


class ConsumerHealth(NamedTuple):
    """What a consumer has handled since it began; times are microseconds for one message."""

    status: str
    success_count: int = 0
    error_count: int = 0
    consecutive_errors: int = 0
    avg_processing_time: int | None = None
    p99_processing_time: int | None = None
    last_error: str | None = None


class GroupHealth(NamedTuple):
    """What a consumer has handled for a group since its last report; `trailing` errors came after the last success."""

    queue: str
    group: str
    succeeded: int = 0
    failed: int = 0
    trailing: int = 0
    last_error: str | None = None


class GroupVerdict(NamedTuple):
    """What the broker says of a group: the state of its breaker, how long it is held, and the breaker's settings.

    `reset` says that an operator wants the consumer to begin anew.
    """

    queue: str
    group: str
    state: str
    held_for: float | None
    errors: int
    rate: float
    window: float
    pause: float
    pause_max: float
    reset: bool


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer and how it fares; times are microseconds for one message."""

    consumer_id: str
    created_at: datetime
    description: str | None
    metadata: dict[str, Any] | None
    last_seen: datetime | None
    status: str
    success_count: int
    error_count: int
    consecutive_errors: int
    avg_processing_time: int | None
    p99_processing_time: int | None
    last_error: str | None


class BreakerInfo(msgspec.Struct, frozen=True):
    """The circuit breaker of a group: `opened` is how often it opened without closing in between."""

    queue: str
    group: str
    state: str
    since: datetime
    opened_at: datetime | None
    open_until: datetime | None
    opened: int
    consecutive_errors: int
    window_calls: int
    window_errors: int
    reason: str | None
    last_error: str | None
