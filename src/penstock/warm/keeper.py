"""Keeps the window of one group in Valkey: takes it over, lets takes go on, renews its claims, and gives it back.

What it loads it has claimed in PostgreSQL like any consumer, ahead of the workers. A claim that is in Valkey is
renewed; one that is not is given back. `loading` fills the window and `reporting` tells PostgreSQL what was done, each
in a task of its own beside the heart that beats here.
"""

import asyncio
import logging
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from uuid import UUID, uuid4

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import Lease
from penstock.broker.operations.claiming import HasPending, Renew
from penstock.broker.operations.warm import ListWarmClaims
from penstock.broker.warm import WarmGroup, WarmHold
from penstock.errors import PenstockError, ValkeyUnavailable
from penstock.warm.flushing import MOST_RANGES
from penstock.warm.kept import HOLDER, SPARE, KeptWindow, LostWindow, Terms
from penstock.warm.keys import wake_channel
from penstock.warm.links import STALE, AsyncLink, Refused
from penstock.warm.loading import Loader
from penstock.warm.reporting import Reporter

log = logging.getLogger("penstock.warm")

_RENEW_EVERY = 20.0
# Without events it looks for work so often.
_LOOK_EVERY = 5.0
# How often it looks, while it leaves, whether workers are done.
_LEAVE_LOOK = 0.1


class Keeper:
    """The dispatcher of one group."""

    def __init__(
        self, transport: AsyncTransport, link: AsyncLink, database: str, group: WarmGroup, name: str, terms: Terms
    ) -> None:
        self._window = KeptWindow(transport, link, database, group, name, terms)
        self._channel = wake_channel(database)
        self._loader = Loader(self._window)
        # Claims that were lost with the window: given back when no worker can have something of them any more, which is
        # so when PostgreSQL has heard nothing of them for so many seconds.
        self._lost: set[tuple[int, UUID]] = set()
        self._quiet_for = 0.0
        self._lost_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> str:
        """The state of the window."""
        return self._window.state

    def __str__(self) -> str:
        return str(self._window)

    def wake(self) -> None:
        """Look for work now."""
        self._window.look.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the window until told to stop, or it is lost, or something is in the way."""
        window = self._window
        hold = await window.hold_lease()
        if hold is None or hold.epoch is None or hold.obstacle is not None:
            if hold is not None and hold.epoch is not None:
                await window.give_lease_back()
            return
        reporter = Reporter(window, stop)
        try:
            await self._attach(hold, reporter)
            self._tasks = [asyncio.create_task(self._loader.run()), asyncio.create_task(reporter.run())]
            for task in self._tasks:
                task.add_done_callback(lambda _: window.event.set())
            window.look.set()
            await self._keep(stop, reporter)
        except LostWindow as lost:
            log.warning("%s: %s", self, lost)
            if window.hold is None:
                await self._discard()
        except (Refused, ValkeyUnavailable) as error:
            await self._lose(error, stop)
        except PenstockError as error:
            log.warning("%s stops, and another dispatcher takes over: %s", self, error)
        finally:
            await self._end_tasks()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _attach(self, hold: WarmHold, reporter: Reporter) -> None:
        window = self._window
        self._quiet_for = self._lost_for(hold)
        kept, loads, claims, window.halts, waits = await window.call(
            "attach",
            window.epoch,
            uuid4().hex,
            hold.mode,
            hold.capacity,
            hold.most_bytes,
            self._channel,
            window.group.queue,
            round(self._quiet_for * 1000),
        )
        self._loader.begin(loads, claims)
        self._lost = set(await self._orphans(reporter))
        if not self._lost or (kept and not waits):
            self._quiet_for = 0.0
        await window.call("lose", window.epoch, round(self._quiet_for * 1000))
        if self._quiet_for:
            await self._extend(list(self._lost), self._quiet_for + SPARE)
        self._lost_at = time.monotonic() + self._quiet_for
        log.info("%s: attached with epoch %d, %s", self, window.epoch, "kept as it was" if kept else "empty")
        # What it knew of halts is from after PostgreSQL was asked, so that is asked again.
        await window.beat()
        await window.publish()
        if kept:
            await self._renew(reporter)
        await self._give_lost_back()

    async def _keep(self, stop: asyncio.Event, reporter: Reporter) -> None:
        window = self._window
        beat_at = look_at = time.monotonic()
        renew_at = beat_at + _RENEW_EVERY
        waiter = asyncio.create_task(stop.wait())
        waiter.add_done_callback(lambda _: window.event.set())
        try:
            while True:
                window.event.clear()
                for task in self._tasks:
                    if task.done():
                        task.result()
                now = time.monotonic()
                if window.due is not None and now >= window.due:
                    await reporter.expire()
                if stop.is_set() or reporter.halted or now >= beat_at:
                    reporter.halted = False
                    await window.beat()
                    beat_at = now + window.terms.beat_every
                    if stop.is_set() or window.settings.obstacle is not None:
                        await self._leave(reporter)
                        return
                    # Again and again: somebody may have deleted what lets clients find it.
                    await window.publish()
                    await self._give_lost_back()
                    pending = HasPending(window.group.queue, window.group.name)
                    if now >= look_at or (not window.look.is_set() and await window.transport.run(pending)):
                        window.look.set()
                        look_at = now + _LOOK_EVERY
                if reporter.refused or now >= renew_at:
                    reporter.refused = False
                    await self._renew(reporter)
                    renew_at = now + _RENEW_EVERY
                until = min([beat_at, renew_at, *([] if window.due is None else [window.due])])
                with suppress(TimeoutError):
                    await asyncio.wait_for(window.event.wait(), max(0.0, until - time.monotonic()))
        finally:
            waiter.cancel()

    # The end of a window ----------------------------------------------------------------------------------------

    async def _leave(self, reporter: Reporter) -> None:
        """Give the window back: what nobody has at once, the rest when workers are done with it."""
        window = self._window
        window.change("leaving")
        log.info("%s is given back: %s", self, window.settings.obstacle or "the dispatcher stops")
        await window.call("halt")
        deadline = time.monotonic() + window.terms.leave_within
        while True:
            # Not in the middle of a load.
            async with window.claiming:
                await window.call("withdraw", "", 1)
            await reporter.expire()
            await reporter.flush()
            late = time.monotonic() >= deadline
            if late:
                await self._shorten()
            window.items = window.size = 0
            # Not if something was acknowledged since the flush.
            if await window.call("detach", window.epoch, int(late)):
                break
            await window.hold_lease()
            window.event.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(window.event.wait(), 0.0 if late else _LEAVE_LOOK)
        await window.unpublish()
        await window.give_lease_back()

    async def _shorten(self) -> None:
        """Let claims end with the leases of those who still have something of them; they settle it in PostgreSQL."""
        window = self._window
        leases = [
            Lease(window.group.group_id, partition_id, lease_id) for partition_id, lease_id in await window.claims()
        ]
        if leases:
            rest = max(window.settings.lease_time, window.longest)
            await window.transport.run(Renew(leases, rest, durable=False))
            log.info("%s: workers still have something of %d claims, which end by themselves", self, len(leases))

    async def _lose(self, error: PenstockError, stop: asyncio.Event) -> None:
        """Take note that Valkey cannot be used: PostgreSQL serves alone, and who attaches again finds what was lost."""
        window = self._window
        await self._end_tasks()
        window.change("away")
        if isinstance(error, Refused) and error.code == STALE:
            log.warning("%s: another dispatcher has taken over (%s)", self, error)
            return
        with suppress(PenstockError):
            hold = await window.hold_lease()
            if hold is None:
                log.info("%s ends: the group was deleted", self)
                return
            log.warning("%s is lost, and PostgreSQL serves the group alone: %s", self, error)
            await window.give_lease_back()
            if hold.epoch is not None:
                await self._release_while_away(stop)

    async def _release_while_away(self, stop: asyncio.Event) -> None:
        """Give back what lay in the window when nothing is taken from it any more.

        In an ordered group also no worker may have something of it. Once Valkey answers, or another dispatcher has the
        group, this is up to whoever attaches the window: it may be as it was, with acknowledgements to be reported.
        """
        window = self._window
        wait = self._lost_for(window.settings)
        over = time.monotonic() + wait
        # Who stops has the moment that a shared group takes.
        while not (stop.is_set() and window.settings.mode == "ordered") and not await self._answers():
            if time.monotonic() >= over:
                hold = await window.hold_lease()
                if hold is None or hold.epoch is None:
                    return
                left = await self._give_quiet_back(None, wait)
                await window.give_lease_back()
                # A claim whose lease has ended waits for a sweep, which is not up to one who stops.
                if not left or stop.is_set():
                    return
            await asyncio.sleep(min(window.terms.beat_every, max(0.1, over - time.monotonic())))

    async def _answers(self) -> bool:
        """Return whether Valkey can be used."""
        link = self._window.link
        with suppress(PenstockError):
            return link.usable and bool(await link.run("PING"))
        return False

    async def _discard(self) -> None:
        """Remove the window of a group that is not there any more."""
        with suppress(PenstockError):
            await self._window.unpublish()
            await self._window.link.call("discard", self._window.keys)

    # Claims in PostgreSQL ---------------------------------------------------------------------------------------

    async def _renew(self, reporter: Reporter) -> None:
        """Renew the claims that are in Valkey, forget those that are lost, and give back those that are not there."""
        window = self._window
        async with window.claiming:
            here = await window.claims()
            numbers = [here[each] for each in await self._extend(list(here), window.claim_lease)]
            if numbers:
                log.info("%s: %d claims are lost, by a seek or because somebody took them", self, len(numbers))
                await window.call("forget", window.epoch, *numbers)
            await window.release([each for each in await self._orphans(reporter) if each not in self._lost])

    async def _extend(self, claims: Sequence[tuple[int, UUID]], seconds: float) -> list[tuple[int, UUID]]:
        """Renew claims in PostgreSQL, and return those that are lost there."""
        window = self._window
        gone = []
        for start in range(0, len(claims), MOST_RANGES):
            some = claims[start : start + MOST_RANGES]
            leases = [Lease(window.group.group_id, *each) for each in some]
            until = await window.transport.run(Renew(leases, seconds, durable=False))
            gone += [each for each, moment in zip(some, until, strict=True) if moment is None]
        return gone

    async def _orphans(self, reporter: Reporter) -> Sequence[tuple[int, UUID]]:
        """Return claims that are in no window."""
        window = self._window
        listing = ListWarmClaims(window.group.group_id, HOLDER)
        found = await window.transport.run(listing)
        here = await window.claims()
        missing = [each for each in found if each not in here]
        if not missing:
            return []
        # What was acknowledged meanwhile is not in Valkey any more, and PostgreSQL has to be told of that first.
        await reporter.flush()
        still = await window.transport.run(listing)
        return [each for each in missing if each in set(still)]

    async def _give_lost_back(self) -> None:
        if self._lost and time.monotonic() >= self._lost_at:
            self._lost &= await self._give_quiet_back(self._lost, self._quiet_for)

    def _lost_for(self, hold: WarmHold) -> float:
        """Return how many seconds claims of a window that is lost wait.

        Takes go on until the last grant ends. In an ordered group a worker may have something for as long as its lease.
        """
        grant = self._window.terms.grant
        return grant if hold.mode == "shared" else max(hold.lease_time, hold.longest_lease) + grant

    async def _give_quiet_back(self, wanted: Set[tuple[int, UUID]] | None, quiet_for: float) -> set[tuple[int, UUID]]:
        """Give back claims, all or those wanted, of which no worker has something; returns all that are left.

        Workers acknowledge and renew in PostgreSQL what they have of a window that is lost. It stays theirs until they
        do so no more.
        """
        window = self._window
        listing = ListWarmClaims(window.group.group_id, HOLDER, quiet_for)
        quiet = [each for each in await window.transport.run(listing) if wanted is None or each in wanted]
        await window.release(quiet)
        left = await window.transport.run(ListWarmClaims(window.group.group_id, HOLDER))
        return set(left)
