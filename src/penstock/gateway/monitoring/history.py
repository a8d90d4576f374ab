"""History for charts: a series of a queue or group, in a bounded number of points, and the same time earlier."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from penstock.broker.metrics import Point
from penstock.client.async_client import AsyncClient
from penstock.errors import InvalidInput

# What clients count: within a step these are added up. Of all others the newest value of a step counts.
COUNTED = ("pushed", "push_batches", "delivered", "batches", "acked", "failed", "checks", "dead_lettered")
# Of these the largest one counts.
_LARGEST = ("wait_p50_us", "wait_p99_us", "handling_p50_us", "handling_p99_us")
_DEFAULT = timedelta(hours=1)


class SeriesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which time, by default the last hour, and how many points at most.

    With `compare` there is a second series of the time so many seconds earlier: 86400 is the same hour yesterday.
    """

    group: str | None = None
    begin: datetime | None = None
    end: datetime | None = None
    points: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 120
    compare: Annotated[float, msgspec.Meta(gt=0, le=3.2e8)] | None = None


class SeriesPoint(msgspec.Struct, frozen=True):
    """A step that begins at `time`. `value` is the sum of what was counted, or the newest value of what was sampled.

    `rate` is the sum a second.
    """

    time: datetime
    value: int
    rate: float | None
    smallest: int
    largest: int
    samples: int


class Series(msgspec.Struct, frozen=True):
    """A series for a chart; a step without values has no point. `before` is the time that it is compared with."""

    queue: str
    group: str | None
    metric: str
    kind: str
    begin: datetime
    end: datetime
    step: float | None
    points: list[SeriesPoint]
    compare: float | None = None
    before: list[SeriesPoint] | None = None


async def series(client: AsyncClient, queue: str, metric: str, wanted: SeriesQuery) -> Series:
    """Return a series, and that of an earlier time if it is wanted."""
    end = _aware("end", wanted.end) or datetime.now(UTC)
    begin = _aware("begin", wanted.begin) or end - _DEFAULT
    if begin >= end:
        raise InvalidInput(f"begin is {begin.isoformat()} but must be before end, which is {end.isoformat()}")

    async def within(begin: datetime, end: datetime) -> Sequence[Point]:
        return await client.series(queue, metric, group=wanted.group, begin=begin, end=end, max_points=wanted.points)

    found = await within(begin, end)
    before = None
    if wanted.compare is not None:
        try:
            earlier = timedelta(seconds=wanted.compare)
            before = await within(begin - earlier, end - earlier)
        except OverflowError:
            raise InvalidInput(f"compare is {wanted.compare:g} seconds, which is before the year 1") from None
    return Series(
        queue,
        wanted.group,
        metric,
        "count" if metric in COUNTED else "sample",
        begin,
        end,
        found[0].step if found else None,
        [_point(metric, point) for point in found],
        wanted.compare,
        None if before is None else [_point(metric, point) for point in before],
    )


def _point(metric: str, point: Point) -> SeriesPoint:
    counted = metric in COUNTED
    value = point.total if counted else point.largest if metric in _LARGEST else point.newest
    rate = round(point.total / point.step, 6) if counted else None
    return SeriesPoint(point.bucket.astimezone(UTC), value, rate, point.smallest, point.largest, point.samples)


def _aware(name: str, moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidInput(f"{name} has no time zone; write it with Z or an offset")
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{name} is before the year 1 or after the year 9999 in UTC") from None
