"""Where items keep their checkpoints and steps: in the database, each write only while the lease is live."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.items import ItemNote, ItemNotes
from penstock.broker.operations.items import NoteItems, ReadNotes, SaveStep
from penstock.errors import LeaseLost
from penstock.workers.items import Item
from penstock.workers.source import Source

T = TypeVar("T")


class AsyncMemory:
    """For handlers in the event loop."""

    is_async = True

    def __init__(self, source: Source) -> None:
        self._source = source

    async def load_steps(self, item: Item) -> dict[str, bytes]:
        """Return the results of the steps that are done, as JSON by name."""
        return dict((await self._notes(item)).steps)

    async def save_step(self, item: Item, name: str, result: bytes) -> bytes:
        """Remember the result of a step; return the one that is kept."""
        kept = await self._source.run(SaveStep(item.claim.claim.lease, item.offset, name, result))
        if kept is None:
            raise lost(item)
        return bytes(kept)

    async def load_checkpoint(self, item: Item) -> bytes | None:
        """Return the JSON of the last checkpoint."""
        return (await self._notes(item)).checkpoint

    async def save_checkpoint(self, item: Item, value: bytes) -> None:
        """Remember a checkpoint and the progress."""
        note = ItemNote(item.claim.claim.lease, item.offset, item.percent, item.text, value)
        (noted,) = await self._source.run(NoteItems([note]))
        if not noted:
            raise lost(item)

    async def _notes(self, item: Item) -> ItemNotes:
        found: ItemNotes | None = await self._source.run(ReadNotes(item.claim.claim.lease, item.offset))
        if found is None:
            raise lost(item)
        if found.steps or found.checkpoint is not None or found.progress is not None:
            # Of an earlier attempt: they go when the item is done.
            item.noted = True
        return found

    def progressed(self, item: Item) -> None:
        """Do nothing: who reports running tasks looks at the item."""


class ThreadMemory:
    """The same for handlers in threads, which wait for the event loop."""

    is_async = False

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory
        self._loop = asyncio.get_running_loop()

    def load_steps(self, item: Item) -> dict[str, bytes]:
        """Return the results of the steps that are done."""
        return self._wait(self._memory.load_steps(item))

    def save_step(self, item: Item, name: str, result: bytes) -> bytes:
        """Remember the result of a step; return the one that is kept."""
        return self._wait(self._memory.save_step(item, name, result))

    def load_checkpoint(self, item: Item) -> bytes | None:
        """Return the JSON of the last checkpoint."""
        return self._wait(self._memory.load_checkpoint(item))

    def save_checkpoint(self, item: Item, value: bytes) -> None:
        """Remember a checkpoint and the progress."""
        self._wait(self._memory.save_checkpoint(item, value))

    def progressed(self, item: Item) -> None:
        """Do nothing: who reports running tasks looks at the item."""

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def lost(item: Item) -> LeaseLost:
    """Return what a handler gets that wants something remembered of an item that somebody else may have by now."""
    return LeaseLost(f"the lease of {item!r} is lost, so nothing was remembered; it is delivered again")
