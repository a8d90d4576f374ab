"""Metrics: clients record what they count; groups are sampled; operators read the series."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.metrics import (
    CheckSettings,
    Facts,
    Measured,
    Metric,
    Point,
    RecentCount,
    Rollup,
    SampleStep,
    WorkInfo,
)
from penstock.broker.names import check_group_names, check_moment, check_names, check_whole, checked_settings
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.server import Difference, ServerInfo
from penstock.errors import InvalidInput

_METRIC = re.compile("[a-z][a-z0-9_]{0,62}")


class RecordMetrics(Operation[int], frozen=True):
    """Append values to the series of queues; the reply is how many were stored."""

    values: Sequence[Measured]

    def __post_init__(self) -> None:
        for value in self.values:
            check_names(value.queue)


class ListMetrics(Repeatable[list[Metric]], frozen=True):
    """Return the newest values of a queue's series."""

    queue: str
    metric: str | None = None
    since: datetime | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        check_names(self.queue)
        check_moment(self.since)
        check_whole("limit", self.limit)


class Sample(Repeatable[SampleStep | None], frozen=True):
    """Take a step of a sample of what waits in all groups; None while another one samples."""

    max_entries: int = 2000
    min_age: float = 0.0


class ListWork(Repeatable[list[WorkInfo]], frozen=True):
    """List what waits for each group, as it was last sampled."""

    queue: str | None = None


class GetFacts(Repeatable[Facts], frozen=True):
    """Return all that checks judge."""


class ListChecks(Repeatable[list[CheckSettings]], frozen=True):
    """List the checks with their settings."""


class ConfigureCheck(Repeatable[None], frozen=True):
    """Change the settings of a check."""

    name: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names(self.name, what=("check",))
        msgspec.structs.force_setattr(self, "changes", checked_settings(self.changes))


class ListMeasuredQueues(Repeatable[list[str]], frozen=True):
    """Return the queues that have values from a time on."""

    since: datetime


class StoreRollups(Repeatable[int], frozen=True):
    """Store what was made of a queue's series; the reply is how many there were."""

    rollups: Sequence[Rollup]


class ListRollups(Repeatable[list[Rollup]], frozen=True):
    """Return the newest rollups of a queue."""

    queue: str
    resolution: str = "minute"
    metric: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        check_names(self.queue)
        check_whole("limit", self.limit)


class ListSeries(Repeatable[list[Point]], frozen=True):
    """Return a series of a queue or group for a chart, in at most so many steps."""

    queue: str
    metric: str
    group: str | None
    begin_at: datetime
    end_at: datetime
    max_points: int = 120

    def __post_init__(self) -> None:
        if self.group is None:
            check_names(self.queue)
        else:
            check_group_names(self.queue, self.group)
        if not _METRIC.fullmatch(self.metric):
            raise InvalidInput(f"metric is {self.metric!r:.100} but is a word of small letters, digits and _")
        check_moment(self.begin_at)
        check_moment(self.end_at)
        check_whole("max_points", self.max_points)


class ListRates(Repeatable[list[RecentCount]], frozen=True):
    """Return what clients have counted in the last seconds."""

    period: float = 300.0


class GetServer(Repeatable[ServerInfo], frozen=True):
    """Return what the owner of a database asks of its server."""


class GetDifferences(Repeatable[list[Difference]], frozen=True):
    """Return what `verify` last found, and run it if that is older than so many seconds."""

    max_age: float | None = None
