"""A worker: one process that runs the actions of an app, each in a lane of its own."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.broker.infos import GroupInfo
from penstock.broker.items import ItemOutcome
from penstock.broker.names import checked_settings
from penstock.broker.operations.groups import CreateGroup, GetLag
from penstock.broker.operations.workers import RegisterActions, RegisteredAction
from penstock.client.async_client import AsyncClient
from penstock.errors import AlreadyExists, InvalidInput, NotFound, PenstockError
from penstock.plugins import plugin_of
from penstock.scheduling.async_scheduler import LONGEST_WAIT
from penstock.scheduling.declaring import declared_schedules
from penstock.workers.actions import Action
from penstock.workers.backoff import Backoff
from penstock.workers.cancelling import Cancelling
from penstock.workers.health import ActionHealth
from penstock.workers.items import Place
from penstock.workers.lane import Lane
from penstock.workers.loading import App, make_app
from penstock.workers.memory import AsyncMemory, ThreadMemory
from penstock.workers.middleware import around, around_async, with_tracing
from penstock.workers.pools import Pool
from penstock.workers.process_pool import ProcessPool
from penstock.workers.resources import AsyncResources
from penstock.workers.source import Source
from penstock.workers.task_pool import TaskPool
from penstock.workers.tasks import Reporter
from penstock.workers.thread_pool import ThreadPool

log = logging.getLogger("penstock.worker")

CONCURRENCY = 10
PROCESSES = 2
GRACE = 30.0
# How long it may take, once the time for handlers is over, to give back what is in hand.
_LAST_MOMENT = 5.0
_DRAINED_EVERY = 0.1
_AGAIN = 5.0


class Worker:
    """Runs the actions of an app until it is stopped. `penstock worker` is its command."""

    def __init__(
        self,
        app: App | Iterable[Action],
        client: AsyncClient,
        *,
        concurrency: int = CONCURRENCY,
        processes: int = PROCESSES,
        grace: float = GRACE,
        drain: bool = False,
        echo: Callable[[str], object] = log.info,
    ) -> None:
        self._app = app if isinstance(app, App) else make_app("app", app)
        # Without an app that was loaded, child processes load the module of their action.
        self._home = self._app.home
        if not self._app.actions:
            raise InvalidInput("a worker needs at least one action")
        self._client = client
        self._concurrency = concurrency
        self._processes = processes
        self._grace = grace
        self._drain = drain
        self._echo = echo
        self._lanes: list[Lane] = []
        self._resources = AsyncResources()
        self._signals = 0
        self._failure: BaseException | None = None
        # Nothing new is taken; handlers have so long to finish; no handler is waited for.
        self._ending: asyncio.Event
        self._stopped: asyncio.Event
        self._ended_at_once: asyncio.Event

    @property
    def handled(self) -> int:
        """How many items it has handled."""
        return sum(lane.handled for lane in self._lanes)

    def finish(self) -> None:
        """Take nothing new, and end when the handlers that run have ended, however long they take."""
        self._ending.set()

    def stop(self) -> None:
        """End: the first time, when the handlers that run have ended or their time is up; the second time, at once."""
        self._signals += 1
        if self._signals == 1:
            self._echo(f"stopping: handlers have {self._grace:g} s to finish; a second signal gives their items back")
            self._ending.set()
            self._stopped.set()
        else:
            self._ended_at_once.set()

    async def run(self, *, handle_signals: bool = True) -> int:
        """Work until it is stopped; returns how many items were handled. Raises what makes going on impossible."""
        self._ending, self._stopped, self._ended_at_once = (asyncio.Event() for _ in range(3))
        # Handlers in threads must not keep the event loop from its turn for as long as Python's default.
        sys.setswitchinterval(min(sys.getswitchinterval(), 0.001))
        with _Signals(self.stop, wanted=handle_signals):
            try:
                await self._begin()
                await self._work()
            finally:
                await self._resources.close()
        if self._failure is not None:
            raise self._failure
        return self.handled

    async def _begin(self) -> None:
        """Register the actions, create their groups, open their resources."""
        source = Source(self._client)
        # All before the first item is taken: what is wrong with one action is said before others have done anything.
        handlers = {action: await self._handler(action) for action in self._app.actions}
        await source.run(
            RegisterActions(
                [
                    RegisteredAction(
                        *(action.flow, action.name, action.flow_type, action.action_class),
                        plugin=plugin_of(action.function.__module__),
                        queue=action.queue,
                        to=action.to,
                    )
                    for action in self._app.actions
                ]
            )
        )
        for action in self._app.actions:
            settings = await self._group(action)
            health = ActionHealth(self._client, action.queue, action.group, settings)
            own = Source(self._client)
            lane = Lane(action, own, Backoff(settings), health, self._client.consumer_id, self._settled)
            lane.pool = self._pool(action, handlers[action], lane)
            self._lanes.append(lane)
            self._echo(_start_line(action, lane.pool))
        for schedule in await self._client.declare_schedules(declared_schedules(), origin=self._app.name):
            self._echo(f"schedule {schedule.name}: {schedule.words} → {schedule.schedule.queue}")
        self._echo(f"working as {self._client.consumer_id}; Ctrl-C or SIGTERM stops it")

    async def _handler(self, action: Action) -> Any:
        if action.run_in == "process":
            if self._home is None and action.function.__module__ == "__main__":
                raise InvalidInput(
                    f"action {action.name} runs in child processes, which cannot import your program; put it in a "
                    "module, or run it with `penstock worker`"
                )
            return None
        needed = await self._resources.get(action.needs, self._app.resources, f"action {action.name}")
        function = partial(action.function, **needed) if needed else action.function
        wrap: Callable[..., Any] = around_async if action.is_async else around
        return wrap(function, with_tracing(self._app.middleware))

    async def _group(self, action: Action) -> dict[str, Any]:
        """Create the group of an action, or change its settings to those of the code; return what holds."""
        group = await self._find_group(action)
        if group is None:
            with suppress(AlreadyExists):
                await self._client.create_group(action.queue, action.group, mode=action.mode, **action.settings)
            group = await self._find_group(action)
        if group is None or group.mode != action.mode:
            raise InvalidInput(
                f"action {action.group} is {action.mode} and its group on {action.queue} is not; give the action "
                "another name or its mode, or delete the group"
            )
        wanted = checked_settings(action.settings)
        Source(self._client).remember(CreateGroup(action.queue, action.group, action.mode, config=wanted))
        if all(group.config.get(name) == value for name, value in wanted.items()):
            # Nothing to change, so this needs no right to change groups.
            return group.settings
        return await self._client.configure_group(action.queue, action.group, **action.settings)

    async def _find_group(self, action: Action) -> GroupInfo | None:
        try:
            groups = await self._client.groups(action.queue)
        except NotFound:
            return None
        return next((group for group in groups if group.name == action.group), None)

    def _pool(self, action: Action, handler: Any, lane: Lane) -> Pool:
        memory = AsyncMemory(Source(self._client))
        pushes = action.to is not None
        if action.run_in == "process":
            size = action.concurrency or self._processes
            place = Place(action.flow, action.name, memory)
            home = self._home or action.function.__module__
            return ProcessPool(home, action.group, size, action.timeout, pushes, place, lane.report, self._fail)
        size = action.concurrency or self._concurrency
        if action.is_async:
            place = Place(action.flow, action.name, memory)
            return TaskPool(handler, size, action.timeout, pushes, place, lane.report)
        place = Place(action.flow, action.name, ThreadMemory(memory))
        return ThreadPool(handler, size, action.timeout, pushes, place, lane.report)

    async def _work(self) -> None:
        reporter = Reporter(Source(self._client), self._client.consumer_id, self._lanes)
        lanes = {asyncio.create_task(self._run_lane(lane)): lane for lane in self._lanes}
        cancelling = Cancelling(Source(self._client), self._lanes)
        work = (reporter.run, cancelling.run, self._fire_schedules, self._watch_drained)
        beside = [asyncio.create_task(_kept_up(each)) for each in work]
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({ending})
            for lane in self._lanes:
                lane.stop()
            await self._wait_for(set(lanes))
        finally:
            for task in (*beside, ending, *lanes):
                task.cancel()
            await asyncio.gather(*beside, *lanes, return_exceptions=True)
            await asyncio.gather(*(lane.pool.join() for lane in self._lanes))
            await reporter.close()

    async def _wait_for(self, lanes: "set[asyncio.Task[None]]") -> None:
        """Wait until all lanes have ended; when time is up, interrupt what runs and give it back."""
        stopped = asyncio.create_task(self._stopped.wait())
        at_once = asyncio.create_task(self._ended_at_once.wait())
        waited = asyncio.create_task(_all_done(lanes))
        try:
            await asyncio.wait({stopped, waited}, return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait({at_once, waited}, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
            if waited in done:
                return
            for lane in self._lanes:
                lane.stop_now()
            done, _ = await asyncio.wait({waited}, timeout=_LAST_MOMENT)
            if not done:
                for lane in self._lanes:
                    await lane.release_held()
        except PenstockError as error:
            log.warning("items could not be given back, and come again when their leases end: %s", error)
        finally:
            stopped.cancel()
            at_once.cancel()
            waited.cancel()

    async def _run_lane(self, lane: Lane) -> None:
        try:
            await lane.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            # Nobody settles what it holds: others get it now, and not when the leases end.
            lane.stop_now()
            with suppress(PenstockError):
                await lane.release_held()

    def _fail(self, error: BaseException) -> None:
        """Take note of an error that makes going on impossible, and end."""
        if self._failure is None:
            self._failure = error
            self._ending.set()
            self._stopped.set()

    async def _fire_schedules(self) -> None:
        """Push what schedules have due: one process is enough, and any number does no harm."""
        while True:
            try:
                wait = (await self._client.fire_schedules()).next_in
            except PenstockError as error:
                log.warning("schedules could not be fired, and are tried again: %s", error)
                wait = LONGEST_WAIT
            await asyncio.sleep(wait)

    async def _watch_drained(self) -> None:
        """End when nothing is left to do, where that is wanted."""
        while self._drain:
            await asyncio.sleep(_DRAINED_EVERY)
            if all(lane.idle for lane in self._lanes):
                try:
                    left = [
                        await self._client._transport.run(GetLag(lane.action.queue, lane.action.group))
                        for lane in self._lanes
                    ]
                except PenstockError:
                    continue
                if not any(left) and all(lane.idle for lane in self._lanes):
                    self._ending.set()
                    return

    def _settled(self, action: Action, outcomes: Sequence[ItemOutcome], answers: Sequence[str | None]) -> None:
        """Say what became of items that failed."""
        for outcome, then in zip(outcomes, answers, strict=False):
            if outcome.outcome in ("failed", "dead"):
                what = "it is a dead letter now" if then == "dead letter" else "it will be retried"
                log.warning("offset %d of %s failed: %s; %s", outcome.offset, action.group, outcome.error, what)


async def _kept_up(work: Callable[[], Awaitable[None]]) -> None:
    """Do what is done beside the lanes; a defect in it is said, and does not end it."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("something beside the handlers failed; it goes on in %g s", _AGAIN)
            await asyncio.sleep(_AGAIN)


async def _all_done(tasks: "set[asyncio.Task[None]]") -> None:
    await asyncio.wait(tasks)


def _start_line(action: Action, pool: Pool) -> str:
    kind = {TaskPool: "tasks", ThreadPool: "threads", ProcessPool: "processes"}[type(pool)]
    to = f" → {action.to}" if action.to else ""
    return f"action {action.group}: {action.queue}{to} ({action.mode}, {pool.size} {kind})"


class _Signals:
    """SIGINT and SIGTERM stop a worker, while its block lasts."""

    def __init__(self, stop: Callable[[], None], *, wanted: bool) -> None:
        self._stop = stop
        self._wanted = wanted

    def __enter__(self) -> None:
        if self._wanted:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)

    def __exit__(self, *error: object) -> None:
        if self._wanted:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
