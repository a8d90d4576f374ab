"""Server-sent events: one poller for all who listen, and none while nobody does.

Every event is a whole snapshot, so who is slow or was away misses nothing that still counts: it gets the newest one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from datetime import UTC, datetime
from secrets import token_hex
from typing import NamedTuple

import msgspec

from penstock.broker.flows import ActionInfo
from penstock.broker.metrics import Facts, RecentCount
from penstock.broker.tasks import TaskInfo
from penstock.errors import PenstockError
from penstock.gateway.monitoring.figures import Figures, figures
from penstock.gateway.monitoring.monitor import Monitor
from penstock.gateway.sight import EVERYTHING, Sight
from penstock.gateway.slots import Slots

log = logging.getLogger("penstock.gateway")

EVERY = 2.0
MOST_LISTENERS = 500
MOST_OF_ONE_KEY = 100
# Proxies end connections on which nothing comes for a minute.
HEARTBEAT = 15.0
# Then the caller connects again, and is asked again who it is.
LONGEST = 3600.0
_RETRY_MS = 2000
_PAUSE_FACTOR = 200
_LONGEST_PAUSE = 10.0


class Look(NamedTuple):
    """What was seen at one moment."""

    facts: Facts
    tasks: list[TaskInfo]
    rates: Sequence[RecentCount]
    actions: list[ActionInfo]

    def shown(self, sight: Sight) -> Figures:
        """Return the figures of what somebody may see."""
        return figures(sight.facts(self.facts), sight.tasks(self.tasks, self.actions), sight.rates(self.rates))


class Snapshot:
    """The figures of one moment, as an event for each kind of listener."""

    def __init__(self, event_id: str, whole: Figures, look: Look | None) -> None:
        self.id = event_id
        self.whole = whole
        self._look = look
        self._time = datetime.now(UTC)
        self._events: dict[Hashable, bytes] = {}

    def event(self, sight: Sight) -> bytes:
        """Return the event for somebody; those who may see the same share it."""
        known = self._events.get(sight.key)
        if known is None:
            shown = self.whole if sight.whole or self._look is None else self._look.shown(sight)
            content = {"time": self._time, **msgspec.structs.asdict(shown)}
            known = b"id: %s\nevent: figures\ndata: %s\n\n" % (self.id.encode(), msgspec.json.encode(content))
            self._events[sight.key] = known
        return known


class Feed:
    """The newest snapshot, and those who wait for the next."""

    def __init__(self, monitor: Monitor, stopping: asyncio.Event) -> None:
        self._monitor = monitor
        self._stopping = stopping
        self.slots = Slots(MOST_LISTENERS, MOST_OF_ONE_KEY)
        self._poller: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        # Ids of another process, or of this one before it was restarted, are not mistaken for these.
        self._process = token_hex(4)
        self._number = 0
        self._newest: Snapshot | None = None

    @property
    def listeners(self) -> int:
        """How many listen."""
        return self.slots.taken

    async def listen(self, last_id: str | None, caller: str | None, sight: Sight) -> AsyncIterator[bytes]:
        """Yield events: the newest snapshot, unless the listener has it, and then each that is different."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LONGEST
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            with self.slots.held(caller):
                self._begin()
                yield b"retry: %d\n\n" % _RETRY_MS
                seen = last_id
                while not stopping.done() and loop.time() < ends_at:
                    if self._newest is not None and seen != self._newest.id:
                        seen = self._newest.id
                        yield self._newest.event(sight)
                        continue
                    waiting = asyncio.ensure_future(self._changed.wait())
                    try:
                        done, _ = await asyncio.wait(
                            [waiting, stopping], timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
                        )
                    finally:
                        waiting.cancel()
                    if not done:
                        yield b": still here\n\n"
        finally:
            stopping.cancel()
            if self.listeners == 0:
                self._end()

    def _begin(self) -> None:
        if self._poller is None or self._poller.done():
            # What was true when the last one left may not be so any more.
            self._newest = None
            self._poller = asyncio.create_task(self._poll())

    def _end(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                look = await self._look()
                self._publish(look.shown(EVERYTHING), look)
            except PenstockError as error:
                self._publish(Figures(False, str(error)), None)
            except Exception:
                log.exception("the figures for events could not be computed")
                self._publish(Figures(False, "the gateway failed; see its log"), None)
            # Where a look takes long it is taken less often: whoever watches must not load what is watched.
            await asyncio.sleep(max(EVERY, min(_LONGEST_PAUSE, _PAUSE_FACTOR * (clock() - began))))

    async def _look(self) -> Look:
        monitor = self._monitor
        facts = await monitor.facts(EVERY / 2)
        tasks = await monitor.tasks(EVERY / 2)
        return Look(facts, tasks, await monitor.rates(), await monitor.actions())

    def _publish(self, found: Figures, look: Look | None) -> None:
        if self._newest is not None and self._newest.whole == found:
            return
        self._number += 1
        self._newest = Snapshot(f"{self._process}-{self._number}", found, look)
        # Whoever waits for this event wakes; who comes later waits for the next one.
        self._changed.set()
        self._changed = asyncio.Event()
