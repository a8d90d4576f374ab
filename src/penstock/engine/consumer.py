"""Consuming with a synchronous client: pop, consume, process."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

from penstock.engine import bells, forks, group_calls, hints
from penstock.engine.arguments import Name, Seconds, as_text, lease_time, patience, positive
from penstock.engine.batch import Batch
from penstock.engine.batch_calls import PopRequest, has_pending_messages
from penstock.engine.calls import Call, Place, group_names, once
from penstock.engine.counters import Counters
from penstock.engine.database import Database
from penstock.engine.group_calls import MAX_BYTES, Settling, Sweep
from penstock.engine.handlers import Handler
from penstock.engine.hints import Hints
from penstock.engine.messages import StoredMessage
from penstock.engine.outages import Outage, is_outage
from penstock.engine.polling import Line, Sweeping
from penstock.engine.renewing import Renewals
from penstock.engine.signals import Catcher
from penstock.engine.waiting import Hall, Key, Step
from penstock.engine.workers import Crew
from penstock.errors import AlreadyExists, InvalidInput, PenstockError

log = logging.getLogger("penstock.consumer")

_log = logging.getLogger("penstock")

# How often somebody who waits in a thread looks whether to stop.
_STOP_LATENCY = 0.1


class Consumer:
    """The part of a client that consumes."""

    _database: Database
    pending_check: bool
    notify: bool

    def __init__(self) -> None:
        self._renewals = Renewals()
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process."""
        self.consumer_id = make_consumer_id()
        self._lines: dict[tuple[str, str], Line] = {}
        self._subscribed: set[tuple[str, str]] = set()
        self._sweeping = Sweeping()
        self._hall = Hall()
        self._counters = Counters()
        self._belled: str | None = None
        self._hints: Hints | None = None

    def pop(
        self,
        queue: str,
        group: str = "default",
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
        batch: int | None = None,
        partitions: int | None = None,
    ) -> Batch | None:
        """Claim the next messages of any partition, or of a named one; None when there are none.

        Queue and group come into being on first use, the group with `mode` ('ordered' or 'shared') and `subscription`:
        'all', 'new', or a time. `wait` looks again for so many seconds. The claim is leased for `lease` seconds, or the
        group's or queue's lease time; what is not acknowledged by then is delivered again. With `auto_ack` it counts as
        done at once: at most once. `batch` and `partitions` are short for `max_messages` and `max_partitions`.
        """
        return self._take(
            queue,
            group,
            partition=partition,
            max_messages=max_messages,
            max_partitions=max_partitions,
            max_bytes=max_bytes,
            lease=lease,
            wait=wait,
            auto_ack=auto_ack,
            mode=mode,
            subscription=subscription,
            batch=batch,
            partitions=partitions,
        )

    def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        stop: threading.Event | None = None,
        idle_timeout: Seconds | None = None,
        lease: Seconds | None = None,
        give_up_after: Seconds | None = None,
        on_error: Callable[[Batch, BaseException], object] | None = None,
        **options: Any,
    ) -> Iterator[Batch]:
        """Yield batches as they come, and keep their leases alive in the background.

        Settle each one, most simply with `with batch:`. One that is not settled when the next is asked for, or when the
        loop is left, is given back. Ends when `stop` is set, or when nothing came for `idle_timeout` seconds; the other
        options are those of `pop`.

        It goes on through any outage of the database, or raises what went wrong after `give_up_after` seconds of one. A
        batch is settled through an outage for as long as its lease lasts; then its messages are delivered again.
        `on_error` is called with a batch and the exception that its `with` block raised, before it is failed.
        """
        give_up, lease = positive("give_up_after", give_up_after), lease_time(lease)
        hook = None if on_error is None else Handler(on_error, "on_error")
        options["wait"] = wait_for_each(idle_timeout, **options)
        owner = self.consumer_id
        outage = Outage(f"pop from {queue} for {group}", give_up)

        def sleep(seconds: float) -> bool:
            # Not by waiting for the event: a signal handler that sets it could find its lock taken by this very thread.
            until = time.monotonic() + seconds
            while not (stopped := stop is not None and stop.is_set()) and (left := until - time.monotonic()) > 0:
                time.sleep(left if stop is None else min(left, _STOP_LATENCY))
            return stopped

        while stop is None or not stop.is_set():
            try:
                batch = self._take(queue, group, stop, outage, lease=lease, **options)
            except PenstockError as error:
                sleep(outage.pause(error))
                continue
            outage.over()
            if batch is None:
                return
            log.debug("took %s", batch)
            batch.go_on(sleep, hook)
            with self._renewals.keep(batch, lease):
                try:
                    yield batch
                finally:
                    if not batch.settled and not batch.abandoned and self.consumer_id == owner:
                        self._give_back(batch)

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
        **options: Any,
    ) -> int:
        """Call a function for each message, in `concurrency` threads; returns how many were handled.

        A coroutine function is awaited, in one event loop for all threads. A message whose handler raises, or takes
        longer than `timeout` seconds, is retried after the backoff and finally becomes a dead letter; the messages
        before it in its batch are done. `on_error` is called with the message and the exception before that.

        Ends like `consume`, and on Ctrl-C or SIGTERM if it is called in the main thread: handlers under way have
        `grace` seconds to end, what is done is acknowledged, and the rest is given back.
        """
        if concurrency < 1:
            raise InvalidInput(f"concurrency is {concurrency} but must be at least 1")
        allowed, ending = positive("timeout", timeout), positive("grace", grace)
        hook = None if on_error is None else Handler(on_error, "on_error")

        def consume(stop: threading.Event) -> Iterator[Batch]:
            return self.consume(queue, group, stop=stop, idle_timeout=idle_timeout, **options)

        with closing(Handler(handler, "handler", allowed)) as runner:
            crew = Crew(consume, runner, hook, stop or threading.Event(), ending)
            with Catcher(crew.interrupt, wanted=handle_signals) as signals:
                handled = crew.run(concurrency)
        signals.hand_on()
        return handled

    def sweep(self) -> Sweep | None:
        """Do what time brings: expired leases, delays, backoffs. Consumers do this by themselves."""
        return self._sweep_since(None)

    def stats(self) -> dict[str, int]:
        """Count what this client has done: batches, checks, sweeps, hints.

        A synchronous client makes each call by itself, so its batches stay at 0.
        """
        return self._counters.read()

    def _take(
        self,
        queue: str,
        group: str,
        stop: threading.Event | None = None,
        outage: Outage | None = None,
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
        batch: int | None = None,
        partitions: int | None = None,
    ) -> Batch | None:
        partition, lease, wait = as_text(partition), lease_time(lease), patience("wait", wait)
        group_names(queue, group, partition)
        self._subscribe(queue, group, mode, subscription)
        request = PopRequest(
            queue,
            group,
            partition,
            max_messages if batch is None else batch,
            max_bytes,
            max_partitions if partitions is None else partitions,
            lease,
            self.consumer_id,
            auto_ack,
        )
        if outage is not None and outage.begun:
            # Nothing else is tried before this works.
            found = self._pop(request, outage)
            outage.over()
            if found is not None:
                return found
        if wait > 0:
            return self._wait(request, self._hall.now() + wait, stop, outage)
        return self._look(request)

    def _look(self, request: PopRequest) -> Batch | None:
        """Look once, and again where a sweep brought work."""
        while True:
            if self._sweeping.due():
                self._sweep()
            batch = self._pop(request)
            if batch is not None or not self._sweep():
                return batch

    def _wait(
        self, request: PopRequest, deadline: float, stop: threading.Event | None, outage: Outage | None = None
    ) -> Batch | None:
        """Look, alone or through those who wait for the same, until something is found, or time is up."""
        signal = threading.Event()
        self._hang_bell()
        waiter = self._hall.enter(Key(request.queue, request.partition, request.group), deadline, signal.set)
        try:
            while stop is None or not stop.is_set():
                step, seconds = self._hall.step(waiter, pending_check=self.pending_check)
                match step:
                    case Step.POP:
                        if self._hall.sweep_due():
                            self._sweep(outage)
                        began = self._hall.now()
                        batch = self._pop(request, outage)
                        self._hall.popped(waiter, began, batch is not None)
                        if batch is not None:
                            return batch
                    case Step.CHECK:
                        began = self._hall.now()
                        self._hall.checked(waiter, began, self._has_pending(request, outage))
                    case Step.SWEEP:
                        self._sweep(outage)
                    case Step.SLEEP:
                        most = float("inf") if stop is None else _STOP_LATENCY
                        signal.wait(min(max(seconds, 0.0), most, threading.TIMEOUT_MAX))
                        signal.clear()
                    case Step.OVER:
                        return None
            return None
        finally:
            self._hall.leave(waiter)

    def _pop(self, request: PopRequest, outage: Outage | None = None) -> Batch | None:
        line = self._lines.setdefault((request.queue, request.group), Line())
        asked_at = time.monotonic()
        claims = self._database.run(request.alone(line.lows()), _left(outage))
        if not claims:
            return None
        line.took(claims)
        self._hall.stir()
        return Batch(request.queue, request.group, claims, self._settle, asked_at)

    def _settle(self, call: Call[Any]) -> Any:
        """Run what a batch settles itself with."""
        done = self._database.run(call)
        # Given back, or failed: it may be in line again, or will be in a while.
        self._hall.stir(look=not isinstance(call, Settling))
        return done

    def _give_back(self, batch: Batch) -> None:
        """Give back what the loop that has it did not settle; what cannot be given back comes when its lease ends."""
        log.debug("giving back %s", batch)
        try:
            batch.release()
        except PenstockError as error:
            log.warning("%s could not be given back, and comes again when its lease ends: %s", batch, error)

    def _has_pending(self, request: PopRequest, outage: Outage | None = None) -> bool:
        """Ask whether a pop could get something; one that cannot be asked may."""
        line = self._lines.setdefault((request.queue, request.group), Line())
        self._counters.add("has_pending_checks", 1)
        try:
            pending = self._database.run(
                # Not tried again here: the pop that follows an error says what is wrong.
                once(has_pending_messages(request.queue, request.partition, request.group, line.lows())),
                _left(outage),
            )
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            pending = True
        self._counters.add("has_pending_hits" if pending else "has_pending_misses", 1)
        if pending:
            # The check may have been the one that looks at the front; the pop that follows must see the same.
            line.begin_at_front()
        return pending

    def _sweep(self, outage: Outage | None = None) -> bool:
        """Sweep, and say whether that may have brought work; others' timers must not keep this one from popping."""
        try:
            return self._sweeping.did(self._sweep_since(self._sweeping.since(), outage))
        except PenstockError as error:
            if outage is not None and is_outage(error):
                raise
            sweep_failed(error)
            return False

    def _sweep_since(self, since: datetime | None, outage: Outage | None = None) -> Sweep | None:
        self._counters.add("sweeps", 1)
        self._hall.sweep_begins()
        swept = None
        try:
            call = group_calls.sweep(since)
            # A loop has its own way to try again.
            swept = self._database.run(call if outage is None else once(call), _left(outage))
            return swept
        finally:
            self._hall.swept(swept)

    def _hang_bell(self) -> None:
        """Hear of the pushes of other clients of this process, and of hints from others."""
        dsn = self._database.address.dsn
        if self._belled != dsn:
            self._take_bell_down()
            self._belled = dsn
            bells.hang(dsn, self._hall)
        if self.notify:
            self._with_hints()

    def _take_bell_down(self) -> None:
        if self._belled is not None:
            bells.take_down(self._belled, self._hall)
            self._belled = None
        if self._hints is not None:
            hints.leave(self._hints, self._counters)
            self._hints = None

    def _pushed(self, places: Collection[Place]) -> None:
        """Wake those who wait for what was pushed: here at once, elsewhere with a hint."""
        bells.ring(self._database.address.dsn, places)
        if self.notify and places:
            self._with_hints().pushed(place.queue for place in places)

    def _with_hints(self) -> Hints:
        if self._hints is None:
            self._hints = hints.join(self._database.address, self._counters)
        return self._hints

    def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._subscribed:
            return
        with suppress(AlreadyExists):
            self._database.run(group_calls.create_group(queue, group, mode, subscription, {}))
        self._subscribed.add((queue, group))


def _left(outage: Outage | None) -> float | None:
    return None if outage is None else outage.left()


def sweep_failed(error: PenstockError) -> None:
    """Say that a sweep failed, which is nothing to its caller: the next one tries again."""
    _log.warning("a sweep failed, and is tried again: %s", error)


def wait_for_each(idle_timeout: Seconds | None, wait: Seconds = 0.0, **options: Any) -> float:
    """Return how long `consume` waits for each batch."""
    least, idle = patience("wait", wait), patience("idle_timeout", idle_timeout)
    return float("inf") if idle is None else max(least, idle)


def make_consumer_id() -> str:
    """Return a name under which operators find this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
