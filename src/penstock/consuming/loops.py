# Generated from async_loops.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The loops of a synchronous client: batches as they come, and handlers that are called for each message."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakSet

from penstock.broker.arguments import Name, Seconds, as_text, lease_time, positive, truth, whole
from penstock.broker.claims import MAX_BYTES
from penstock.broker.messages import StoredMessage
from penstock.broker.names import check_group_names
from penstock.broker.operations.claiming import Pop
from penstock.consuming.batch import Batch
from penstock.consuming.claimed import waited
from penstock.consuming.consumer import Consumer, Last
from penstock.consuming.feeding import Feeder
from penstock.consuming.handlers import LAST_MOMENT, Hook
from penstock.consuming.outages import Outage
from penstock.consuming.polling import wait_for_each
from penstock.consuming.signals import Catcher
from penstock.consuming.tallies import Tally
from penstock.consuming.threads import Renewals, is_cancelled, pause
from penstock.consuming.worker_threads import WorkerPool
from penstock.errors import InvalidInput, PenstockError

log = logging.getLogger("penstock.consumer")

# More threads or tasks than this are a mistake, and would take the machine down before anybody saw it.
_MOST_CONCURRENT = 10_000
# How often a loop that its breaker stops looks whether somebody has reset it.
_HELD = 5.0
# How many seconds a loop that was told to stop has for its last acks.
_LAST_CALLS = 8.0
# What a breaker that is half open lets through.
_PROBE = {"max_messages": 1, "max_partitions": 1}


class Loops:
    """Runs loops over what a consumer takes. `Client` has its public face, with the full descriptions."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._renewals = Renewals()
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._feeders: WeakSet[Feeder] = WeakSet()

    def close(self) -> None:
        """Give back what is claimed ahead."""
        for feeder in list(self._feeders):
            feeder.close(PenstockError("this client is closed; make a new one"), _LAST_CALLS)

    def consume(
        self, queue: str, group: str = "default", *, prefetch: int = 0, **options: Any
    ) -> Generator[Batch, None]:
        """Yield batches as they come, and keep their leases alive in the background."""
        check_group_names(queue, group)
        if _ahead(prefetch, options) == 0:
            return self._consume_each(queue, group, **options)
        return self._consume_ahead(queue, group, prefetch, **options)

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
        concurrency = whole("concurrency", concurrency, _MOST_CONCURRENT)
        check_group_names(queue, group)
        allowed, ending = positive("timeout", timeout), positive("grace", grace)
        _ahead(prefetch, options)

        # Nobody sees a batch between its last message and the next pop.
        options.setdefault("defer_acks", True)
        stop = stop or threading.Event()
        feeder: Feeder | None = None

        def consume(stop: threading.Event) -> Generator[Batch, None]:
            if feeder is None:
                return self._consume_each(queue, group, stop=stop, idle_timeout=idle_timeout, **options)
            return self._consume_from(feeder, stop, wait, None)

        with Hook.of(on_error) as hook:
            pool = WorkerPool(consume, handler, allowed, concurrency, hook, stop, ending)
            if prefetch:
                wait = wait_for_each(idle_timeout, **options)
                options = {name: value for name, value in options.items() if name not in ("defer_acks", "wait")}
                feeder = self._feeder(queue, group, prefetch, stop, None, **options)
            # Cancelled, or interrupted again: at once.
            within: float | None = LAST_MOMENT
            try:
                with Catcher(pool.interrupt, wanted=handle_signals) as signals:
                    handled = pool.run()
                within = pool.time_left if stop.is_set() else None
            except Exception:
                within = pool.time_left
                raise
            finally:
                if feeder is not None:
                    feeder.close(within=within)
        signals.hand_on()
        return handled

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
        defer_acks: bool | None = None,
        **options: Any,
    ) -> Generator[Batch, None]:
        """Take one batch after the other, each when it is asked for."""
        give_up, lease = positive("give_up_after", give_up_after), lease_time(lease)
        options["wait"] = wait_for_each(idle_timeout, **options)
        owner, tally, idle_for = self._consumer.id, self._consumer.reports.enter(queue, group), 0.0
        outage = Outage(f"pop from {queue} for {group}", give_up)
        sleep = partial(pause, stop)
        last = Last()
        with Hook.of(on_error) as hook:
            try:
                while stop is None or not stop.is_set():
                    if owner != self._consumer.id:
                        # A process that was forked from this one: what it takes from now on is its own.
                        owner, tally = self._consumer.id, self._consumer.reports.enter(queue, group)
                        last, outage = Last(), Outage(f"pop from {queue} for {group}", give_up)
                    held_for, probe = tally.admit()
                    if held_for:
                        # An ack must not wait for the breaker.
                        self._consumer.ack_now(last, stop)
                        idle_for += min(held_for, _HELD)
                        if idle_for > options["wait"]:
                            return
                        sleep(min(held_for, _HELD))
                        continue
                    taking = {**options, **_PROBE} if probe else options
                    try:
                        batch = self._consumer.take(queue, group, stop, outage, last, lease=lease, **taking)
                    except PenstockError as error:
                        if probe:
                            tally.no_probe()
                        sleep(outage.pause(error))
                        continue
                    outage.over()
                    if batch is None:
                        if probe:
                            tally.no_probe()
                        return
                    idle_for = 0.0
                    if not (probe or tally.breaker.is_closed or batch.settled):
                        # It opened while this loop waited.
                        self._give_back(batch)
                        continue
                    log.debug("took %s", batch)
                    batch.settle_through_outages(sleep, hook, give_up)
                    batch.defers = bool(defer_acks)
                    try:
                        with self._renewals.keep(batch, lease), self._counted(tally, batch, probe):
                            yield batch
                    finally:
                        if self._consumer.id == owner:
                            if batch.deferred:
                                last.note(batch)
                            elif not batch.settled and not batch.abandoned:
                                self._give_back(batch)
            finally:
                if self._consumer.id == owner:
                    self._consumer.reports.leave(tally)
                    self._consumer.ack_now(last, stop)

    @contextmanager
    def _counted(self, tally: Tally, batch: Batch, probe: bool) -> Iterator[None]:
        """Count what becomes of a batch in the body."""
        batch.tally, batch.probe = tally, probe
        tally.took(len(batch.messages), waited(batch))
        began = time.monotonic()
        try:
            yield
        finally:
            done = batch.handled if batch.handled is not None else len(batch.messages) if batch.settled else 0
            tally.handled(done, time.monotonic() - began, probe=probe)

    def _consume_ahead(
        self,
        queue: str,
        group: str,
        prefetch: int,
        *,
        stop: threading.Event | None = None,
        idle_timeout: Seconds | None = None,
        on_error: Callable[[Batch, BaseException], object] | None = None,
        **options: Any,
    ) -> Generator[Batch, None]:
        """Take batches from a feeder, which claims them ahead and sends their acks."""
        wait = wait_for_each(idle_timeout, **options)
        options = {name: value for name, value in options.items() if name not in ("defer_acks", "wait")}
        owner: str | None = None
        with Hook.of(on_error) as hook:
            try:
                while stop is None or not stop.is_set():
                    if owner != self._consumer.id:
                        # A process that was forked from this one claims for itself.
                        owner, feeder = self._consumer.id, self._feeder(queue, group, prefetch, stop, hook, **options)
                    with closing(self._consume_from(feeder, stop, wait, hook)) as batches:
                        for batch in batches:
                            yield batch
                            if owner != self._consumer.id:
                                break
                        else:
                            return
            finally:
                if owner == self._consumer.id:
                    stopped = stop is not None and stop.is_set()
                    feeder.close(within=LAST_MOMENT if is_cancelled() else _LAST_CALLS if stopped else None)

    def _consume_from(
        self, feeder: Feeder, stop: threading.Event | None, wait: float, hook: Hook | None
    ) -> Generator[Batch, None]:
        owner, tally = self._consumer.id, self._consumer.reports.enter(feeder.queue, feeder.group)
        sleep = partial(pause, stop)
        try:
            while stop is None or not stop.is_set():
                batch = feeder.take(wait, stop)
                if batch is None:
                    return
                if not (batch.probe or tally.breaker.is_closed) or not feeder.begin(batch):
                    if batch.probe:
                        tally.no_probe()
                    feeder.let_go(batch)
                    self._give_back(batch)
                    continue
                log.debug("took %s", batch)
                batch.settle_through_outages(sleep, hook, feeder.give_up_after)
                try:
                    with self._counted(tally, batch, batch.probe):
                        yield batch
                finally:
                    if self._consumer.id == owner:
                        feeder.let_go(batch)
                        if not batch.settled and not batch.abandoned:
                            self._give_back(batch)
        finally:
            if self._consumer.id == owner:
                self._consumer.reports.leave(tally)

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
        if truth("auto_ack", auto_ack):
            raise InvalidInput(
                "prefetch and auto_ack exclude each other: what was prefetched would be lost when the loop ends"
            )
        wanted = Pop(
            queue,
            group,
            as_text(partition),
            whole("max_messages", max_messages),
            max_bytes,
            whole("max_partitions", max_partitions),
            lease_time(lease),
            self._consumer.id,
            durable=False,
            ahead=True,
        )
        outage = Outage(f"pop from {queue} for {group}", positive("give_up_after", give_up_after))
        prepare = partial(self._consumer.prepare, queue, group, mode, subscription)
        tally = self._consumer.reports.tally(queue, group)
        feeder = Feeder(self._consumer, wanted, prefetch, stop, outage, hook, prepare, self._renewals, tally)
        self._feeders.add(feeder)
        return feeder

    def _give_back(self, batch: Batch) -> None:
        """Give back what the loop that has it did not settle; what cannot be given back comes when its lease ends."""
        log.debug("giving back %s", batch)
        try:
            batch.release()
        except PenstockError as error:
            log.warning("%s could not be given back, and comes again when its lease ends: %s", batch, error)


def _ahead(prefetch: int, options: dict[str, Any]) -> int:
    """Return how many messages are claimed ahead; refuse what is no such number, and what does not go with it."""
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 0:
        raise InvalidInput(f"prefetch is {prefetch!r} but must be 0 or more messages")
    if prefetch and options.get("defer_acks") is False:
        raise InvalidInput("prefetch sends acks in the background: leave out defer_acks=False, or call batch.ack()")
    return prefetch
