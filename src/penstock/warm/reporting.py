"""Tells PostgreSQL what the stream of a window says: what is done, whose leases ended, what to give back."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.operations.claiming import Ack
from penstock.broker.operations.warm import FailWarmClaims
from penstock.warm.flushing import MOST_RANGES, read
from penstock.warm.kept import KeptWindow, LostWindow

log = logging.getLogger("penstock.warm")

_READ_AT_ONCE = 1000
_MOST_EXPIRED = 100
# How long a read of the stream waits, in ms.
_BLOCK = 1000
# One commit tells much: seconds from one report to the next while there is always something to tell.
_PACE = 0.02


class Reporter:
    """Reports for one window, beside its loads and heartbeats."""

    def __init__(self, window: KeptWindow, stop: asyncio.Event) -> None:
        self._window = window
        self._stop = stop
        self._reporting = asyncio.Lock()
        # Whether PostgreSQL refused something that Valkey took for done: claims there may be lost.
        self.refused = False
        # Whether somebody asked for a heartbeat, because something about the group has changed.
        self.halted = False

    async def run(self) -> None:
        """Report whenever there is something to report."""
        while True:
            if not await self._read(1, _BLOCK):
                continue
            began = time.monotonic()
            await self.flush()
            self._window.event.set()
            await asyncio.sleep(began + _PACE - time.monotonic())

    async def flush(self) -> None:
        """Tell PostgreSQL what the stream says, and then forget it."""
        async with self._reporting:
            while entries := await self._read(_READ_AT_ONCE):
                await self._report(entries)
                if len(entries) < _READ_AT_ONCE:
                    break

    async def expire(self) -> None:
        """End leases of workers whose time is over."""
        window = self._window
        ended, due = await window.call("expire", window.epoch, _MOST_EXPIRED)
        window.note_due(0 if ended == _MOST_EXPIRED else due)

    async def _read(self, most: int, block: int = 0) -> list[Any]:
        link, stream = self._window.link, self._window.keys.done
        if block:
            found = await link.wait("XREAD", "COUNT", most, "BLOCK", block, "STREAMS", stream, "0")
        else:
            found = await link.run("XREAD", "COUNT", most, "STREAMS", stream, "0")
        if not found:
            return []
        streams = list(found.values()) if isinstance(found, dict) else [entries for _, entries in found]
        entries: list[Any] = streams[0]
        return entries

    async def _report(self, entries: list[Any]) -> None:
        """Tell PostgreSQL what entries say, and forget them."""
        window = self._window
        settings, group_id = window.settings, window.group.group_id
        reported = read(group_id, settings.mode == "shared", entries)
        for start in range(0, len(reported.done), MOST_RANGES):
            some = reported.done[start : start + MOST_RANGES]
            acked = await self._until_done(
                lambda some=some: window.transport.run(Ack(some, durable=False), retry=False)  # type: ignore[misc]
            )
            self.refused = self.refused or not all(acked)
        if reported.expired:
            answers = await self._until_done(
                lambda: window.transport.run(FailWarmClaims(group_id, reported.expired), retry=False)
            )
            log.info("%s: %d leases of workers ended", window, len(reported.expired))
            if settings.mode == "ordered":
                # What PostgreSQL knew already; the rest of the claim is in no window.
                reported.withdrawn += [
                    (part.partition_id, part.lease_id)
                    for part, answer in zip(reported.expired, answers, strict=True)
                    if answer is None
                ]
        if reported.withdrawn:
            await window.release(reported.withdrawn)
        if reported.halted:
            # Whoever halted takes waits until the entry is gone, and finds them granted again, or refused for good.
            await window.beat()
            self.halted = True
        await window.call("trim", window.epoch, reported.items, reported.next_id)
        # There is room, and partitions of an ordered group may have more.
        if settings.mode == "ordered" or window.state == "cold" or reported.expired or reported.withdrawn:
            window.look.set()

    async def _until_done(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Try again while PostgreSQL cannot be reached: nothing else can go on without it."""
        pause = 0.1
        stopped_at: float | None = None
        while True:
            try:
                return await attempt()
            except ConnectionError as error:
                log.debug("%s: PostgreSQL is tried again: %s", self._window, error)
                if self._stop.is_set():
                    stopped_at = stopped_at or time.monotonic()
                    if time.monotonic() > stopped_at + self._window.terms.leave_within:
                        raise LostWindow("the dispatcher stops, and PostgreSQL cannot be reached") from error
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
