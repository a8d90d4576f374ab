"""The consumer processes of the demo: started, killed and stopped, and none is left behind."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from penstock.demo.worker import Report
from penstock.errors import PenstockError

_STOP_TIMEOUT = 10.0


class Consumer:
    """One consumer process, and what it has reported."""

    def __init__(self, dsn: str, queue: str, group: str, *flags: str) -> None:
        self.group = group
        self.reports: list[Report] = []
        self._expected = False
        # The process must import this very penstock, and a list of processes must not show the password.
        environment = {**os.environ, "PENSTOCK_URL": dsn, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.demo.worker", queue, group, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C must reach this process only, which then stops the others.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Kill it with SIGKILL, as the kernel does when memory runs out."""
        self._expected = True
        self.process.kill()
        self._finish()

    def stop(self) -> None:
        """Ask it to stop."""
        self._expected = True
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def end(self) -> None:
        """Stop it, and wait until it has ended."""
        self.stop()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._finish()

    def require_alive(self) -> None:
        """Raise if it has ended unexpectedly."""
        if not self._expected and self.process.poll() is not None:
            raise PenstockError(
                f"a consumer of the demo exited unexpectedly with code {self.process.returncode}; see its output above"
            )

    def _read(self) -> None:
        for line in self.process.stdout or ():
            # The last line of one that was killed may be cut short.
            with suppress(msgspec.DecodeError):
                self.reports.append(msgspec.json.decode(line, type=Report))

    def _finish(self) -> None:
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Processes:
    """All consumer processes; they end with the block, however it ends."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.consumers: list[Consumer] = []

    def start(self, queue: str, group: str, *flags: str) -> Consumer:
        """Start a consumer."""
        consumer = Consumer(self._dsn, queue, group, *flags)
        self.consumers.append(consumer)
        return consumer

    def require_alive(self) -> None:
        """Raise if one has ended unexpectedly."""
        for consumer in self.consumers:
            consumer.require_alive()

    def stop(self) -> None:
        """Stop all of them, and wait for their last reports."""
        for consumer in self.consumers:
            consumer.stop()
        for consumer in self.consumers:
            consumer.end()

    def reports(self, group: str) -> list[Report]:
        """Return what the consumers of a group have reported, in the order in which it happened."""
        reports = [report for consumer in self.consumers if consumer.group == group for report in consumer.reports]
        return sorted(reports, key=lambda report: report.at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for consumer in self.consumers:
                consumer.process.kill()
        self.stop()
