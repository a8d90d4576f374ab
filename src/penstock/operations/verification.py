"""State against log: run every check of the server, and repair the ready list after a restore."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.infos import Check
    from penstock.client.client import Client


@dataclass(frozen=True)
class Verification:
    """What every check found; each counts its violations."""

    checks: "tuple[Check, ...]"

    @property
    def passed(self) -> bool:
        """Whether no check found a violation."""
        return not any(check.violations for check in self.checks)


def verify(client: "Client") -> Verification:
    """Compare the state of all queues and groups with the log."""
    return Verification(tuple(client.verify()))
