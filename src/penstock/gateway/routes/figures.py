"""Figures of all queues together: what was counted lately, and the last hour for charts."""

from datetime import UTC, datetime, timedelta

import msgspec

from penstock.broker.browsing import TotalPoint
from penstock.broker.metrics import RecentCount
from penstock.broker.operations.browsing import GetOutline, ListTotals
from penstock.gateway.call import Call
from penstock.gateway.monitoring.monitor import RATE_PERIOD

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_STEP = 60.0


class Rates(msgspec.Struct, frozen=True):
    """What clients have counted in the last `period` seconds; they report every few minutes."""

    period: float
    counts: list[RecentCount]


class Line(msgspec.Struct, frozen=True):
    """Something per second, by time in seconds since 1970; `before` is the same a day earlier, None where unknown."""

    times: list[int]
    values: list[float | None]
    before: list[float | None]


class Totals(msgspec.Struct, frozen=True):
    """What happened in all queues together within the last hour, per second."""

    pushed: Line
    delivered: Line
    failed: Line


async def rates(call: Call) -> Rates:
    """List what clients have counted lately, by queue and group."""
    return Rates(RATE_PERIOD, list((await call.sight()).rates(await call.gateway.monitor.rates())))


async def totals(call: Call) -> Totals:
    """Give the last hour of all queues together, and the same hour yesterday."""
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    client = call.gateway.client
    sight = await call.sight()
    some = None
    if not sight.whole:
        some = [each.name for each in await client.run(GetOutline()) if sight.sees(each.name)]
    now = await client.run(ListTotals(end - _HOUR, end, _STEP, some))
    before = await client.run(ListTotals(end - _HOUR - _DAY, end - _DAY, _STEP, some))
    times = [round((end - _HOUR).timestamp()) + round(_STEP) * n for n in range(round(_HOUR.total_seconds() / _STEP))]
    return Totals(*(_line(times, metric, now, before) for metric in ("pushed", "delivered", "failed")))


def _line(times: list[int], metric: str, now: list[TotalPoint], before: list[TotalPoint]) -> Line:
    return Line(times, _rates(times, metric, now, 0), _rates(times, metric, before, round(_DAY.total_seconds())))


def _rates(times: list[int], metric: str, points: list[TotalPoint], ago: int) -> list[float | None]:
    """Return rates at each time: unknown before the first and after the last count of anybody, who report late."""
    known = {round(point.bucket.timestamp()) for point in points}
    found = {round(point.bucket.timestamp()): point.total / _STEP for point in points if point.metric == metric}
    first, last = min(known, default=0), max(known, default=-1)
    return [found.get(time - ago, 0.0) if first <= time - ago <= last else None for time in times]
