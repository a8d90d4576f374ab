"""The consumers of the demo as seen from here: real processes, none of which is left behind."""

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

_FAREWELL = 10.0


class Member:
    """One consumer process, and what it has reported."""

    def __init__(self, dsn: str, queue: str, group: str, *flags: str) -> None:
        self.group = group
        self.reports: list[Report] = []
        self._expected = False
        # The process must find this very penstock; and the password is nobody's business who lists processes.
        environment = {**os.environ, "PENSTOCK_URL": dsn, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.demo.worker", queue, group, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C is for us, who then end it.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """End it as the kernel does when memory runs out: it can do nothing about it."""
        self._expected = True
        self.process.kill()
        self._finish()

    def dismiss(self) -> None:
        """Ask it to end."""
        self._expected = True
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def end(self) -> None:
        """See to it that it has ended."""
        self.dismiss()
        try:
            self.process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._finish()

    def require_alive(self) -> None:
        """Say so when it has ended, and should not have."""
        if not self._expected and self.process.poll() is not None:
            raise PenstockError(
                f"a consumer of the demo ended by itself, with exit code {self.process.returncode}; it says why above"
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


class Crew:
    """All consumer processes; they end with the block, however it ends."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.members: list[Member] = []

    def hire(self, queue: str, group: str, *flags: str) -> Member:
        """Start a consumer."""
        member = Member(self._dsn, queue, group, *flags)
        self.members.append(member)
        return member

    def require_alive(self) -> None:
        """Say so when one has ended that should not have."""
        for member in self.members:
            member.require_alive()

    def dismiss(self) -> None:
        """End all of them, and wait for their last words."""
        for member in self.members:
            member.dismiss()
        for member in self.members:
            member.end()

    def reports(self, group: str) -> list[Report]:
        """Return what the consumers of a group have reported, in the order in which it happened."""
        reports = [report for member in self.members if member.group == group for report in member.reports]
        return sorted(reports, key=lambda report: report.at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for member in self.members:
                member.process.kill()
        self.dismiss()
