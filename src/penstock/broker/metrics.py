"""Metrics: values of series per queue, and what waits in groups as it was last sampled."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from penstock.broker.health import BreakerInfo, ConsumerInfo


class Measured(NamedTuple):
    """A value that a client has counted, for a queue or for a group of it."""

    queue: str
    metric: str
    value: int
    group: str | None = None


class Metric(msgspec.Struct, frozen=True):
    """A value of a queue's series."""

    metric_name: str
    metric_value: int
    timestamp: datetime
    labels: dict[str, str] | None = None


class Rollup(msgspec.Struct, frozen=True):
    """The values of a series within a minute, an hour or a day."""

    queue: str
    resolution: str
    bucket: datetime
    metric_name: str
    labels: dict[str, str]
    samples: int
    total: int
    smallest: int
    largest: int
    newest: int


class Point(msgspec.Struct, frozen=True):
    """The values of a series within one step of a chart, which begins at `bucket` and is `step` seconds long."""

    bucket: datetime
    step: float
    samples: int
    total: int
    smallest: int
    largest: int
    newest: int


class RecentCount(msgspec.Struct, frozen=True):
    """How much of something clients have counted lately; of the queue itself where there is no group."""

    queue: str
    group: str | None
    metric: str
    total: int
    newest_at: datetime


class SampleStep(NamedTuple):
    """What a step of a sample did: how many partitions and ranges it visited, and whether the sample is complete."""

    visited: int
    complete: bool


class WorkInfo(msgspec.Struct, frozen=True):
    """What waits for a group, as it was last sampled; of a group of an action, also flow, action and action class.

    `lag` messages are not acknowledged, `cold` of them not handed out. `oldest_did` is the id of the message that
    entered the flow and that the oldest one comes from. `times`, `lags` and `depths` are the recent past.
    """

    queue: str
    group: str
    flow: str | None
    flow_type: str
    action: str | None
    action_class: str | None
    lag: int
    cold: int
    ready: int
    claimed: int
    waiting: int
    oldest_at: datetime | None
    oldest_age: float | None
    oldest_id: str | None
    oldest_did: str | None
    sampled_at: datetime
    times: list[datetime]
    lags: list[int]
    depths: list[int]


class CheckSettings(msgspec.Struct, frozen=True):
    """A check of `penstock status`: its threshold, for how many seconds that is looked at, and what to do."""

    name: str
    enabled: bool
    threshold: float
    duration: float
    meaning: str
    advice: str
    configured: bool


class FlowState(msgspec.Struct, frozen=True):
    """The state of a flow, and how often it has failed in a row."""

    name: str
    state: str
    failures: int
    error: str | None
    since: datetime | None


class ScheduleFact(msgspec.Struct, frozen=True):
    """That a schedule has a slot that is due, or failed when it was pushed."""

    name: str
    queue: str
    due_at: datetime | None
    error: str | None
    failed_at: datetime | None


class DeadLettersFact(msgspec.Struct, frozen=True):
    """That a group has dead letters: how many, counted up to `MOST_LETTERS`, and since when at least one of them."""

    queue: str
    group: str
    letters: int
    since: datetime


# So many dead letters of a group are counted for its check.
MOST_LETTERS = 1000


class Facts(msgspec.Struct, frozen=True):
    """All that `penstock status` judges, as of one moment."""

    now: datetime
    work: list[WorkInfo]
    breakers: list[BreakerInfo]
    consumers: list[ConsumerInfo]
    # Queue, group and consumer.
    consuming: list[tuple[str, str, str]]
    # Queue and group of those whose reader keeps its own positions, as Spark does.
    external: list[tuple[str, str]]
    flows: list[FlowState]
    orphans: list[tuple[str, datetime]]
    dead_letters: list[DeadLettersFact]
    checks: list[CheckSettings]
    # Queue and group of those that are paused, by themselves or with their flow.
    paused: list[tuple[str, str]] = msgspec.field(default_factory=list)
    schedules: list[ScheduleFact] = msgspec.field(default_factory=list)
    # Queue and group of those that have or had a window in Valkey, and how many claims consumers hold beside it.
    windows: list[tuple[str, str, int]] = msgspec.field(default_factory=list)
