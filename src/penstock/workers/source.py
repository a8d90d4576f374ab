"""What a lane claims and settles through: the consumer of a client."""

from collections.abc import Sequence
from typing import Any

from penstock.broker.claims import Claim
from penstock.broker.items import SettledItems
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.log import GetSpread
from penstock.broker.operations.operation import Operation
from penstock.client.async_client import AsyncClient
from penstock.client.pushes import Spreads
from penstock.consuming.outages import Outage
from penstock.consuming.waiting import WaitGroups


class Source:
    """Runs the operations of one lane."""

    def __init__(self, client: AsyncClient) -> None:
        self._transport = client._transport
        self._consumer = client._consumer
        self._wakes = client._wakes
        self._spreads: Spreads = client._spreads
        self._reports = client.reports

    @property
    def waits(self) -> WaitGroups:
        """Those who wait for messages with the same client."""
        return self._consumer.waits

    @property
    def pending_check(self) -> bool:
        """Whether to ask if something is pending before a pop."""
        return self._consumer.pending_check

    def listen(self) -> None:
        """Hear of pushes."""
        self._wakes.listen()

    def remember(self, group: CreateGroup) -> None:
        """Take note how to create a group, should somebody delete it."""
        self._consumer.remember_group(group)

    async def pop(self, wanted: Pop, outage: Outage) -> list[Claim]:
        """Claim what is next."""
        return (await self._consumer.claim(wanted, (), outage)).claims

    async def settle_items(self, operation: SettleItems, outage: Outage) -> SettledItems:
        """Settle items and claim what is next, in one call."""
        reply = await self._consumer.settle_items(operation, outage)
        if operation.outputs:
            self._wakes.pushed([output.push.place for output in operation.outputs])
            for output in operation.outputs:
                self._reports.pushed(output.push.place.queue, output.push.count)
        if operation.results:
            self._wakes.kept_results()
        return reply

    async def begin(self, claims: Sequence[Claim]) -> list[bool]:
        """Say that what was claimed ahead is handled from now on; for each, whether it may be."""
        return await self._consumer.begin(claims)

    async def has_pending(self, wanted: Pop, outage: Outage) -> bool:
        """Ask whether a pop could get something."""
        return await self._consumer.has_pending(wanted, outage)

    async def settle(self, operation: Operation[Any]) -> Any:
        """Run what renews or gives back claims."""
        return await self._consumer.settle(operation)

    async def run(self, operation: Operation[Any]) -> Any:
        """Run any other operation."""
        return await self._transport.run(operation)

    async def spread(self, queue: str) -> int:
        """Return over how many partitions the keys of a queue are spread."""
        known = self._spreads.get(queue)
        return known or self._spreads.put(queue, await self._transport.run(GetSpread(queue)))
