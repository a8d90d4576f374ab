"""Consuming with a synchronous client: pop, consume, process."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

from penstock.engine import group_calls
from penstock.engine.batch import Batch
from penstock.engine.database import Database
from penstock.engine.group_calls import MAX_BYTES
from penstock.engine.messages import StoredMessage
from penstock.engine.polling import Line, Sweeping, Waiting
from penstock.engine.renewing import Renewals
from penstock.errors import AlreadyExists, InvalidInput, LeaseLost


class Consumer:
    """The part of a client that consumes."""

    _database: Database

    def __init__(self) -> None:
        self.consumer_id = make_consumer_id()
        self._lines: dict[tuple[str, str], Line] = {}
        self._subscribed: set[tuple[str, str]] = set()
        self._sweeping = Sweeping()
        self._renewals = Renewals()

    def pop(
        self,
        queue: str,
        group: str = "default",
        *,
        partition: str | None = None,
        max_messages: int = 100,
        max_partitions: int = 1,
        max_bytes: int = MAX_BYTES,
        lease: float | None = None,
        wait: float = 0.0,
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
        self._subscribe(queue, group, mode, subscription)
        line = self._lines.setdefault((queue, group), Line())
        waiting = Waiting(wait)
        while True:
            if self._sweeping.due():
                self._sweep()
            call = group_calls.pop(
                queue,
                group,
                partition,
                max_messages if batch is None else batch,
                max_bytes,
                max_partitions if partitions is None else partitions,
                lease,
                self.consumer_id,
                auto_ack,
                line.lows(),
            )
            claims = self._database.run(call)
            if claims:
                line.took(claims)
                return Batch(queue, group, claims, self._database.run)
            if self._sweep():
                continue
            pause = waiting.pause()
            if pause is None:
                return None
            time.sleep(pause)

    def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        stop: threading.Event | None = None,
        idle_timeout: float | None = None,
        lease: float | None = None,
        **options: Any,
    ) -> Iterator[Batch]:
        """Yield batches as they come, and keep their leases alive in the background.

        Settle each one, most simply with `with batch:`. One that is not settled when the next is asked for, or when the
        loop is left, is given back. Ends when `stop` is set, or when nothing came for `idle_timeout` seconds; the other
        options are those of `pop`.
        """
        ending = stop or threading.Event()
        waiting = Waiting(idle_timeout)
        while not ending.is_set():
            batch = self.pop(queue, group, lease=lease, **options)
            if batch is None:
                pause = waiting.pause()
                if pause is None:
                    return
                ending.wait(pause)
                continue
            with self._renewals.keep(batch, lease):
                try:
                    yield batch
                finally:
                    if not batch.settled:
                        with suppress(LeaseLost):
                            batch.release()
            waiting = Waiting(idle_timeout)

    def process(
        self,
        queue: str,
        handler: Callable[[StoredMessage], object],
        *,
        group: str = "default",
        concurrency: int = 1,
        stop: threading.Event | None = None,
        idle_timeout: float | None = None,
        **options: Any,
    ) -> int:
        """Call a function for each message, in `concurrency` threads; returns how many were handled.

        A message whose handler raises is retried after the backoff and finally becomes a dead letter; the messages
        before it in its batch are done. Ends like `consume`; Ctrl-C gives back what is not done.
        """
        if concurrency < 1:
            raise InvalidInput(f"concurrency is {concurrency} but must be at least 1")
        ending = stop or threading.Event()
        handled = [0] * concurrency
        failures: list[BaseException] = []

        def work(index: int) -> None:
            try:
                for batch in self.consume(queue, group, stop=ending, idle_timeout=idle_timeout, **options):
                    handled[index] += handle(batch, handler, ending)
            except BaseException as error:
                failures.append(error)
                ending.set()

        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(concurrency)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            ending.set()
            for thread in threads:
                thread.join()
            raise
        if failures:
            raise failures[0]
        return sum(handled)

    def sweep(self) -> group_calls.Sweep | None:
        """Do what time brings: expired leases, delays, backoffs. Consumers do this by themselves."""
        return self._database.run(group_calls.sweep())

    def _sweep(self) -> bool:
        return self._sweeping.did(self._database.run(group_calls.sweep(self._sweeping.since())))

    def _subscribe(self, queue: str, group: str, mode: str, subscription: str | datetime) -> None:
        """Create a group that is not just the default kind; whoever comes later takes it as it is."""
        if (mode, subscription) == ("ordered", "all") or (queue, group) in self._subscribed:
            return
        with suppress(AlreadyExists):
            self._database.run(group_calls.create_group(queue, group, mode, subscription, {}))
        self._subscribed.add((queue, group))


def handle(batch: Batch, handler: Callable[[StoredMessage], object], stop: threading.Event) -> int:
    """Call the handler for each message of a batch and settle it; returns how many were handled."""
    for index, message in enumerate(batch.messages):
        if stop.is_set() and len(batch.claims) == 1:
            with suppress(LeaseLost):
                if index:
                    batch.ack(up_to=message.offset)
                batch.release()
            return index
        try:
            handler(message)
        except Exception as error:
            with suppress(LeaseLost):
                batch.nack_message(message, error)
            return index
    with suppress(LeaseLost):
        batch.ack()
    return len(batch.messages)


def make_consumer_id() -> str:
    """Return a name under which operators find this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:6]}"
