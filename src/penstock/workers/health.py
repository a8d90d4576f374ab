"""The health of an action in this process: what a worker says of each item, and whether it may take more.

A worker makes one `ActionHealth` for each action that it runs, with the client that it takes items through. Calls are
additions under a lock; the client reports them beside its other work, in batches of a few seconds.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.consuming.breaker import BreakerSettings
from penstock.consuming.failures import describe
from penstock.consuming.reporting import Reports


class Reporting(Protocol):
    """A client of either kind, as far as this module needs it."""

    @property
    def reports(self) -> Reports:
        """What it counts and reports."""


class ActionHealth:
    """Counts the items of one action, as a context manager for as long as its loop runs."""

    def __init__(self, client: Reporting, queue: str, group: str, settings: Mapping[str, Any] | None = None) -> None:
        self._reports = client.reports
        self._reports.kind = "worker"
        self._tally = self._reports.tally(queue, group)
        if settings is not None:
            # Else they hold from the first report on.
            names = ("breaker_errors", "breaker_rate", "breaker_window", "breaker_pause", "breaker_pause_max")
            self._tally.breaker.settings = BreakerSettings(*(settings[name] for name in names))

    def __enter__(self) -> Self:
        self._reports.enter(self._tally.queue, self._tally.group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reports.leave(self._tally)

    @property
    def is_open(self) -> bool:
        """Whether the breaker of this process stops the action: give back what is claimed ahead."""
        return not self._tally.breaker.is_closed

    def admit(self) -> tuple[float, bool]:
        """Say for how many seconds nothing may be taken, and else whether it is one item alone, as a probe.

        Who gets a probe says with `probe=True` what came of it, or calls `no_probe`.
        """
        return self._tally.admit()

    def no_probe(self) -> None:
        """Give a probe back: there was nothing to take, or it was given back."""
        self._tally.no_probe()

    def took(self, count: int, waited: float | None = None) -> None:
        """Count a batch of items that was claimed; the first was pushed `waited` seconds ago."""
        self._tally.took(count, waited)

    def succeeded(self, seconds: float, *, count: int = 1, probe: bool = False) -> None:
        """Count items that were handled, in so many seconds together."""
        self._tally.handled(count, seconds, probe=probe)

    def failed(self, error: BaseException | str | None, seconds: float | None = None, *, probe: bool = False) -> None:
        """Count an item that failed."""
        said = describe(error) if isinstance(error, BaseException) else error
        self._tally.fail(said, probe=probe, seconds=seconds)
