# Generated from async_feeding.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Claims ahead for a loop and sends its acks, beside the handlers.

One call of a feeder acknowledges all batches that were finished since the last one and claims as many partitions as
there is room for. So one round trip, and one wait for the disk, serve several batches. An ack waits for nothing but the
call that is under way: where there is no room, it is sent by itself.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from penstock.broker.arguments import Seconds, lease_time
from penstock.broker.claims import AckedAndPopped, ClaimRange
from penstock.broker.operations.claiming import Ack, Pop, ReleaseMany, Renew
from penstock.broker.operations.operation import Operation
from penstock.consuming.batch import Batch
from penstock.consuming.handlers import Hook
from penstock.consuming.outages import Outage, is_outage
from penstock.consuming.prefetched import Asker, Prefetched, Room
from penstock.consuming.threads import Background, Renewals, Signal
from penstock.consuming.waiting import Key, Step, Waiter, WaitGroups
from penstock.errors import LeaseLost, PenstockError

log = logging.getLogger("penstock.consumer")


class Source(Protocol):
    """What a feeder claims through: a consumer."""

    pending_check: bool

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with the same client."""

    def claim(self, wanted: Pop, done: Sequence[ClaimRange], outage: Outage) -> AckedAndPopped:
        """Acknowledge and pop, in one call."""

    def settle(self, operation: Operation[Any]) -> Any:
        """Run what settles claims."""

    def has_pending(self, wanted: Pop, outage: Outage) -> bool:
        """Ask whether a pop could get something."""

    def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""


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
    ) -> None:
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
        self._signal = Signal()
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

    def finished(self, batch: Batch) -> bool:
        """Take over the ack of a batch; say no when it is too late for that."""
        taken = self._prefetched.finished(batch)
        self._signal.give()
        return taken

    def let_go(self, batch: Batch) -> None:
        """Take note that a consumer has settled a batch itself, or gives it back."""
        if not batch.deferred:
            self._prefetched.let_go(batch)

    def close(self, error: BaseException | None = None) -> None:
        """Claim no more, give back what waits, and send all acks; with an error, which consumers raise, soon."""
        if error is not None:
            self._ending = True
            self._prefetched.fail(error)
        self._closing = True
        self._signal.give()
        self._background.join()

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
        if stopped:
            self._give_back(self._prefetched.empty())
        done = self._prefetched.take_done()
        room = None if stopped else self._prefetched.room(acks=bool(done))
        if room is None:
            self._leave()
            if done:
                self._acknowledge(done)
            elif dropped := self._prefetched.take_dropped():
                self._give_back(dropped)
            else:
                self._signal.wait(float("inf"), None if stopped else self._stop)
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

    def _pop(self, waiter: Waiter, room: Room, done: list[Batch], hasty: bool) -> None:
        waits, began, asked_at = self._source.waits, self._source.waits.now(), time.monotonic()
        self._prefetched.looking()
        wanted = msgspec.structs.replace(self._wanted, max_partitions=room.partitions, max_bytes=room.max_bytes)
        try:
            claims = self._claim(wanted, done).claims
        except BaseException:
            self._prefetched.want_look()
            raise
        self._outage.over()
        waits.popped(waiter, began, bool(claims))
        if claims:
            batches = []
            for first in range(0, len(claims), self._partitions):
                of_one = claims[first : first + self._partitions]
                batch = Batch(wanted.queue, wanted.group, of_one, self._source.settle, asked_at)
                batch.defers, batch.hand_over = True, self.finished
                batches.append(batch)
            self._prefetched.add(batches)
            self._leases.keep(batches[0])
        elif hasty and self._source.sweep_brought():
            self._prefetched.want_look()
        else:
            self._prefetched.found_nothing(asked_at)

    def _claim(self, wanted: Pop, done: list[Batch]) -> AckedAndPopped:
        """Pop, and acknowledge what is done in the same call; where that fails, one after the other."""
        if not done:
            return self._call(wanted, done)
        try:
            reply = self._call(wanted, done)
        except PenstockError as error:
            log.debug("acks are sent by themselves, because they and the next pop in one call failed: %s", error)
            self._acknowledge(done)
            return self._call(wanted, [])
        self._acked(done, reply.acked)
        return reply

    def _call(self, wanted: Pop, done: list[Batch]) -> AckedAndPopped:
        return self._source.claim(wanted, _ranges(done), self._outage)

    def _acknowledge(self, done: list[Batch]) -> None:
        """Send acks by themselves."""
        try:
            acked = self._source.settle(Ack(_ranges(done), durable=False))
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
            self._source.settle(ReleaseMany([claim.lease for batch in batches for claim in batch.claims]))
        except PenstockError as error:
            log.warning("%s could not be given back, and come again when their leases end: %s", batches, error)

    def _wind_up(self) -> None:
        """Give back what waits, and send all acks, through an outage as long as leases last unless told to stop."""
        outage, tries = Outage("send the last acks"), 0
        self._give_back(self._prefetched.empty())
        while not self._prefetched.close_if_all_acked():
            try:
                self._acknowledge(self._prefetched.take_done())
            except PenstockError as error:
                tries += 1
                ending = self._ending or (self._stop is not None and self._stop.is_set())
                if is_outage(error) and (tries == 1 or not ending):
                    self._signal.wait(outage.pause(error), None)
                elif given_up := self._prefetched.take_done():
                    log.warning("%s could not be acknowledged, and come again when their leases end", given_up)
        self._leases.release()

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


class Leases:
    """The leases of all batches of a feeder, which are renewed together, as if they were one batch."""

    def __init__(
        self, prefetched: Prefetched[Batch], source: Source, renewals: Renewals, lease: Seconds | None
    ) -> None:
        self.abandoned = False
        self.settled = False
        self.lease_seconds = float("inf")
        self._prefetched = prefetched
        self._source = source
        self._renewals = renewals
        self._lease = lease
        self._keeping: AbstractContextManager[None] | None = None

    @property
    def lease_left(self) -> float:
        """How many seconds the shortest lease lasts: all are renewed within a third of it."""
        return self.lease_seconds

    def keep(self, batch: Batch) -> None:
        """See that leases like that of a batch are renewed in time."""
        if batch.lease_seconds < 0.9 * self.lease_seconds:
            self.release()
            self.lease_seconds = batch.lease_seconds
            self._keeping = self._renewals.keep(self, self._lease)
            self._keeping.__enter__()

    def release(self) -> None:
        """Renew no more."""
        if self._keeping is not None:
            self._keeping.__exit__(None, None, None)
            self._keeping = None

    def renew(self, lease: Seconds | None = None) -> None:
        """Extend all leases from now; a batch whose lease is lost is handed out no more."""
        held = self._prefetched.held()
        if not held:
            return
        renewals = [(batch, claim.lease) for batch in held for claim in batch.claims]
        operation = Renew([lease for _, lease in renewals], lease_time(lease), durable=False)
        until = self._source.settle(operation)
        deadlines = {one.lease_id: deadline for (_, one), deadline in zip(renewals, until, strict=True)}
        for batch in held:
            for claim in batch.claims:
                claim.lease_until = deadlines[claim.lease_id] or claim.lease_until
            if not all(deadlines[claim.lease_id] for claim in batch.claims) and self._prefetched.lost(batch):
                log.warning("the lease of %s is lost; its messages are delivered again", batch)


def _ranges(batches: list[Batch]) -> list[ClaimRange]:
    return [claim.done() for batch in batches for claim in batch.claims]
