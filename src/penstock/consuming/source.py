# Generated from async_source.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""What a feeder claims, settles and renews through: the consumer of a client."""

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.broker.claims import AckedAndPopped, Claim, ClaimRange
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.operation import Operation
from penstock.consuming.outages import Outage
from penstock.consuming.waiting import WaitGroups


class Source(Protocol):
    """What a feeder claims through: a consumer."""

    pending_check: bool

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with the same client."""

    def claim(self, wanted: Pop, done: Sequence[ClaimRange], outage: Outage) -> AckedAndPopped:
        """Acknowledge and pop, in one call."""

    def settle(self, operation: Operation[Any], within: float | None = None) -> Any:
        """Run what settles claims, waiting so long for a connection."""

    def begin(self, claims: Sequence[Claim], lease: float | None = None) -> list[bool]:
        """Say that what was claimed ahead is handled from now on; for each, whether it may be."""

    def has_pending(self, wanted: Pop, outage: Outage) -> bool:
        """Ask whether a pop could get something."""

    def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""
