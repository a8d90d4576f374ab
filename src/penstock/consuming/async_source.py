"""What a feeder claims, settles and renews through: the consumer of a client."""

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.broker.claims import AckedAndPopped, Claim, ClaimRange
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.operation import Operation
from penstock.consuming.outages import Outage
from penstock.consuming.waiting import WaitGroups


class AsyncSource(Protocol):
    """What a feeder claims through: a consumer."""

    pending_check: bool

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with the same client."""

    async def claim(self, wanted: Pop, done: Sequence[ClaimRange], outage: Outage) -> AckedAndPopped:
        """Acknowledge and pop, in one call."""

    async def settle(self, operation: Operation[Any], within: float | None = None) -> Any:
        """Run what settles claims, waiting so long for a connection."""

    async def begin(self, claims: Sequence[Claim], lease: float | None = None) -> list[bool]:
        """Say that what was claimed ahead is handled from now on; for each, whether it may be."""

    async def has_pending(self, wanted: Pop, outage: Outage) -> bool:
        """Ask whether a pop could get something."""

    async def sweep_brought(self) -> bool:
        """Serve timers, and say whether that brought work."""
