"""The part of an asynchronous client that an operator uses: groups, claims, dead letters, archives, flows."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.broker.archives import ArchiveInfo
from penstock.broker.arguments import as_text
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import Lease
from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.infos import (
    Check,
    ClaimInfo,
    DeadLetter,
    DeadReason,
    GroupInfo,
    SeekResult,
    Transition,
)
from penstock.broker.operations.archives import ListArchives
from penstock.broker.operations.claiming import Release
from penstock.broker.operations.flows import ForgetFlow, ListActions, ListFlows, PauseFlow
from penstock.broker.operations.groups import (
    ConfigureGroup,
    CountDeadLetters,
    CreateGroup,
    DeleteGroup,
    Discard,
    GetHistory,
    GetLag,
    ListClaims,
    ListDeadLetters,
    ListGroups,
    Redrive,
    Resync,
    Seek,
    Verify,
)
from penstock.broker.operations.log import ConfigureDatabase
from penstock.broker.operations.operation import Operation
from penstock.client.seeking import SeekTotal

# Dead letters are redriven and discarded in transactions of this many.
_CHUNK = 1000


class AsyncOperator:
    """The part of a client that looks at groups and changes them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def configure_database(self, *, create_on_first_use: bool | None = None) -> dict[str, Any]:
        """Change what holds for the whole database, and return it; without arguments, only return it.

        With `create_on_first_use=False` no push, pop or configure makes a queue, and no pop a group.
        """
        return await self._transport.run(ConfigureDatabase(create_on_first_use))

    async def groups(self, queue: str | None = None) -> list[GroupInfo]:
        """Describe the groups of a queue, or of all queues."""
        return await self._transport.run(ListGroups(queue))

    async def create_group(
        self,
        queue: str,
        group: str,
        *,
        mode: str = "ordered",
        subscription: str | datetime = "all",
        **settings: Any,
    ) -> None:
        """Create a group; raises AlreadyExists. A pop creates one too, with defaults."""
        await self._transport.run(CreateGroup.reading(queue, group, mode, subscription, settings))

    async def configure_group(self, queue: str, group: str, **settings: Any) -> dict[str, Any]:
        """Override settings of the queue for one group (None: the queue's again); returns what now holds."""
        return await self._transport.run(ConfigureGroup(queue, group, settings))

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group with its positions and dead letters."""
        await self._transport.run(DeleteGroup(queue, group))

    async def lag(self, queue: str, group: str = "default") -> int:
        """Return how many messages a group has still to acknowledge."""
        return await self._transport.run(GetLag(queue, group))

    async def seek(
        self,
        queue: str,
        group: str,
        to: int | str | datetime,
        *,
        partition: str | None = None,
        preview: bool = False,
        progress: Callable[[SeekResult], None] | None = None,
    ) -> SeekResult:
        """Move a group to 'earliest', 'latest', an offset or a time; `preview` only says what that would do.

        Goes through the partitions in chunks beside live traffic; claims that are held there lose their lease.
        """
        total = SeekTotal()
        while (after := total.next_chunk()) is not None:
            chunk = await self._transport.run(Seek.to(queue, group, to, partition, preview, after))
            total.add(chunk)
            if progress is not None:
                progress(total.so_far())
        return total.so_far()

    async def claims(self, queue: str | None = None, group: str | None = None) -> list[ClaimInfo]:
        """List the claims that are held now, the one that ends first at the front."""
        return await self._transport.run(ListClaims(queue, group))

    async def release_claim(self, claim: ClaimInfo) -> bool:
        """Take a claim away from whoever holds it; its messages are delivered again at once."""
        lease = claim.lease_id if claim.shared else None
        return await self._transport.run(Release(Lease(claim.group_id, claim.partition_id, lease)))

    async def history(self, queue: str, group: str, partition: str, *, limit: int = 100) -> list[Transition]:
        """Tell what happened to a partition in a group, newest first."""
        return await self._transport.run(GetHistory(queue, group, as_text(partition), limit))

    async def dead_letters(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """List dead letters, oldest first; `after` is the last id of the page before."""
        return await self._transport.run(ListDeadLetters(queue, group, reason, after, limit))

    async def dead_reasons(self, queue: str, group: str | None = None) -> list[DeadReason]:
        """Count dead letters by reason."""
        return await self._transport.run(CountDeadLetters(queue, group))

    async def redrive(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        ids: list[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Deliver dead letters again, to the group that failed and to no other; returns how many."""
        return await self._in_chunks(Redrive(queue, group, reason, ids, _CHUNK), progress)

    async def discard(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        ids: list[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Throw dead letters away; returns how many."""
        return await self._in_chunks(Discard(queue, group, reason, ids, _CHUNK), progress)

    async def verify(self) -> list[Check]:
        """Compare state and log; every count must be 0."""
        return await self._transport.run(Verify())

    async def resync(self) -> int:
        """Repair readiness after a restore; harmless at any time. Returns how much was repaired."""
        repaired, after = 0, 0
        while True:
            chunk = await self._transport.run(Resync(after))
            repaired += chunk.repaired
            if chunk.next_partition is None:
                return repaired
            after = chunk.next_partition

    async def _in_chunks(self, operation: Operation[int], progress: Callable[[int], None] | None) -> int:
        total = 0
        while done := await self._transport.run(operation):
            total += done
            if progress is not None:
                progress(total)
        return total

    async def archives(self, queue: str | None = None) -> list[ArchiveInfo]:
        """List what is archived of a queue, or of all: the runs of `penstock archive`, the oldest first."""
        return await self._transport.run(ListArchives(queue))

    async def flows(self) -> list[FlowInfo]:
        """Describe the flows and their status."""
        return await self._transport.run(ListFlows())

    async def actions(self, flow: str | None = None) -> list[ActionInfo]:
        """List the actions of a flow, or of all flows: the registry."""
        return await self._transport.run(ListActions(flow))

    async def pause_flow(self, flow: str) -> None:
        """Pause a flow, wherever it runs; what it has not published it reads again when it goes on."""
        await self._transport.run(PauseFlow(flow, True))

    async def resume_flow(self, flow: str) -> None:
        """Let a paused flow go on."""
        await self._transport.run(PauseFlow(flow, False))

    async def forget_flow(self, flow: str) -> None:
        """Remove a flow that no longer runs from the registry; its queues, groups and dead letters stay."""
        await self._transport.run(ForgetFlow(flow))
