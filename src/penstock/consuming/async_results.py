"""Waiting for the result of a message: a look now and then, and at once when somebody says that results were kept."""

from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.arguments import patience
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.items import KeptResult
from penstock.broker.operations.items import GetResult
from penstock.consuming.tasks import Signal
from penstock.consuming.waiting import Key, Step, WaitGroups
from penstock.consuming.wakes import RESULTS, Wakes
from penstock.errors import Cancelled, HandlerFailed, MessageTooLarge, NotFound, PenstockError, TimedOut

# What a message is to a group that will not handle it any more.
_ENDED = ("done", "dead", "cancelled", "dropped")


class AsyncResults:
    """The results of messages, as one client waits for them."""

    def __init__(self, transport: AsyncTransport, waits: WaitGroups, wakes: Wakes) -> None:
        self._transport = transport
        self._waits = waits
        self._wakes = wakes

    async def wait(self, message_id: UUID, group: str | None, timeout: float | None) -> Any:  # noqa: ASYNC109
        """Return what a handler returned, or raise what it raised; with no timeout, however long that takes."""
        wanted = GetResult(message_id, group)
        within = patience("timeout", timeout)
        await self._transport.open()
        self._wakes.listen()
        signal = Signal()
        deadline = self._waits.now() + (float("inf") if within is None else within)
        waiter = self._waits.enter(Key(RESULTS, str(message_id), group or ""), deadline, signal.give)
        found: list[KeptResult] = []
        try:
            while True:
                step, seconds = self._waits.step(waiter, pending_check=False)
                match step:
                    case Step.POP | Step.CHECK:
                        began = self._waits.now()
                        found = await self._transport.run(wanted)
                        if (result := _ended(found)) is not None:
                            return _value(message_id, result)
                        self._waits.checked(waiter, began, pending=False)
                    case Step.SLEEP:
                        await signal.wait(seconds, None)
                    case Step.OVER:
                        raise TimedOut(_too_late(message_id, within, found))
        finally:
            self._waits.leave(waiter)


def _ended(found: list[KeptResult]) -> KeptResult | None:
    """Return the result, or what says that there will be none."""
    for each in found:
        if each.kept:
            return each
    return found[0] if found and all(each.state in _ENDED for each in found) else None


def _value(message_id: UUID, result: KeptResult) -> Any:
    match result.state:
        case "returned":
            return None if result.value is None else msgspec.json.decode(result.value)
        case "returned bytes":
            return result.value
        case "discarded":
            return None
        case "raised" | "dead":
            raise HandlerFailed(result.error or f"the handler of message {message_id} failed")
        case "cancelled":
            raise Cancelled(f"message {message_id} was cancelled")
        case "too large":
            raise MessageTooLarge(f"what the handler of message {message_id} returned has more than 1000000 bytes")
        case "done":
            raise NotFound(
                f"message {message_id} is done, and no result is kept: push it with result=True, and ask in time"
            )
        case "dropped":
            raise NotFound(f"message {message_id} was dropped by retention before group {result.group!r} had it")
        case _:
            raise PenstockError(
                f"the result of message {message_id} is {result.state!r}, which this version does not know"
            )


def _too_late(message_id: UUID, within: float | None, found: list[KeptResult]) -> str:
    states = ", ".join(f"{each.state} in group {each.group!r}" for each in found) or "known to no group"
    return f"message {message_id} has no result after {within:g} seconds: it is {states}"
