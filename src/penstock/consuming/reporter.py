# Generated from async_reporter.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Reports for the consumers of a synchronous client: their health, what they counted, samples of what waits."""

import logging
from weakref import WeakMethod

from penstock.broker.operations.metrics import Sample
from penstock.broker.operations.rules import RunRules
from penstock.broker.transport import Transport
from penstock.consuming.reporting import SAMPLE, Reports
from penstock.consuming.threads import Sweeper
from penstock.errors import PenstockError, SetupError

log = logging.getLogger("penstock.consumer")

# How long a report waits for a connection.
_PATIENCE = 1.0


class Reporter:
    """Sends the reports of one client, in the background. What does not arrive comes later."""

    def __init__(self, transport: Transport, reports: Reports, consumer_id: str) -> None:
        self._transport = transport
        self._reports = reports
        self._consumer_id = consumer_id
        # The background must not keep a client alive that nobody closed.
        known = WeakMethod(self._report)

        def report() -> bool:
            send = known()
            return send is not None and send()

        self._sender = Sweeper(reports.due_in, report, "penstock-reporter")
        reports.begin, reports.wake = self._sender.ensure, self._sender.wake

    def reset(self, consumer_id: str) -> None:
        """Begin anew, in a process that was forked."""
        self._consumer_id = consumer_id
        self._reports.reset()
        self._sender.reset()

    def close(self) -> None:
        """Send what is left."""
        self._sender.close()
        self._report(ending=True)

    def _report(self, *, ending: bool = False) -> bool:
        """Report what is due; say whether to go on."""
        report = self._reports.report(self._consumer_id, ending=ending)
        if report is not None:
            try:
                self._reports.reported(report, self._transport.run(report, _PATIENCE, retry=False))
            except PenstockError as error:
                log.debug("no report of this consumer's health: %s", error)
                # A schema of before has no place for it.
                self._reports.enabled = not isinstance(error, SetupError)
        record = self._reports.metrics(ending=ending)
        if record is not None:
            try:
                self._transport.run(record, _PATIENCE, retry=False)
            except PenstockError as error:
                log.debug("no record of what this client counted: %s", error)
                self._reports.enabled = not isinstance(error, SetupError)
            # Also of what may not have arrived: a value that is counted twice is worse than one that is missing.
            self._reports.recorded(record)
        if not ending and self._reports.sampling():
            try:
                step = self._transport.run(Sample(min_age=SAMPLE), _PATIENCE, retry=False)
                self._reports.sampled(step)
                if step is not None and step.complete:
                    self._transport.run(RunRules(), _PATIENCE, retry=False)
            except PenstockError as error:
                log.debug("no sample of what waits, or no rules for dead letters: %s", error)
        return self._reports.enabled
