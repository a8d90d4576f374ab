"""Takes the items of one action, hands them to its pool, and settles what came of them.

One call of a lane settles all that was handled since the last one, pushes the outputs and claims what is next. So a
round trip, and a wait for the disk, serve many items. While the call is under way the pool works on what was claimed
before: a lane claims as much ahead as its pool handles in about half a second, and at least one item per slot.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.broker.claims import Claim
from penstock.broker.items import ItemOutcome
from penstock.broker.operations.claiming import Pop, ReleaseMany
from penstock.consuming.outages import Outage
from penstock.consuming.waiting import Key, Step, Waiter
from penstock.errors import PenstockError, QueuePaused
from penstock.workers.actions import Action
from penstock.workers.appetite import Appetite
from penstock.workers.backoff import Backoff
from penstock.workers.health import ActionHealth
from penstock.workers.held import HeldClaim
from penstock.workers.leases import Leases
from penstock.workers.pools import LOST, STOP, Job, Pool
from penstock.workers.settling import REFUSED_FOR_NOW, Settling
from penstock.workers.source import Source
from penstock.workers.verdicts import CANCELLED, DEAD, DONE, FAILED, GIVEN_BACK, Verdict

log = logging.getLogger("penstock.worker")

# Items of a claim that goes on are settled when the first of them has waited so long.
_RIPE = 0.02
_FOR_EVER = 3600.0
_LEASE = 60.0
# Outputs that their queue refuses for now are tried again so often.
_REFUSED = 0.2
_WELL = frozenset((DONE, CANCELLED))


class Lane:
    """All that one worker process does for one action."""

    def __init__(
        self,
        action: Action,
        source: Source,
        backoff: Backoff,
        health: ActionHealth,
        consumer_id: str,
        on_settled: Callable[[Action, Sequence[ItemOutcome], Sequence[str | None]], None],
    ) -> None:
        self.action = action
        self.held: dict[HeldClaim, None] = {}
        self.handled = 0
        self.pool: Pool
        self._source = source
        self._backoff = backoff
        self._health = health
        self._wanted = Pop(action.queue, action.group, consumer=consumer_id, durable=False, ahead=True)
        self._key = Key(action.queue, None, action.group)
        self._settling = Settling(source, action, on_settled, self._lose, self._interrupt)
        self._leases = Leases(source, self._lose)
        self._appetite = Appetite()
        # What slots report, from any thread; then what is to be settled.
        self._reports: deque[tuple[HeldClaim, int, int, Verdict | None, float]] = deque()
        self._unsettled: dict[HeldClaim, None] = {}
        # Delivered before, and given to the pool only when a slot is free, which the server is told. So what kills this
        # process costs those that wait no attempt.
        self._retried: deque[HeldClaim] = deque()
        self._waiter: Waiter | None = None
        self._wake = asyncio.Event()
        self._is_woken = False
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._outage = Outage(f"take items of {action.group}")
        # How many items are claimed and not reported.
        self._pending = 0
        self._more = True
        # Whether the next item, or the one at hand, shows if the breaker can be closed; and when that may be tried.
        self._probing = False
        self._resume_in = _FOR_EVER
        self.idle = False

    # What slots call, from any thread.

    def report(self, held: HeldClaim, start: int, stop: int, verdict: Verdict | None, seconds: float) -> None:
        """Take note that items are done, or what became of one, after so many seconds."""
        self._reports.append((held, start, stop, verdict, seconds))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._wake.set)

    # What the worker calls.

    def stop(self) -> None:
        """Take no more, and give back what is not begun."""
        self._stopping = True
        self.pool.stop()
        self._give_back_ahead()
        self._wake.set()

    def stop_now(self) -> None:
        """Interrupt what runs, and give it back, too."""
        self.stop()
        self.pool.interrupt_all(STOP)

    async def run(self) -> None:
        """Work until it is told to stop, and all that was begun is settled."""
        watch = asyncio.create_task(self._watch_timeouts())
        try:
            with self._health:
                await self._work()
        finally:
            watch.cancel()
            self._leave()
            self._leases.close()
            self.pool.close()

    async def _work(self) -> None:
        refused = False
        while not (self._stopping and not self.held):
            try:
                await self._turn()
                self._outage.over()
                refused = False
            except REFUSED_FOR_NOW as error:
                # What was handled waits, and nothing more is taken meanwhile. A rate does that all the time.
                level = logging.WARNING if isinstance(error, QueuePaused) and not refused else logging.DEBUG
                log.log(level, "outputs of %s wait, and nothing more is taken: %s", self.action.group, error)
                refused = True
                await asyncio.sleep(max(_REFUSED, getattr(error, "retry_after", 0.0)))
            except PenstockError as error:
                # Raised here when it is no outage.
                pause = self._outage.pause(error)
                self._drop_expired(error)
                await self._sleep(pause)

    async def _turn(self) -> None:
        """Do what is to be done next, in one call if there is something."""
        self._take_reports()
        ripe, next_ripe = self._ripe()
        self._resume_in = _FOR_EVER
        if self._health.is_open and self._pending and not self._probing:
            self._give_back_ahead()
        # What was done before is settled first: if this kills the process, it must not count for that.
        if self._retried and not ripe:
            await self._begin_retried()
        room = None if self._stopping or self._retried else self._room()
        if ripe:
            self.idle = False
            await self._settle(ripe, room)
            return
        if room is None:
            self._leave()
            await self._sleep(min(next_ripe, self._resume_in))
            return
        waits = self._source.waits
        if self._more or self._probing:
            await self._pop(room)
            return
        step, seconds = waits.step(self._enter(), pending_check=self._source.pending_check)
        match step:
            case Step.POP:
                await self._pop(room)
            case Step.CHECK:
                began = waits.now()
                found = await self._source.has_pending(room, self._outage)
                waits.checked(self._enter(), began, found)
                self.idle = not found and not self.held
            case _:
                await self._sleep(min(seconds, next_ripe))

    async def _pop(self, wanted: Pop) -> None:
        waits, waiter = self._source.waits, self._enter()
        began, asked_at = waits.now(), time.monotonic()
        claims = await self._source.pop(wanted, self._outage)
        waits.popped(waiter, began, bool(claims))
        self.idle = not claims and not self.held
        self._hand_out(claims, wanted, asked_at)

    async def _settle(self, ripe: Sequence[HeldClaim], wanted: Pop | None) -> None:
        """Settle claims, and pop where there is room."""
        asked_at = time.monotonic()
        waits = self._source.waits
        began = waits.now()
        popped = await self._settling.settle(ripe, wanted, self._outage)
        self._forget(ripe)
        if wanted is not None and popped is not None:
            # A push that met this one left its messages to the next look, which comes at once.
            if self._waiter is not None and popped:
                waits.popped(self._waiter, began, True)
            self._hand_out(popped, wanted, asked_at)

    def _hand_out(self, claims: Sequence[Claim], wanted: Pop, asked_at: float) -> None:
        """Give what was claimed to the pool."""
        found = sum(len(claim.messages) for claim in claims)
        self._more = self._appetite.found(wanted, [len(claim.messages) for claim in claims])
        if not claims:
            if self._ended_probe():
                self._health.no_probe()
            return
        self.idle = False
        self._pending += found
        self._health.took(found, (datetime.now(UTC) - claims[0].messages[0].timestamp).total_seconds())
        jobs: list[Job] = []
        lease = claims[0].lease_seconds or _LEASE
        for claim in claims:
            # Counted from when it was asked for, so that it seems to end too early and never too late.
            held = HeldClaim(claim, asked_at + lease)
            self.held[held] = None
            if claim.attempt > 1 and not self._stopping:
                self._retried.append(held)
            elif held.shared:
                jobs += self._split(held)
            else:
                jobs.append(Job(held, 0, len(claim.messages)))
        self._leases.keep(self.held, lease)
        if self._stopping:
            for held, start, stop in jobs:
                self.report(held, start, stop, GIVEN_BACK, 0.0)
        else:
            self.pool.add(jobs)

    def _split(self, held: HeldClaim) -> list[Job]:
        count = len(held.messages)
        size = self.pool.chunk(count)
        return [Job(held, start, min(start + size, count)) for start in range(0, count, size)]

    def _take_reports(self) -> None:
        """Take note of what slots have reported."""
        self._is_woken = False
        self._wake.clear()
        reports, now, wait = self._reports, time.monotonic(), self._backoff.after
        count = handled = succeeded = 0
        busy = 0.0
        while reports:
            held, start, stop, verdict, seconds = reports.popleft()
            held.take(start, stop, verdict, now, wait)
            self._unsettled[held] = None
            count += stop - start
            if verdict is not GIVEN_BACK:
                handled += stop - start
            if verdict is None or verdict.kind in _WELL:
                succeeded += stop - start
                busy += seconds
            elif verdict.kind in (FAILED, DEAD):
                self._health.failed(verdict.error, seconds, probe=self._ended_probe())
        self._pending -= count
        if handled:
            self.handled += handled
            self._appetite.handled(handled, now)
        if succeeded:
            self._health.succeeded(busy, count=succeeded, probe=self._ended_probe())
        if self._probing and not self.held:
            # It was given back.
            self._ended_probe()
            self._health.no_probe()

    def _ended_probe(self) -> bool:
        """Say whether this is what came of a probe."""
        probing, self._probing = self._probing, False
        return probing

    def _ripe(self) -> tuple[list[HeldClaim], float]:
        """Return the claims that are to be settled now, and in how many seconds the next one is."""
        ripe: list[HeldClaim] = []
        following, now = _FOR_EVER, time.monotonic()
        self._forget(list(self._unsettled))
        for held in self._unsettled:
            if held.lost or held.over:
                continue
            if held.parts or held.complete:
                ripe.append(held)
            elif held.since is not None and (held.done or held.outcomes):
                left = 0.0 if self._stopping else held.since + _RIPE - now
                if left <= 0:
                    ripe.append(held)
                else:
                    following = min(following, left)
        return ripe, following

    def _forget(self, claims: Sequence[HeldClaim]) -> None:
        """Forget claims about which nothing is left to do."""
        for held in claims:
            if held.finished:
                self._unsettled.pop(held, None)
                self.held.pop(held, None)

    def _room(self) -> Pop | None:
        """Return the pop that there is room for; nothing while the breaker of this action is open."""
        if self._health.is_open:
            if self._pending == 0 and not self.held:
                pause, self._probing = self._health.admit()
                if self._probing:
                    return msgspec.structs.replace(self._wanted, max_messages=1, max_partitions=1)
                self._resume_in = pause
            return None
        return self._appetite.pop(self._wanted, self.pool.size, self._pending, self.pool.idle())

    def _give_back_ahead(self) -> None:
        """Give back what is claimed ahead, so that others can handle it."""
        for held, start, stop in [*self.pool.take_back(), *map(_whole, self._retried)]:
            self.report(held, start, stop, GIVEN_BACK, 0.0)
        self._retried.clear()

    async def _begin_retried(self) -> None:
        """Give the pool as many items that were delivered before as it can begin with at once."""
        # A claim of an ordered group is one job, however many of its items wait behind the one at hand.
        waiting = sum(_jobs(held) for held in self._retried)
        free = self.pool.size - (sum(map(_jobs, self.held)) - waiting)
        if free <= 0:
            return
        chosen = list(self._retried)[:free]
        may_begin = await self._source.begin([held.claim for held in chosen])
        for held, live in zip(chosen, may_begin, strict=True):
            if held not in self._retried:
                continue  # given back meanwhile
            self._retried.remove(held)
            if not live:
                self._lose(held)
            if held.lost:
                self.report(*_whole(held), GIVEN_BACK, 0.0)
            else:
                self.pool.add([_whole(held)])

    def _drop_expired(self, error: PenstockError) -> None:
        """Give up claims whose leases ended during an outage: others have them by now."""
        for held in self._leases.expired():
            log.warning("%s of %s could not be settled before its lease ended: %s", held, self.action.group, error)
            self._lose(held)

    def _lose(self, held: HeldClaim) -> None:
        """Take note that somebody else may have a claim: its handlers are told to end, and nothing of it is settled."""
        if held.lost:
            return
        held.lost = True
        self._unsettled[held] = None
        log.warning("the lease of %s of %s is lost; its items are delivered again", held, self.action.group)
        self._interrupt(held)

    def _interrupt(self, held: HeldClaim) -> None:
        """Let the handlers of a claim end: what they do counts for nothing."""
        self.pool.interrupt_items(lambda other, _: other is held, LOST)
        self._wake.set()

    async def release_held(self) -> None:
        """Give back all claims as they are: the last thing that a worker does which has no time left."""
        leases = [held.claim.lease for held in self.held if not held.lost and not held.over]
        if leases:
            await self._source.settle(ReleaseMany(leases))

    async def _watch_timeouts(self) -> None:
        # Slept for a time that is known, and not until something happens.
        while (seconds := self.pool.expire()) is not None:  # noqa: ASYNC110
            await asyncio.sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        """Wait for a report, or something else that wakes the lane, or for so many seconds."""
        if self._wake.is_set():
            return
        timer = None if seconds >= _FOR_EVER else self._loop.call_later(max(0.0, seconds), self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()
        if not self._reports:
            self._wake.clear()

    def _enter(self) -> Waiter:
        if self._waiter is None:
            self._source.listen()
            self._waiter = self._source.waits.enter(self._key, float("inf"), self._signal)
        return self._waiter

    def _signal(self) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    def _leave(self) -> None:
        if self._waiter is not None:
            self._source.waits.leave(self._waiter)
            self._waiter = None


def _jobs(held: HeldClaim) -> int:
    """Return how many slots a claim may need."""
    return held.left if held.shared else min(1, held.left)


def _whole(held: HeldClaim) -> Job:
    return Job(held, 0, len(held.messages))
