"""Keeps the windows of all groups that want one, as far as no other dispatcher does: what `penstock dispatch` runs, and
workers and `penstock up` beside their own work.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from uuid import uuid4

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.hints import Hints
from penstock.broker.operations.claiming import Sweep
from penstock.broker.operations.metrics import Sample
from penstock.broker.operations.warm import GetDatabaseIdentity, ListWarmGroups
from penstock.broker.warm import WarmGroup
from penstock.consuming.polling import Sweeping
from penstock.errors import PenstockError
from penstock.warm.async_window import read_windows
from penstock.warm.keeper import Keeper
from penstock.warm.kept import Terms
from penstock.warm.keys import keys_of, window_field, windows_key
from penstock.warm.links import AsyncLink

log = logging.getLogger("penstock.warm")

_SWEEP_SOONEST, _SWEEP_LATEST = 0.05, 1.0
# How often to look for windows of groups that are not there any more.
_TIDY_EVERY = 30.0


class Dispatcher:
    """All windows that this process keeps."""

    def __init__(
        self,
        transport: AsyncTransport,
        link: AsyncLink,
        *,
        groups: Collection[tuple[str, str]] | None = None,
        terms: Terms | None = None,
    ) -> None:
        self._transport = transport
        self._link = link
        self._only = None if groups is None else set(groups)
        self._terms = terms or Terms()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._keepers: dict[int, Keeper] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._queues: dict[int, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._find = asyncio.Event()
        self._tidy_at = 0.0
        self._sample_at = time.monotonic() + self._terms.sample_every

    def heard(self, queues: Sequence[str]) -> None:
        """Look at the groups of queues that were pushed to; called from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake, frozenset(queues))

    def sent(self) -> None:
        """Take note that a hint was sent; nothing comes of it here."""

    def failed(self) -> None:
        """Go on by the clock: hints only shorten a wait."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep windows until told to stop, and then give them back."""
        self._loop = asyncio.get_running_loop()
        hints: Hints | None = None
        sweeper: asyncio.Task[None] | None = None
        database = ""
        waiter = asyncio.create_task(stop.wait())
        waiter.add_done_callback(lambda _: self._find.set())
        try:
            while not stop.is_set():
                self._find.clear()
                try:
                    if not database:
                        await self._transport.open()
                        database = await self._transport.run(GetDatabaseIdentity())
                    if hints is None and self._transport.can_listen:
                        hints = self._transport.listen(self)
                        hints.listen()
                    await self._begin_keepers(database, stop)
                    if sweeper is None:
                        sweeper = asyncio.create_task(self._sweep())
                except PenstockError as error:
                    log.debug("no look for groups with windows: %s", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._find.wait(), self._terms.find_every)
        finally:
            waiter.cancel()
            if hints is not None:
                hints.close()
            if sweeper is not None:
                sweeper.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._link.close()

    def states(self) -> dict[str, str]:
        """Return the states of the windows that are kept here, by queue and group."""
        return {str(keeper): keeper.state for keeper in self._keepers.values()}

    async def _begin_keepers(self, database: str, stop: asyncio.Event) -> None:
        for group_id, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[group_id], self._keepers[group_id]
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("a window failed, and is attached again", exc_info=error)
        if not self._link.usable:
            return
        listed = await self._transport.run(ListWarmGroups())
        if time.monotonic() >= self._tidy_at:
            await self._tidy(database)
            self._tidy_at = time.monotonic() + _TIDY_EVERY
        free = [group for group in listed if self._is_free(group)]
        if free:
            # Of a Valkey that does not answer nobody hears more than once, and nothing changes for the groups.
            await self._link.run("PING")
        for group in free:
            keeper = Keeper(self._transport, self._link, database, group, self.name, self._terms)
            self._keepers[group.group_id] = keeper
            self._queues[group.group_id] = group.queue
            self._tasks[group.group_id] = asyncio.create_task(keeper.run(stop))

    def _is_free(self, group: WarmGroup) -> bool:
        """Return whether a group wants a window that nobody keeps."""
        wanted = self._only is None or (group.queue, group.name) in self._only
        return wanted and group.group_id not in self._tasks and not group.live and group.obstacle is None

    async def _tidy(self, database: str) -> None:
        """Remove the windows of groups that are not there any more, or not warm, and that nobody keeps."""
        found = read_windows(await self._link.run("HGETALL", windows_key(database)))
        known = {group.group_id for group in await self._transport.run(ListWarmGroups())} if found else set()
        for window in found:
            if window.group_id not in known:
                field = window_field(window.queue, window.group)
                await self._link.call("unpublish", [windows_key(database)], field, window.group_id)
                await self._link.call("discard", keys_of(database, window.group_id))
                log.info("the window of group %r of queue %r is removed: it is gone", window.group, window.queue)

    def _wake(self, queues: frozenset[str]) -> None:
        for group_id, keeper in self._keepers.items():
            if self._queues[group_id] in queues:
                keeper.wake()

    async def _sample(self) -> None:
        """Take a step of a sample of what waits, now and then: there may be no consumer that does."""
        if time.monotonic() >= self._sample_at:
            step = await self._transport.run(Sample(min_age=self._terms.sample_every), retry=False)
            begun = step is not None and not step.complete
            self._sample_at = time.monotonic() + (0.0 if begun else self._terms.sample_every)

    async def _sweep(self) -> None:
        """Fire timers: what was put off becomes ready here sooner than a look would find it."""
        sweeping = Sweeping()
        while True:
            pause = _SWEEP_LATEST
            if self._keepers:
                try:
                    await self._sample()
                    swept = await self._transport.run(Sweep(sweeping.since(), durable=False), retry=False)
                    sweeping.did(swept)
                    if swept is not None:
                        if swept.woken + swept.enrolled:
                            pause = _SWEEP_SOONEST
                            for keeper in self._keepers.values():
                                keeper.wake()
                        elif swept.due_in is not None:
                            pause = min(max(swept.due_in, _SWEEP_SOONEST), _SWEEP_LATEST)
                except PenstockError as error:
                    log.debug("no sweep: %s", error)
            began = time.monotonic()
            await asyncio.sleep(max(0.0, began + pause - time.monotonic()))
