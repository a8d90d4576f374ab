# Generated from async_sweeps.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Fires due timers for the consumers of a synchronous client: beside them, and where one of them finds nothing."""

import logging
import threading
import time

from penstock.broker.counters import Counters
from penstock.broker.infos import SweepResult
from penstock.broker.operations.claiming import Sweep
from penstock.broker.transport import Transport
from penstock.consuming.outages import is_outage
from penstock.consuming.polling import Sweeping, sweep_failed
from penstock.consuming.threads import Sweeper
from penstock.consuming.waiting import WaitGroups
from penstock.errors import PenstockError

log = logging.getLogger("penstock.consumer")

# How many timers a sweep beside the consumers serves at once, and how long it waits for a connection.
_PORTION = 100
_PATIENCE = 2.0


class Sweeps:
    """The sweeps of one client, one at a time."""

    def __init__(self, transport: Transport, waits: WaitGroups, counters: Counters) -> None:
        self._transport = transport
        self._waits = waits
        self._counters = counters
        self._sweeper = Sweeper(waits.sweep_in, self._sweep_portion)
        waits.sweep_sooner = self._sweeper.wake
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self._sweeping = Sweeping()
        self._one = threading.Lock()
        self._sweeper.reset()

    def close(self) -> None:
        """Sweep no more."""
        self._sweeper.close()

    def ensure(self) -> None:
        """See to it that timers are served beside the consumers."""
        self._sweeper.ensure()

    @property
    def brought(self) -> int:
        """How many sweeps have brought work."""
        return self._sweeping.brought

    def sweep_all(self) -> SweepResult | None:
        """Fire due timers: expired leases, delays, backoffs."""
        with self._one:
            return self._run(Sweep(durable=False))

    def sweep(self) -> None:
        """Sweep, or wait for a sweep that is about to begin; others' timers must not keep this one from popping."""
        asked_at = time.monotonic()
        with self._one:
            if self._sweeping.began > asked_at:
                return
            try:
                self._sweeping.did(self._run(Sweep(self._sweeping.since(), durable=False)))
            except PenstockError as error:
                sweep_failed(error)

    def _sweep_portion(self) -> bool:
        """Serve some timers beside the consumers; say whether to go on. In an outage they find out by themselves."""
        with self._one:
            operation = Sweep(self._sweeping.since(), _PORTION, durable=False)
            try:
                self._sweeping.did(self._run(operation, _PATIENCE, retry=False))
            except PenstockError as error:
                if is_outage(error):
                    log.debug("no sweep, because the database cannot be used: %s", error)
                    return False
                sweep_failed(error)
        return True

    def _run(
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
