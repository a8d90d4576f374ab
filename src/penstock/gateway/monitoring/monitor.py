"""What a gateway knows of the broker, each thing asked at most every few seconds whoever wants it."""

import contextlib
from collections.abc import Sequence
from functools import partial

from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.metrics import Facts, RecentCount
from penstock.broker.server import Difference, ServerInfo
from penstock.broker.tasks import TaskInfo
from penstock.client.async_client import AsyncClient
from penstock.errors import ReadOnlyServer
from penstock.gateway.monitoring.cached import Cached
from penstock.gateway.monitoring.server import ServerCheck, run_checks

# Rates are what clients have counted in so many seconds: they report every five minutes at least.
RATE_PERIOD = 300.0
# Some of the checks look twice, with a pause in between.
_CHECKS_PATIENCE = 30.0


class Monitor:
    """The facts behind all that a gateway tells, one of it per process."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._ready = Cached(client.configure_database)
        self._facts = Cached(self._ask_facts)
        self._tasks = Cached(client.tasks)
        self._actions = Cached(client.actions)
        self._flows = Cached(client.flows)
        self._rates = Cached(self._ask_rates)
        self._server = Cached(client.server)
        self._differences = Cached(client.differences)
        self._checks = Cached(partial(run_checks, client.settings), _CHECKS_PATIENCE)

    async def ready(self) -> None:
        """Return if the database answers and has the schema that this gateway needs; raises what is wrong."""
        await self._ready.get(1.0)

    async def facts(self, max_age: float = 5.0) -> Facts:
        """Return what waits, breakers, consumers, flows and the settings of checks."""
        return await self._facts.get(max_age)

    async def tasks(self, max_age: float = 2.0) -> list[TaskInfo]:
        """Return what runs in workers."""
        return await self._tasks.get(max_age)

    async def actions(self, max_age: float = 30.0) -> list[ActionInfo]:
        """Return the registry of actions."""
        return await self._actions.get(max_age)

    async def flows(self, max_age: float = 5.0) -> list[FlowInfo]:
        """Return the flows and their status."""
        return await self._flows.get(max_age)

    async def rates(self, max_age: float = 10.0) -> Sequence[RecentCount]:
        """Return what clients have counted lately."""
        return await self._rates.get(max_age)

    async def server(self, max_age: float = 10.0) -> ServerInfo:
        """Return what the owner of a database asks of its server."""
        return await self._server.get(max_age)

    async def checks(self, max_age: float = 30.0) -> list[ServerCheck]:
        """Return what the checks of `penstock doctor` find."""
        return await self._checks.get(max_age)

    async def differences(self, max_age: float = 10.0) -> list[Difference]:
        """Return what the last scheduled check of state against log found."""
        return await self._differences.get(max_age)

    async def _ask_facts(self) -> Facts:
        # A sample that is a few seconds old will do; maintenance and consumers take one every 15 seconds.
        with contextlib.suppress(ReadOnlyServer):
            # A standby shows what the primary has sampled.
            await self._client.sample(min_age=2.0)
        return await self._client.facts()

    async def _ask_rates(self) -> Sequence[RecentCount]:
        return await self._client.rates(period=RATE_PERIOD)
