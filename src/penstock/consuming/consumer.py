# Generated from async_consumer.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Takes messages for a synchronous client: looks for them, waits for them, settles them."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, lease_time, patience, truth, whole
from penstock.broker.claims import MAX_BYTES, AckedAndPopped, Claim, ClaimRange
from penstock.broker.counters import Counters
from penstock.broker.infos import SweepResult
from penstock.broker.operations.claiming import Ack, AckAndPop, HasPending, Pop, Renew
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.operation import Operation
from penstock.broker.transport import Transport
from penstock.consuming.batch import Batch
from penstock.consuming.outages import Outage, is_outage
from penstock.consuming.polling import ReadyCursor, make_consumer_id
from penstock.consuming.reporter import Reporter
from penstock.consuming.reporting import Reports
from penstock.consuming.sweeps import Sweeps
from penstock.consuming.threads import Signal
from penstock.consuming.waiting import Key, Step, WaitGroups
from penstock.consuming.wakes import Wakes
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    LeaseLost,
    NotFound,
    PenstockError,
    ReadOnlyServer,
    SetupError,
)

log = logging.getLogger("penstock.consumer")

# In bytes.
_LONGEST_NAME = 255


class Last:
    """The batch that a loop has handled last, if its ack is still to be sent."""

    def __init__(self) -> None:
        self._batch: Batch | None = None

    def note(self, batch: Batch) -> None:
        """Take note that a batch is to be acknowledged."""
        self._batch = batch

    @property
    def waits(self) -> bool:
        """Whether there is one."""
        return self._batch is not None

    def take(self) -> Batch | None:
        """Return it, to be acknowledged now."""
        batch, self._batch = self._batch, None
        return batch


class Consumer:
    """Takes messages through a transport. `Client` has its public face, with the full descriptions."""

    def __init__(
        self,
        transport: Transport,
        waits: WaitGroups,
        wakes: Wakes,
        counters: Counters,
        pending_check: bool,
        reports: Reports,
    ) -> None:
        self.pending_check = pending_check
        self._transport = transport
        self._waits = waits
        self._wakes = wakes
        self._counters = counters
        self._sweeps = Sweeps(transport, waits, counters)
        self._begin()
        self.reports = reports
        self._reporter = Reporter(transport, reports, self.id)

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._sweeps.reset()
        self._begin()
        self._reporter.reset(self.id)

    def rename(self, name: str) -> None:
        """Take another name, before anything is claimed under the first one."""
        if not 1 <= len(name.encode()) <= _LONGEST_NAME:
            raise InvalidInput(f"the name of a consumer is {name!r} but must have 1 to {_LONGEST_NAME} bytes")
        self.id = name
        self._reporter.reset(name)

    def _begin(self) -> None:
        self.id = make_consumer_id()
        self._ready_cursors: dict[tuple[str, str], ReadyCursor] = {}
        # Groups that are not just the default kind: how to create them.
        self._kinds: dict[tuple[str, str], CreateGroup] = {}
        # Whether pushes are heard of.
        self._hears = False
        # Whether the schema tells what is begun from what is claimed ahead; that of the version before does not.
        self._knows_ahead = True

    def close(self) -> None:
        """Sweep no more, and report for the last time."""
        self._sweeps.close()
        self._reporter.close()

    def prepare(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Connect, create the group where it is not just the default kind, and hear of pushes."""
        self._transport.open()
        self._subscribe(queue, group, mode, subscription)
        self._wakes.listen()

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with this client."""
        return self._waits

    def claim(self, wanted: Pop, done: Sequence[ClaimRange], outage: Outage) -> AckedAndPopped:
        """Acknowledge and pop, in one call."""
        if not self._knows_ahead:
            wanted = msgspec.structs.replace(wanted, ahead=False)
        ready = self._ready_cursor(wanted.queue, wanted.group)
        if (begin := ready.lows()) is not None:
            wanted = msgspec.structs.replace(wanted, ready_from=begin)
        try:
            if done:
                reply = self._transport.run(AckAndPop(done, wanted), _left(outage), retry=False)
            else:
                reply = AckedAndPopped([], self._run_pop(wanted, outage))
        except SetupError as error:
            if not wanted.ahead or isinstance(error, ReadOnlyServer):
                raise
            self._knows_ahead = False
            return self.claim(wanted, done, outage)
        if reply.claims:
            ready.took(reply.claims)
        self._waits.stir()
        self._sweeps.ensure()
        return reply

    def begin(self, claims: Sequence[Claim], lease: float | None = None) -> list[bool]:
        """Say that what was claimed ahead, and delivered before, is handled from now on; for each, whether it may be.

        Of a first delivery it need not be said: see `expire_claim`.
        """
        retried = [claim.lease for claim in claims if claim.attempt > 1]
        if not retried or not self._knows_ahead:
            return [True] * len(claims)
        deadlines = self._transport.run(Renew(retried, lease, durable=False, begun=True))
        live = {of.lease_id for of, deadline in zip(retried, deadlines, strict=True) if deadline is not None}
        return [claim.attempt == 1 or claim.lease_id in live for claim in claims]

    def sweep(self) -> SweepResult | None:
        """Fire due timers: expired leases, delays, backoffs."""
        return self._sweeps.sweep_all()

    def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""
        brought = self._sweeps.brought
        self._sweeps.sweep()
        return self._sweeps.brought != brought

    def forget_group(self, queue: str, group: str) -> None:
        """Take note that a group may be gone, so that it is created again."""
        self._kinds.pop((queue, group), None)

    def forget_groups(self) -> None:
        """Take note that any group may be gone."""
        self._kinds.clear()

    def remember_group(self, kind: CreateGroup) -> None:
        """Take note how to create a group, should somebody delete it."""
        self._kinds[kind.queue, kind.group] = kind

    def take(
        self,
        queue: str,
        group: str,
        stop: threading.Event | None = None,
        outage: Outage | None = None,
        last: Last | None = None,
        *,
        partition: Name | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: Seconds | None = None,
        wait: Seconds = 0.0,
        auto_ack: bool = False,
        mode: str = "ordered",
        subscription: str | datetime = "all",
    ) -> Batch | None:
        """Claim the next messages, and acknowledge the `last` ones; with `wait`, look again for so many seconds."""
        partition, lease, wait = as_text(partition), lease_time(lease), patience("wait", wait)
        max_messages, max_partitions = whole("max_messages", max_messages), whole("max_partitions", max_partitions)
        auto_ack = truth("auto_ack", auto_ack)
        # What is handed out need not survive a crash, unless it counts as done.
        wanted = Pop(
            queue, group, partition, max_messages, max_bytes, max_partitions, lease, self.id, auto_ack, durable=auto_ack
        )
        self._subscribe(queue, group, mode, subscription)
        if outage is not None and outage.begun:
            # Nothing else is tried before this works. An ack that could not be sent goes along.
            found = self._pop(wanted, outage, last)
            outage.over()
            if found is not None:
                return found
        if wait > 0:
            return self._wait(wanted, self._waits.now() + wait, stop, outage, last)
        return self._look(wanted, last)

    def _look(self, wanted: Pop, last: Last | None) -> Batch | None:
        """Look once, and where there is nothing, once more after a sweep that brought work."""
        while True:
            brought = self._sweeps.brought
            batch = self._pop(wanted, None, last)
            if batch is not None:
                return batch
            self._sweeps.sweep()
            if self._sweeps.brought == brought:
                return None

    def _wait(
        self,
        wanted: Pop,
        deadline: float,
        stop: threading.Event | None,
        outage: Outage | None = None,
        last: Last | None = None,
    ) -> Batch | None:
        """Look, alone or through those who wait for the same, until something is found, or time is up."""
        key = Key(wanted.queue, wanted.partition, wanted.group)
        looked_at: float | None = None
        if self._hears and not self._waits.has(key) and not (stop is not None and stop.is_set()):
            # Nobody waits for it, so that it may be there: waiting costs more than such a look.
            settles = last is not None and last.waits
            looked_at = self._waits.now()
            batch = self._pop(wanted, outage, last)
            if settles:
                # A push that met this one left its messages to the next look, which comes at once.
                looked_at = None
            if batch is not None:
                self._waits.found()
                return batch
        signal = Signal()
        self._transport.open()
        self._wakes.listen()
        self._hears = True
        waiter = self._waits.enter(key, deadline, signal.give)
        if looked_at is not None:
            self._waits.popped(waiter, looked_at, False)
            self._sweeps.ensure()
        try:
            while stop is None or not stop.is_set():
                step, seconds = self._waits.step(waiter, pending_check=self.pending_check)
                if step is not Step.POP and last is not None:
                    self.ack_now(last, stop)
                match step:
                    case Step.POP:
                        began = self._waits.now()
                        batch = self._pop(wanted, outage, last)
                        self._waits.popped(waiter, began, batch is not None)
                        self._sweeps.ensure()
                        if batch is not None:
                            return batch
                    case Step.CHECK:
                        began = self._waits.now()
                        self._waits.checked(waiter, began, self.has_pending(wanted, outage))
                        self._sweeps.ensure()
                    case Step.SLEEP:
                        signal.wait(seconds, stop)
                    case Step.OVER:
                        return None
            return None
        finally:
            self._waits.leave(waiter)

    def _pop(self, wanted: Pop, outage: Outage | None = None, last: Last | None = None) -> Batch | None:
        ready = self._ready_cursor(wanted.queue, wanted.group)
        if (begin := ready.lows()) is not None:
            wanted = msgspec.structs.replace(wanted, ready_from=begin)
        done = None if last is None else last.take()
        asked_at = time.monotonic()
        try:
            popping = self._ack_and_pop(done, wanted, outage) if done is not None else self._run_pop(wanted, outage)
            claims = popping
        except BaseException:
            if last is not None and done is not None and not done.settled:
                last.note(done)
            raise
        if not claims:
            return None
        ready.took(claims)
        self._waits.stir()
        self._sweeps.ensure()
        return Batch(wanted.queue, wanted.group, claims, self.settle, asked_at)

    def _run_pop(self, wanted: Pop, outage: Outage | None) -> list[Claim]:
        """Pop. A group that somebody deleted comes back as the kind that it was."""
        kind = self._kinds.get((wanted.queue, wanted.group))
        if kind is None:
            return self._transport.run(wanted, _left(outage))
        wanted = msgspec.structs.replace(wanted, creates=False)
        try:
            return self._transport.run(wanted, _left(outage))
        except NotFound:
            with suppress(AlreadyExists):
                self._transport.run(kind)
            return self._transport.run(wanted, _left(outage))

    def _ack_and_pop(self, done: Batch, wanted: Pop, outage: Outage | None) -> list[Claim]:
        """Acknowledge a batch and pop, in one call; where that fails, one after the other."""
        acks = done.undeferred()
        both = AckAndPop(acks.ranges, wanted)
        try:
            running = self._transport.run(both, _left(outage), retry=False)
            reply = running
        except PenstockError as error:
            log.debug("%s is acknowledged by itself, because that and the next pop in one call failed: %s", done, error)
            self._ack(done)
            return self._run_pop(wanted, outage)
        try:
            done.acked_with_pop(acks, reply.acked)
        except LeaseLost as lost:
            log.warning("%s", lost)
        return reply.claims

    def ack_now(self, last: Last, stop: threading.Event | None) -> None:
        """Send an ack that is not followed by a pop."""
        done = last.take()
        if done is None:
            return
        done.undeferred()
        try:
            self._ack(done)
        except Exception:
            done.abandoned = True
            if stop is None or not stop.is_set():
                raise
            log.warning("%s could not be settled; its messages come again when its lease ends", done, exc_info=True)

    def _ack(self, done: Batch) -> None:
        try:
            done.ack()
        except LeaseLost as lost:
            log.warning("%s", lost)

    def settle(self, operation: Operation[Any], within: float | None = None) -> Any:
        """Run what a batch settles itself with, waiting so long for a connection."""
        done = self._transport.run(operation, within)
        # Given back, or failed: it may be ready again, now or in a while.
        self._waits.stir(look=not isinstance(operation, Ack | Renew))
        return done

    def has_pending(self, wanted: Pop, outage: Outage | None = None) -> bool:
        """Ask whether a pop could get something; one that cannot be asked may."""
        ready = self._ready_cursor(wanted.queue, wanted.group)
        self._counters.add("has_pending_checks", 1)
        self.reports.tally(wanted.queue, wanted.group).checked()
        try:
            check = HasPending(wanted.queue, wanted.group, wanted.partition, ready.lows())
            # Not tried again here: the pop that follows an error says what is wrong.
            pending = self._transport.run(check, _left(outage), retry=False)
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            pending = True
        self._counters.add("has_pending_hits" if pending else "has_pending_misses", 1)
        if pending:
            # The check may have been the one that looks at the front; the pop that follows must see the same.
            ready.begin_at_front()
        return pending

    def _ready_cursor(self, queue: str, group: str) -> ReadyCursor:
        return self._ready_cursors.setdefault((queue, group), ReadyCursor())

    def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._kinds:
            return
        kind = CreateGroup.reading(queue, group, mode, subscription)
        with suppress(AlreadyExists):
            self._transport.run(kind)
        self.remember_group(kind)


def _left(outage: Outage | None) -> float | None:
    return None if outage is None else outage.left()
