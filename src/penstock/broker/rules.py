"""Rules for dead letters: what one is, and what it would do."""

from datetime import datetime

import msgspec


class RuleInfo(msgspec.Struct, frozen=True):
    """A rule: dead letters that match are redriven after a backoff, `max_redrives` times at most; None matches all."""

    name: str
    queue: str | None
    group: str | None
    reason: str | None
    error: str | None
    backoff: float
    backoff_factor: float
    max_redrives: int
    created_at: datetime
    redriven: int
    last_redriven: datetime | None


class RuleMatch(msgspec.Struct, frozen=True):
    """A dead letter that a rule is about, and what the rule does with it: 'redrive', 'wait' or 'exhausted'."""

    dead_letter_id: int
    queue: str
    group: str
    reason: str
    last_error: str | None
    died_at: datetime
    redrives: int
    due_at: datetime | None
    verdict: str
