"""What a client knows of single messages: their state, their result, and how to cancel them."""

from typing import Any
from uuid import UUID

from penstock.broker.arguments import Seconds, patience
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.ids import parse_id
from penstock.broker.infos import MessageState
from penstock.broker.operations.items import CancelMessages, GetState
from penstock.broker.operations.pushing import CancelScheduled
from penstock.consuming.async_results import AsyncResults
from penstock.errors import NotFound


class AsyncItems:
    """The calls about single messages; the clients inherit them."""

    _transport: AsyncTransport
    _results: AsyncResults

    async def state(self, message_id: UUID | str) -> list[MessageState]:
        """Return what a message is to each group of its queue; see `MessageState`.

        A group that began after the message is not among them. It reads positions, and costs the same however much is
        stored.
        """
        found = await self._transport.run(GetState(parse_id(message_id)))
        if found is None:
            raise NotFound(f"there is no message {message_id}")
        return found

    async def result(
        self,
        message_id: UUID | str,
        *,
        group: str | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for what the handler of a message returned, which was pushed with `result`.

        Raises `HandlerFailed` with what it raised at the last attempt, `Cancelled` for a message that was cancelled,
        and `TimedOut` when there is no result within `timeout` seconds. Where several groups handle the message, the
        first result counts, or that of `group`.
        """
        return await self._results.wait(parse_id(message_id), group, patience("timeout", timeout))

    async def cancel(self, *ids: int | UUID | str, group: str | None = None) -> list[int | UUID]:
        """Cancel what is scheduled, by the ids of `PushResult.scheduled`, or messages, by theirs.

        Returns the ids for which it was in time. What was scheduled is never delivered, and of a message that waits the
        same holds; an action that works on it is told. For the others it was too late: they are done, or were cancelled
        before. Messages are cancelled for all groups of their queue, or for `group`.
        """
        scheduled = [each for each in ids if isinstance(each, int)]
        messages = [parse_id(each) for each in ids if not isinstance(each, int)]
        unscheduled: list[int] = []
        cancelled: list[UUID] = []
        if scheduled or not ids:
            unscheduled = await self._transport.run(CancelScheduled(scheduled))
        if messages:
            cancelled = await self._transport.run(CancelMessages(messages, group))
        return [*unscheduled, *cancelled]
