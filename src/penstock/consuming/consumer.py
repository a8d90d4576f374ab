# Generated from async_consumer.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Takes messages for a synchronous client: looks for them, waits for them, calls handlers."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from penstock.broker.arguments import Name, Seconds, as_text, lease_time, patience, positive
from penstock.broker.claims import MAX_BYTES, AckedAndPopped, Claim, ClaimRange
from penstock.broker.counters import Counters
from penstock.broker.infos import SweepResult
from penstock.broker.messages import StoredMessage
from penstock.broker.operations.claiming import Ack, AckAndPop, HasPending, Pop, Renew, Sweep
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.operation import Operation
from penstock.broker.transport import Transport
from penstock.consuming.batch import Batch
from penstock.consuming.feeding import Feeder
from penstock.consuming.handlers import Hook
from penstock.consuming.outages import Outage, is_outage
from penstock.consuming.polling import ReadyCursor, Sweeping, make_consumer_id, sweep_failed, wait_for_each
from penstock.consuming.signals import Catcher
from penstock.consuming.threads import Renewals, Signal, Sweeper, pause
from penstock.consuming.waiting import Key, Step, WaitGroups
from penstock.consuming.wakes import Wakes
from penstock.consuming.worker_threads import WorkerPool
from penstock.errors import AlreadyExists, InvalidInput, LeaseLost, PenstockError

log = logging.getLogger("penstock.consumer")

# More threads or tasks than this are a mistake, and would take the machine down before anybody saw it.
_MOST_CONCURRENT = 10_000
# How many timers a sweep beside the consumers serves at once, and how long it waits for a connection.
_PORTION = 100
_SWEEP_PATIENCE = 2.0


class Last:
    """The batch that a loop has handled last, if its ack is still to be sent."""

    def __init__(self) -> None:
        self._batch: Batch | None = None

    def note(self, batch: Batch) -> None:
        """Take note that a batch is to be acknowledged."""
        self._batch = batch

    def take(self) -> Batch | None:
        """Return it, to be acknowledged now."""
        batch, self._batch = self._batch, None
        return batch


class Consumer:
    """Takes messages through a transport. `Client` has its public face, with the full descriptions."""

    def __init__(
        self, transport: Transport, waits: WaitGroups, wakes: Wakes, counters: Counters, pending_check: bool
    ) -> None:
        self.pending_check = pending_check
        self._transport = transport
        self._waits = waits
        self._wakes = wakes
        self._counters = counters
        self._renewals = Renewals()
        self._sweeper = Sweeper(waits.sweep_in, self._sweep_portion)
        waits.sweep_sooner = self._sweeper.wake
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self.id = make_consumer_id()
        self._ready_cursors: dict[tuple[str, str], ReadyCursor] = {}
        self._subscribed: set[tuple[str, str]] = set()
        self._sweeping = Sweeping()
        self._one_sweep = threading.Lock()
        self._sweeper.reset()
        self._feeders: WeakSet[Feeder] = WeakSet()

    def close(self) -> None:
        """Give back what is claimed ahead, and sweep no more."""
        for feeder in list(self._feeders):
            feeder.close(PenstockError("this client is closed; make a new one"))
        self._sweeper.close()

    def consume(
        self, queue: str, group: str = "default", *, prefetch: int = 0, **options: Any
    ) -> Generator[Batch, None]:
        """Yield batches as they come, and keep their leases alive in the background."""
        if prefetch == 0:
            return self._consume_each(queue, group, **options)
        return self._consume_ahead(queue, group, prefetch, **options)

    def _consume_each(
        self,
        queue: str,
        group: str,
        *,
        stop: threading.Event | None = None,
        idle_timeout: Seconds | None = None,
        lease: Seconds | None = None,
        give_up_after: Seconds | None = None,
        on_error: Callable[[Batch, BaseException], object] | None = None,
        defer_acks: bool = False,
        **options: Any,
    ) -> Generator[Batch, None]:
        """Take one batch after the other, each when it is asked for."""
        give_up, lease = positive("give_up_after", give_up_after), lease_time(lease)
        hook = None if on_error is None else Hook(on_error)
        options["wait"] = wait_for_each(idle_timeout, **options)
        owner = self.id
        outage = Outage(f"pop from {queue} for {group}", give_up)
        sleep = partial(pause, stop)
        last = Last()
        try:
            while stop is None or not stop.is_set():
                try:
                    batch = self.take(queue, group, stop, outage, last, lease=lease, **options)
                except PenstockError as error:
                    sleep(outage.pause(error))
                    continue
                outage.over()
                if batch is None:
                    return
                log.debug("took %s", batch)
                batch.settle_through_outages(sleep, hook, give_up)
                batch.defers = defer_acks
                try:
                    with self._renewals.keep(batch, lease):
                        yield batch
                finally:
                    if self.id == owner:
                        if batch.deferred:
                            last.note(batch)
                        elif not batch.settled and not batch.abandoned:
                            self._give_back(batch)
        finally:
            if self.id == owner:
                self._ack_now(last, stop)

    def _consume_ahead(
        self,
        queue: str,
        group: str,
        prefetch: int,
        *,
        stop: threading.Event | None = None,
        idle_timeout: Seconds | None = None,
        on_error: Callable[[Batch, BaseException], object] | None = None,
        defer_acks: bool = True,
        **options: Any,
    ) -> Generator[Batch, None]:
        """Take batches from a feeder, which claims them ahead and sends their acks."""
        hook = None if on_error is None else Hook(on_error)
        wait = wait_for_each(idle_timeout, **options)
        options.pop("wait", None)
        owner: str | None = None
        try:
            while stop is None or not stop.is_set():
                if owner != self.id:
                    # A process that was forked from this one claims for itself.
                    owner, feeder = self.id, self._feeder(queue, group, prefetch, stop, hook, **options)
                with closing(self._consume_from(feeder, stop, wait, hook)) as batches:
                    for batch in batches:
                        yield batch
                        if owner != self.id:
                            break
                    else:
                        return
        finally:
            if owner == self.id:
                feeder.close()

    def _consume_from(
        self, feeder: Feeder, stop: threading.Event | None, wait: float, hook: Hook | None
    ) -> Generator[Batch, None]:
        owner = self.id
        sleep = partial(pause, stop)
        while stop is None or not stop.is_set():
            batch = feeder.take(wait, stop)
            if batch is None:
                return
            log.debug("took %s", batch)
            batch.settle_through_outages(sleep, hook)
            try:
                yield batch
            finally:
                if self.id == owner:
                    feeder.let_go(batch)
                    if not batch.settled and not batch.abandoned:
                        self._give_back(batch)

    def _feeder(
        self,
        queue: str,
        group: str,
        prefetch: int,
        stop: threading.Event | None,
        hook: Hook | None,
        *,
        give_up_after: Seconds | None = None,
        partition: Name | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: Seconds | None = None,
        auto_ack: bool = False,
        mode: str = "ordered",
        subscription: str | datetime = "all",
    ) -> Feeder:
        """Begin to claim ahead."""
        if prefetch < 0:
            raise InvalidInput(f"prefetch is {prefetch} but must be 0 or more messages")
        if auto_ack:
            raise InvalidInput(
                "prefetch and auto_ack exclude each other: what was prefetched would be lost when the loop ends"
            )
        for name, value in (("max_messages", max_messages), ("max_partitions", max_partitions)):
            if value < 1:
                raise InvalidInput(f"{name} is {value} but must be above 0")
        wanted = Pop(
            queue,
            group,
            as_text(partition),
            max_messages,
            max_bytes,
            max_partitions,
            lease_time(lease),
            self.id,
            durable=False,
        )
        outage = Outage(f"pop from {queue} for {group}", positive("give_up_after", give_up_after))
        prepare = partial(self._prepare, queue, group, mode, subscription)
        feeder = Feeder(self, wanted, prefetch, stop, outage, hook, prepare, self._renewals)
        self._feeders.add(feeder)
        return feeder

    def _prepare(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
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
        ready = self._ready_cursor(wanted.queue, wanted.group)
        if (begin := ready.lows()) is not None:
            wanted = msgspec.structs.replace(wanted, ready_from=begin)
        if done:
            reply = self._transport.run(AckAndPop(done, wanted), _left(outage), retry=False)
        else:
            reply = AckedAndPopped([], self._transport.run(wanted, _left(outage)))
        if reply.claims:
            ready.took(reply.claims)
        self._waits.stir()
        self._sweeper.ensure()
        return reply

    def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""
        brought = self._sweeping.brought
        self._sweep()
        return self._sweeping.brought != brought

    def process(
        self,
        queue: str,
        handler: Callable[[StoredMessage], object],
        *,
        group: str = "default",
        concurrency: int = 1,
        stop: threading.Event | None = None,
        idle_timeout: Seconds | None = None,
        timeout: Seconds | None = None,
        grace: Seconds = 8.0,
        handle_signals: bool = True,
        on_error: Callable[[StoredMessage, BaseException], object] | None = None,
        prefetch: int = 0,
        **options: Any,
    ) -> int:
        """Call a function for each message, in `concurrency` threads; returns how many were handled."""
        if not 1 <= concurrency <= _MOST_CONCURRENT:
            raise InvalidInput(f"concurrency is {concurrency} but must be from 1 to {_MOST_CONCURRENT}")
        allowed, ending = positive("timeout", timeout), positive("grace", grace)
        hook = None if on_error is None else Hook(on_error)

        # Nobody sees a batch between its last message and the next pop.
        options.setdefault("defer_acks", True)
        stop = stop or threading.Event()
        feeder: Feeder | None = None

        def consume(stop: threading.Event) -> Generator[Batch, None]:
            if feeder is None:
                return self._consume_each(queue, group, stop=stop, idle_timeout=idle_timeout, **options)
            return self._consume_from(feeder, stop, wait, None)

        pool = WorkerPool(consume, handler, allowed, concurrency, hook, stop, ending)
        if prefetch:
            wait = wait_for_each(idle_timeout, **options)
            options = {name: value for name, value in options.items() if name not in ("defer_acks", "wait")}
            feeder = self._feeder(queue, group, prefetch, stop, None, **options)
        try:
            with Catcher(pool.interrupt, wanted=handle_signals) as signals:
                handled = pool.run()
        finally:
            if feeder is not None:
                feeder.close()
        signals.hand_on()
        return handled

    def sweep(self) -> SweepResult | None:
        """Fire due timers: expired leases, delays, backoffs."""
        with self._one_sweep:
            return self._run_sweep(Sweep(durable=False))

    def forget_group(self, queue: str, group: str) -> None:
        """Take note that a group may be gone, so that it is created again."""
        self._subscribed.discard((queue, group))

    def forget_groups(self) -> None:
        """Take note that any group may be gone."""
        self._subscribed.clear()

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
        # What is handed out need not survive a crash, unless it counts as done.
        wanted = Pop(
            queue, group, partition, max_messages, max_bytes, max_partitions, lease, self.id, auto_ack, durable=auto_ack
        )
        self._subscribe(queue, group, mode, subscription)
        if outage is not None and outage.begun:
            # Nothing else is tried before this works.
            found = self._pop(wanted, outage)
            outage.over()
            if found is not None:
                return found
        if wait > 0:
            return self._wait(wanted, self._waits.now() + wait, stop, outage, last)
        return self._look(wanted, last)

    def _look(self, wanted: Pop, last: Last | None) -> Batch | None:
        """Look once, and where there is nothing, once more after a sweep that brought work."""
        while True:
            brought = self._sweeping.brought
            batch = self._pop(wanted, None, last)
            if batch is not None:
                return batch
            self._sweep()
            if self._sweeping.brought == brought:
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
        signal = Signal()
        self._transport.open()
        self._wakes.listen()
        waiter = self._waits.enter(Key(wanted.queue, wanted.partition, wanted.group), deadline, signal.give)
        try:
            while stop is None or not stop.is_set():
                step, seconds = self._waits.step(waiter, pending_check=self.pending_check)
                if step is not Step.POP and last is not None:
                    self._ack_now(last, stop)
                match step:
                    case Step.POP:
                        began = self._waits.now()
                        batch = self._pop(wanted, outage, last)
                        self._waits.popped(waiter, began, batch is not None)
                        self._sweeper.ensure()
                        if batch is not None:
                            return batch
                    case Step.CHECK:
                        began = self._waits.now()
                        self._waits.checked(waiter, began, self.has_pending(wanted, outage))
                        self._sweeper.ensure()
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
            popping = (
                self._ack_and_pop(done, wanted, outage)
                if done is not None
                else self._transport.run(wanted, _left(outage))
            )
            claims = popping
        except BaseException:
            if last is not None and done is not None and not done.settled:
                last.note(done)
            raise
        if not claims:
            return None
        ready.took(claims)
        self._waits.stir()
        self._sweeper.ensure()
        return Batch(wanted.queue, wanted.group, claims, self.settle, asked_at)

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
            return self._transport.run(wanted, _left(outage))
        try:
            done.acked_with_pop(acks, reply.acked)
        except LeaseLost as lost:
            log.warning("%s", lost)
        return reply.claims

    def _ack_now(self, last: Last, stop: threading.Event | None) -> None:
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

    def _give_back(self, batch: Batch) -> None:
        """Give back what the loop that has it did not settle; what cannot be given back comes when its lease ends."""
        log.debug("giving back %s", batch)
        try:
            batch.release()
        except PenstockError as error:
            log.warning("%s could not be given back, and comes again when its lease ends: %s", batch, error)

    def has_pending(self, wanted: Pop, outage: Outage | None = None) -> bool:
        """Ask whether a pop could get something; one that cannot be asked may."""
        ready = self._ready_cursor(wanted.queue, wanted.group)
        self._counters.add("has_pending_checks", 1)
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

    def _sweep(self) -> None:
        """Sweep, or wait for a sweep that is about to begin; others' timers must not keep this one from popping."""
        asked_at = time.monotonic()
        with self._one_sweep:
            if self._sweeping.began > asked_at:
                return
            try:
                self._sweeping.did(self._run_sweep(Sweep(self._sweeping.since(), durable=False)))
            except PenstockError as error:
                sweep_failed(error)

    def _sweep_portion(self) -> bool:
        """Serve some timers beside the consumers; say whether to go on. In an outage they find out by themselves."""
        with self._one_sweep:
            operation = Sweep(self._sweeping.since(), _PORTION, durable=False)
            try:
                self._sweeping.did(self._run_sweep(operation, _SWEEP_PATIENCE, retry=False))
            except PenstockError as error:
                if is_outage(error):
                    log.debug("no sweep, because the database cannot be used: %s", error)
                    return False
                sweep_failed(error)
        return True

    def _run_sweep(
        self,
        operation: Sweep,
        timeout: float | None = None,
        *,
        retry: bool = True,
    ) -> SweepResult | None:
        self._counters.add("sweeps", 1)
        swept = None
        try:
            swept = self._transport.run(operation, timeout, retry=retry)
            return swept
        finally:
            self._waits.swept(swept, all_due=swept is None or swept.woken < operation.max_timers)

    def _ready_cursor(self, queue: str, group: str) -> ReadyCursor:
        return self._ready_cursors.setdefault((queue, group), ReadyCursor())

    def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._subscribed:
            return
        with suppress(AlreadyExists):
            self._transport.run(CreateGroup.reading(queue, group, mode, subscription))
        self._subscribed.add((queue, group))


def _left(outage: Outage | None) -> float | None:
    return None if outage is None else outage.left()
