"""What monitoring asks of a broker: series for charts, recent counts, the server, and differences of state and log."""

from datetime import datetime

from penstock.broker.arguments import Seconds, delay_time
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.metrics import Point, RecentCount
from penstock.broker.operations.metrics import GetDifferences, GetServer, ListRates, ListSeries
from penstock.broker.server import Difference, ServerInfo


class AsyncMonitoring:
    """The part of a client that monitoring uses."""

    _transport: AsyncTransport

    async def series(
        self,
        queue: str,
        metric: str,
        *,
        group: str | None = None,
        begin: datetime,
        end: datetime,
        max_points: int = 120,
    ) -> list[Point]:
        """Return a series for a chart: the values of each step of time together, in at most `max_points` steps.

        Without a group it is that of the queue, or of all its groups together. What is older than the values that are
        kept comes from rollups.
        """
        return await self._transport.run(ListSeries(queue, metric, group, begin, end, max_points))

    async def rates(self, *, period: Seconds = 300.0) -> list[RecentCount]:
        """Return what clients have counted in the last seconds, by queue and group; they report every few minutes."""
        return await self._transport.run(ListRates(delay_time(period) or 0.0))

    async def server(self) -> ServerInfo:
        """Describe the server: sizes, dead tuples, connections, open transactions, locks that are waited for."""
        return await self._transport.run(GetServer())

    async def differences(self, *, max_age: Seconds | None = None) -> list[Difference]:
        """Return what `verify` found last; with `max_age` run it again if that is so many seconds old."""
        return await self._transport.run(GetDifferences(delay_time(max_age)))
