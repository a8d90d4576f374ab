"""Queue metrics by action, live figures, history, the server, and metrics for Prometheus."""

import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response, StreamingResponse

from penstock import __version__
from penstock.errors import PenstockError, SetupError
from penstock.gateway.call import Call, Reply
from penstock.gateway.monitoring import history, queues
from penstock.gateway.monitoring.exposition import Known, expose
from penstock.gateway.monitoring.monitor import Monitor
from penstock.gateway.monitoring.queues import DetailedQueues, RunningTasks
from penstock.gateway.monitoring.server import ServerPanel
from penstock.gateway.scopes import Scope
from penstock.gateway.sight import Sight

log = logging.getLogger("penstock.gateway")

T = TypeVar("T")
EVENTS = "text/event-stream"


async def detailed(call: Call) -> DetailedQueues:
    """List what waits for each action, warm and cold, with the oldest.

    Warm is in Valkey or handed out to workers; cold is in PostgreSQL alone. A group that is not that of an action has
    its queue as flow and action class, its name as action, and the flow type UNKNOWN. It is a sample of at most a few
    seconds' age, and costs the same however much waits.
    """
    monitor, sight = call.gateway.monitor, await call.sight()
    facts = sight.facts(await monitor.facts())
    flows, actions = sight.flows(await monitor.flows()), sight.actions(await monitor.actions())
    return queues.detailed(facts.work, flows, actions, datetime.now(UTC))


async def action_plugins(call: Call) -> dict[str, str]:
    """Name the plugin that brings each action class: distribution and version, or 'unknown'."""
    monitor, sight = call.gateway.monitor, await call.sight()
    actions = await monitor.actions()
    facts, tasks = sight.facts(await monitor.facts(30.0)), sight.tasks(await monitor.tasks(30.0), actions)
    seen = {queues.labels(work)[2] for work in facts.work} | {task.action_class for task in tasks}
    return dict(queues.plugins(sight.actions(actions), seen))


async def running(call: Call) -> RunningTasks:
    """List the items whose handlers run, the longest first, as workers have reported within 30 seconds."""
    monitor, sight = call.gateway.monitor, await call.sight()
    return queues.running(sight.tasks(await monitor.tasks(), await monitor.actions()))


async def events(call: Call) -> Response:
    """Stream live figures as server-sent events: a whole snapshot whenever something has changed, every 2 s at most.

    Rates are those of the last five minutes, as clients reported them. An event whose `reachable` is false says that
    the database does not answer: then nothing is known, which is not 0.
    """
    feed = call.gateway.feed
    feed.slots.check(call.caller)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if call.request.method == "HEAD":
        return Response(headers=headers, media_type=EVENTS)
    stream = feed.listen(call.request.headers.get("last-event-id"), call.caller, await call.sight())
    return StreamingResponse(stream, media_type=EVENTS, headers=headers)


async def series(call: Call) -> history.Series:
    """Return a series of a queue or group for a chart, and with `compare` that of an earlier time.

    The server adds up what lies within a step. What is older than the queue keeps its values comes from rollups.
    """
    return await history.series(call.gateway.client, call.path["queue"], call.path["metric"], call.query)


async def server(call: Call) -> ServerPanel:
    """Describe the server: sizes, dead tuples, connections, open transactions, locks, maintenance, versions.

    The checks of `penstock doctor` are for administrators.
    """
    monitor = call.gateway.monitor
    found = None
    if call.query.checks:
        await call.authorize(Scope.ADMIN, None)
        found = await monitor.checks()
    return ServerPanel(__version__, await monitor.server(), found)


async def metrics(call: Call) -> Reply:
    """Return metrics of the gateway and of what it knows of the database, as Prometheus reads them.

    A caller for some queues gets those of its queues, and none of the gateway and the server.
    """
    gateway, sight = call.gateway, await call.sight()
    gateway.background.note()
    gateway.instruments.listeners.set(gateway.feed.listeners)
    try:
        known = await _known(gateway.monitor, sight)
    except PenstockError as error:
        log.warning("metrics without those of the database: %s", error)
        known = None
    own = [gateway.instruments.registry()] if sight.whole else []
    return Reply(expose(own, known), media=CONTENT_TYPE_LATEST)


async def _known(monitor: Monitor, sight: Sight) -> Known:
    if not sight.whole:
        tasks = sight.tasks(await monitor.tasks(), await monitor.actions())
        return Known(sight.facts(await monitor.facts()), tasks, sight.rates(await monitor.rates()), None, [])
    return Known(
        await monitor.facts(),
        await monitor.tasks(),
        await monitor.rates(),
        await _if_allowed(monitor.server()),
        await _if_allowed(monitor.differences()) or [],
    )


async def _if_allowed(asked: Awaitable[T]) -> T | None:
    """Return what only an administrator of the database may ask, or nothing."""
    try:
        return await asked
    except SetupError:
        return None
