# Generated from async_feeding.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Claims ahead for a loop and sends its acks, beside the handlers.

One call of a feeder acknowledges all batches that were finished since the last one and claims as many partitions as
there is room for. So one round trip, and one wait for the disk, serve several batches. An ack waits for nothing but the
call that is under way: where there is no room, it is sent by itself.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from penstock.broker.claims import AckedAndPopped, Claim, ClaimRange
from penstock.broker.operations.claiming import Ack, Pop, ReleaseMany
from penstock.consuming.batch import Batch
from penstock.consuming.handlers import Hook
from penstock.consuming.leases import Leases
from penstock.consuming.outages import Outage
from penstock.consuming.prefetched import Asker, Prefetched, Room
from penstock.consuming.source import Source
from penstock.consuming.tallies import Tally
from penstock.consuming.threads import Background, Renewals, Signal
from penstock.consuming.waiting import Key, Step, Waiter
from penstock.errors import LeaseLost, PenstockError, ReadOnlyServer, TimedOut, Unavailable

log = logging.getLogger("penstock.consumer")

# A call that has no time left waits so long for a connection.
_SHORTEST = 0.2
# How often a probe that found nothing is tried again.
_PROBE_EVERY = 0.5


class Feeder:
    """Feeds one loop, or all workers of one `process`."""

    def __init__(
        self,
        source: Source,
        wanted: Pop,
        prefetch: int,
        stop: threading.Event | None,
        outage: Outage,
        on_error: Hook | None,
        prepare: Callable[[], None],
        renewals: Renewals,
        tally: Tally,
    ) -> None:
        self.queue, self.group = wanted.queue, wanted.group
        self._tally = tally
        self._source = source
        self._prepare = prepare
        # As many partitions as a batch has.
        self._partitions = wanted.max_partitions
        self._wanted = msgspec.structs.replace(wanted, max_messages=min(wanted.max_messages, prefetch))
        self._stop = stop
        self._outage = outage
        self._on_error = on_error
        self._prefetched: Prefetched[Batch] = Prefetched(prefetch, self._wanted.max_messages, wanted.max_bytes)
        self._leases = Leases(self._prefetched, source, renewals, wanted.lease)
        self._waiter: Waiter | None = None
        self._closing = False
        self._ending = False
        self._abandoned = False
        # Until when the last calls may be tried.
        self._ends_at: float | None = None
        self._signal = Signal()
        tally.watchers.append(self._signal.give)
        self._background = Background(self._work, "penstock-feeder")

    def take(self, wait: float, stop: threading.Event | None) -> Batch | None:
        """Take the next batch, or wait for one for so many seconds; raises what the feeder could not do."""
        batch = self._prefetched.take()
        if batch is not None:
            self._signal.give()
            return batch
        signal = Signal()
        asker = Asker(wait, signal.give)
        self._prefetched.enter(asker)
        try:
            while stop is None or not stop.is_set():
                batch = self._prefetched.take()
                if batch is not None or self._prefetched.is_over(asker):
                    return batch
                self._signal.give()
                left = asker.deadline - time.monotonic()
                signal.wait(left if left > 0 else float("inf"), stop)
            return None
        finally:
            self._prefetched.leave(asker)

    def begin(self, batch: Batch) -> bool:
        """Say that a handler begins with a batch; return whether it may, because its lease is live."""
        try:
            if done := self._prefetched.take_done_before(batch):
                self._acknowledge(done)
            return all(self._source.begin(batch.claims, self._wanted.lease))
        except PenstockError as error:
            log.warning("%s is not handled now, because the server could not be told: %s", batch, error)
            return False

    def finished(self, batch: Batch) -> bool:
        """Take over the ack of a batch; say no when it is too late for that."""
        taken = self._prefetched.finished(batch)
        self._signal.give()
        return taken

    @property
    def give_up_after(self) -> float | None:
        """How many seconds an outage may last."""
        return self._outage.give_up_after

    def let_go(self, batch: Batch) -> None:
        """Take note that a consumer has settled a batch itself, or gives it back."""
        if not batch.deferred:
            self._prefetched.let_go(batch)

    def close(self, error: BaseException | None = None, within: float | None = None) -> None:
        """Claim no more, give back what waits, and send all acks, within so many seconds; consumers raise an error."""
        if error is not None:
            self._prefetched.fail(error)
        self._ending = self._ending or error is not None
        self._ends_at = None if within is None else time.monotonic() + within
        self._closing = True
        self._signal.give()
        if self._background.runs_here:
            # Called by `on_error`: to wait for its own end would take for ever.
            self._wind_up()
        elif not self._background.join(within):
            self._abandon()
        self._tally.forget(self._signal.give)

    def _abandon(self) -> None:
        """End although calls are under way that have not come back in time."""
        self._abandoned = True
        self._background.cancel()
        self._leases.release()
        if rest := self._prefetched.abandon():
            log.warning("%s could neither be acknowledged nor given back in time: they come again", rest)

    def _work(self) -> None:
        try:
            self._feed()
        except BaseException as error:
            self._prefetched.fail(error)
        self._wind_up()

    def _feed(self) -> None:
        try:
            while not self._closing:
                try:
                    self._prepare()
                    self._turn()
                except PenstockError as error:
                    # Raised here when it is no outage, or one that lasts too long.
                    self._signal.wait(self._outage.pause(error), None)
        finally:
            self._leave()

    def _turn(self) -> None:
        """Do what is to be done next, in one call if there is something."""
        stopped = self._stop is not None and self._stop.is_set()
        held_for, probe = (0.0, False) if stopped else self._tally.admit()
        if stopped or (held_for and not self._tally.breaker.is_probing):
            # What is claimed ahead others may have at once.
            self._give_back(self._prefetched.empty())
        # Before all else: their leases are about to end, which would count.
        self._give_back(self._prefetched.take_dropped())
        done = self._prefetched.take_done()
        room = None if stopped or held_for else self._prefetched.room(acks=sum(len(batch.claims) for batch in done))
        if room is None:
            self._leave()
            if probe:
                self._tally.no_probe()
            if done:
                self._acknowledge(done)
            elif held_for:
                # Those who wait for no longer than this are told that there is nothing.
                self._prefetched.found_nothing(time.monotonic())
                self._signal.wait(held_for, self._stop)
            else:
                self._signal.wait(float("inf"), None if stopped else self._stop)
            return
        if probe:
            self._probe(done)
            return
        waits, waiter = self._source.waits, self._enter()
        wanted, hasty = self._prefetched.look()
        if done or wanted:
            self._pop(waiter, room, done, hasty)
            return
        step, seconds = waits.step(waiter, pending_check=self._source.pending_check)
        match step:
            case Step.POP:
                self._pop(waiter, room, done, hasty)
            case Step.CHECK:
                began = waits.now()
                waits.checked(waiter, began, self._source.has_pending(self._wanted, self._outage))
            case _:
                self._signal.wait(seconds, self._stop)

    def _probe(self, done: list[Batch]) -> None:
        """Take one message, to see whether its handler succeeds; where there is none, look again in a while."""
        probing = False
        try:
            probing = self._pop(self._enter(), Room(1, self._wanted.max_bytes), done, hasty=False, most=1)
        finally:
            if not probing:
                self._tally.no_probe()
        if not probing:
            self._signal.wait(_PROBE_EVERY, self._stop)

    def _pop(self, waiter: Waiter, room: Room, done: list[Batch], hasty: bool, most: int | None = None) -> bool:
        """Pop, at most so many messages of a partition, or as many as are wanted; say whether there were some."""
        waits, began, asked_at = self._source.waits, self._source.waits.now(), time.monotonic()
        self._prefetched.looking()
        wanted = msgspec.structs.replace(
            self._wanted,
            max_partitions=room.partitions,
            max_bytes=room.max_bytes,
            max_messages=self._wanted.max_messages if most is None else most,
        )
        try:
            reply = self._claim(wanted, done)
        except BaseException:
            self._prefetched.want_look()
            raise
        claims = reply.claims
        self._outage.over()
        waits.popped(waiter, began, bool(claims))
        if claims:
            batches = []
            for first in range(0, len(claims), self._partitions):
                of_one = claims[first : first + self._partitions]
                batch = Batch(wanted.queue, wanted.group, of_one, self._source.settle, asked_at)
                batch.defers, batch.hand_over, batch.probe = True, self.finished, most is not None
                batches.append(batch)
            self._prefetched.add(batches)
            if not claims[0].shared and _partitions(claims) <= _partitions(_ranges(done)):
                self._prefetched.had_them_all()
            self._leases.keep(batches[0])
            self._give_back(self._prefetched.take_excess())
        # Not before what was popped is taken in: `on_error` may end it all.
        self._acked(done, reply.acked)
        if claims:
            return True
        if hasty and self._source.sweep_brought():
            self._prefetched.want_look()
        else:
            self._prefetched.found_nothing(asked_at)
        return False

    def _claim(self, wanted: Pop, done: list[Batch]) -> AckedAndPopped:
        """Pop, and acknowledge what is done in the same call; where that fails, one after the other."""
        if not done:
            return self._call(wanted, done)
        try:
            return self._call(wanted, done)
        except PenstockError as error:
            if isinstance(error, Unavailable | ReadOnlyServer) and not isinstance(error, TimedOut):
                # The database is away: all is tried again together, for as long as the loop may wait.
                self._try_again(done, error)
                raise
            log.debug("acks are sent by themselves, because they and the next pop in one call failed: %s", error)
            self._acknowledge(done)
            return self._call(wanted, [])

    def _call(self, wanted: Pop, done: list[Batch]) -> AckedAndPopped:
        return self._source.claim(wanted, _ranges(done), self._outage)

    def _acknowledge(self, done: list[Batch]) -> None:
        """Send acks by themselves."""
        try:
            acked = self._source.settle(Ack(_ranges(done), durable=False), self._left())
        except BaseException as error:
            self._try_again(done, error)
            raise
        self._outage.over()
        self._acked(done, acked)

    def _try_again(self, done: list[Batch], error: BaseException) -> None:
        """Keep the acks that could not be sent, but for those whose leases are over."""
        self._prefetched.put_back_done([batch for batch in done if batch.lease_left > 0])
        for batch in done:
            if batch.lease_left <= 0:
                self._report(
                    batch,
                    LeaseLost(
                        f"{batch} could not be acknowledged before its lease ended, so its messages are delivered "
                        f"again: {error}"
                    ),
                )

    def _acked(self, done: list[Batch], acked: Sequence[bool]) -> None:
        """Take note of what came of acks, and report those that came too late."""
        if all(acked):
            return
        place = 0
        for batch in done:
            count = len(batch.claims)
            try:
                batch.acked_with_pop(Ack(_ranges([batch])), list(acked[place : place + count]))
            except LeaseLost as lost:
                self._report(batch, lost)
            place += count

    def _report(self, batch: Batch, lost: LeaseLost) -> None:
        log.warning("%s", lost)
        if self._on_error is not None:
            try:
                self._on_error(batch, lost)
            except Exception:
                log.exception("on_error failed for %s", batch)

    def _give_back(self, batches: list[Batch]) -> None:
        """Give back what was not handed out, which counts no attempt; what cannot be comes when its lease ends."""
        if not batches:
            return
        log.debug("giving back %d batches that were prefetched", len(batches))
        for batch in batches:
            batch.settled = True
        try:
            leases = [claim.lease for batch in batches for claim in batch.claims]
            self._source.settle(ReleaseMany(leases), self._left())
        except PenstockError as error:
            log.warning("%s could not be given back, and come again when their leases end: %s", batches, error)

    def _wind_up(self) -> None:
        """Give back what waits, and send all acks, through an outage as long as leases last unless told to stop."""
        tries = 0
        self._give_back(self._prefetched.empty())
        while not (self._abandoned or self._prefetched.close_if_all_acked()):
            try:
                self._acknowledge(self._prefetched.take_done())
            except PenstockError as error:
                tries += 1
                ending = self._ending or self._ends_at is not None or (self._stop is not None and self._stop.is_set())
                # Raised again when it is no outage, or one that lasts too long.
                with suppress(PenstockError):
                    if tries == 1 or not ending:
                        self._signal.wait(self._outage.pause(error), None)
                        continue
                if given_up := self._prefetched.take_done():
                    log.warning("%s could not be acknowledged, and come again when their leases end", given_up)
        self._leases.release()

    def _left(self) -> float | None:
        """Return how many seconds a call may wait for a connection; None for as long as any."""
        left = [] if self._ends_at is None else [self._ends_at - time.monotonic()]
        if (of_outage := self._outage.left()) is not None:
            left.append(of_outage)
        return max(_SHORTEST, min(left)) if left else None

    def _enter(self) -> Waiter:
        if self._waiter is None:
            wanted = self._wanted
            key = Key(wanted.queue, wanted.partition, wanted.group)
            self._waiter = self._source.waits.enter(key, float("inf"), self._signal.give)
        return self._waiter

    def _leave(self) -> None:
        if self._waiter is not None:
            self._source.waits.leave(self._waiter)
            self._waiter = None


def _partitions(claims: Iterable[Claim | ClaimRange]) -> set[int]:
    return {claim.partition_id for claim in claims}


def _ranges(batches: list[Batch]) -> list[ClaimRange]:
    return [claim.done() for batch in batches for claim in batch.claims]
