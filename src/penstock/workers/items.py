"""What a handler gets: one message of its queue, and what it may do while it has it."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from penstock import tracing
from penstock.broker.arguments import storable
from penstock.broker.messages import StoredMessage, encode
from penstock.broker.names import check_step
from penstock.errors import InvalidInput
from penstock.workers.outcomes import Discard, Outcome, Snooze

# The headers of what an action pushed: the message that entered the flow, the item it was made from, and the queue
# where the flow was entered.
DID, PARENT, SOURCE = "penstock-did", "penstock-parent", "penstock-source"
_NOTHING: Any = object()
# What the lock to load steps goes by, which is the name of none.
_LOADING = ""
# What is kept of the text of a progress: it is for a line on a screen, and is written with those of other items.
_LONGEST_TEXT = 2000


class Memory(Protocol):
    """Where an item's checkpoint and steps are kept. Each method returns its answer, or something that awaits it."""

    is_async: bool

    def load_steps(self, item: "Item") -> Any:
        """Return the results of the steps that are done, as JSON by name."""

    def save_step(self, item: "Item", name: str, result: bytes) -> Any:
        """Remember the result of a step, if the lease is live; return the one that is kept."""

    def load_checkpoint(self, item: "Item") -> Any:
        """Return the JSON of the last checkpoint, None where there is none."""

    def save_checkpoint(self, item: "Item", value: bytes) -> Any:
        """Remember a checkpoint and the progress, if the lease is live."""

    def progressed(self, item: "Item") -> None:
        """Take note of how far the handler is."""


class Place:
    """What all items of an action have in common."""

    __slots__ = ("action", "flow", "memory")

    def __init__(self, flow: str, action: str, memory: Memory) -> None:
        self.flow = flow
        self.action = action
        self.memory = memory


class Item:
    """One message that an action handles."""

    __slots__ = ("_locks", "_message", "_place", "_steps", "_trace", "cancelled", "claim", "noted", "percent", "text")

    def __init__(self, message: StoredMessage, place: Place, claim: Any) -> None:
        self._message = message
        self._place = place
        self._steps: dict[str, bytes] | None = None
        # One for each step, by name, and one to load them: a handler may have threads or tasks of its own.
        self._locks: dict[str, Any] = {}
        self._trace: dict[str, str] | None = None
        self.claim = claim
        # Whether somebody cancelled it, or its lease is lost, while the handler runs: it should end soon.
        self.cancelled = False
        self.percent: float | None = None
        self.text: str | None = None
        # Whether notes or steps of it may be stored: an earlier attempt may have left some that this one never reads.
        self.noted = message.attempt > 1

    def __repr__(self) -> str:
        message = self._message
        return f"<Item {message.offset} of {message.queue}/{message.partition} for {self.flow}.{self.action}>"

    @property
    def flow(self) -> str:
        """The flow of the action."""
        return self._place.flow

    @property
    def action(self) -> str:
        """The name of the action."""
        return self._place.action

    @property
    def id(self) -> UUID:
        """The id of the message."""
        return self._message.id

    @property
    def did(self) -> UUID:
        """The id of the message that entered the flow; of one that no action pushed, its own."""
        given = (self._message.headers or {}).get(DID)
        try:
            return self._message.id if given is None else UUID(given)
        except ValueError:
            return self._message.id

    @property
    def trace(self) -> dict[str, str]:
        """The headers that join what the handler pushes to the trace of this item."""
        if self._trace is None:
            headers = self._message.headers or {}
            return {name: headers[name] for name in tracing.PASSED_ON if name in headers}
        return self._trace

    @property
    def data_source(self) -> str:
        """The queue where the flow was entered."""
        message = self._message
        return (message.headers or {}).get(SOURCE, message.queue)

    @property
    def queue(self) -> str:
        """The queue of the message."""
        return self._message.queue

    @property
    def partition(self) -> str:
        """The partition of the message."""
        return self._message.partition

    @property
    def offset(self) -> int:
        """The offset of the message in its partition."""
        return self._message.offset

    @property
    def key(self) -> str | None:
        """The key of the message."""
        return self._message.key

    @property
    def headers(self) -> dict[str, str] | None:
        """The headers of the message."""
        return self._message.headers

    @property
    def payload(self) -> bytes | None:
        """The value of the message, as bytes."""
        return self._message.value

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A snooze, and a worker that is stopped, count none."""
        return self._message.attempt

    @property
    def queued_at(self) -> datetime:
        """When the message was pushed."""
        return self._message.timestamp

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Run the handler in spans of its own, and remember their context for what it pushes."""
        name = f"{self.flow}.{self.action}"
        put_off: Outcome | None = None
        with tracing.handling(self._message, name, name):
            self._trace = dict(tracing.with_context(None) or {})
            try:
                yield
            except (Snooze, Discard) as outcome:
                # No error of the handler: not one of its span, either.
                put_off = outcome
        if put_off is not None:
            raise put_off

    def json(self) -> Any:
        """Return the value decoded from JSON; None where it is null."""
        return self._message.json()

    def progress(self, percent: float, text: str | None = None) -> None:
        """Say how far it is, for operators: `penstock tasks` shows it within a few seconds. Costs no call."""
        if not isinstance(percent, int | float) or not 0 <= percent <= 100:
            raise InvalidInput(f"progress is {percent!r} but must be from 0 to 100")
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"the text of a progress is {text!r:.100} but must be a text")
        self.percent = float(percent)
        self.text = None if text is None else storable(text[:_LONGEST_TEXT])
        self._place.memory.progressed(self)

    def checkpoint(self, value: Any = _NOTHING) -> Any:
        """Remember a JSON value over attempts; without a value, return the one remembered last, or None.

        In an asynchronous handler, await it.
        """
        memory = self._place.memory
        if value is _NOTHING:
            found = memory.load_checkpoint(self)
            return _then(found, _decoded) if memory.is_async else _decoded(found)
        encoded = encode(value)
        if not isinstance(encoded, bytes):
            encoded = b"null"
        self.noted = True
        return memory.save_checkpoint(self, encoded)

    def step(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function once, and remember its JSON result: a later attempt gets that and calls nothing.

        So does whoever asks for the same step meanwhile. In an asynchronous handler, await it; the function may then be
        a coroutine function.
        """
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"a step needs a name, and {name!r} is none")
        # Before it is called: what cannot be remembered must not happen.
        check_step(name)
        if self._place.memory.is_async:
            return self._async_step(name, function, arguments, named)
        with self._locks.setdefault(_LOADING, threading.RLock()):
            if self._steps is None:
                self._steps = self._place.memory.load_steps(self)
        steps: dict[str, bytes] = self._steps
        with self._locks.setdefault(name, threading.RLock()):
            if name not in steps:
                value = function(*arguments, **named)
                if inspect.isawaitable(value):
                    raise InvalidInput(f"step {name} is asynchronous: its action must be so, too")
                encoded = _json(value)
                self.noted = True
                steps[name] = self._place.memory.save_step(self, name, encoded)
        return msgspec.json.decode(steps[name])

    async def _async_step(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        async with self._locks.setdefault(_LOADING, asyncio.Lock()):
            if self._steps is None:
                self._steps = await self._place.memory.load_steps(self)
        steps: dict[str, bytes] = self._steps
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in steps:
                value = function(*arguments, **named)
                if inspect.isawaitable(value):
                    value = await value
                encoded = _json(value)
                self.noted = True
                # The step is done: a cancellation must not make it forgotten.
                saving = asyncio.ensure_future(self._place.memory.save_step(self, name, encoded))
                steps[name] = await asyncio.shield(saving)
        return msgspec.json.decode(steps[name])

    def sleep_until(self, moment: datetime) -> None:
        """Give the item back until a moment, without counting an attempt; does nothing when it has passed.

        The handler is called anew then: what it did before belongs in steps.
        """
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise InvalidInput(f"{moment!r} is not a datetime with a time zone; say datetime(…, tzinfo=UTC)")
        left = (moment - datetime.now(UTC)).total_seconds()
        if left > 0:
            raise Snooze(left)


def _json(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidInput("the result of a step must be a JSON value, not bytes")
    encoded = encode(value)
    return b"null" if encoded is None else encoded


def _decoded(found: bytes | None) -> Any:
    return None if found is None else msgspec.json.decode(found)


async def _then(found: Awaitable[Any], read: Callable[[Any], Any]) -> Any:
    return read(await found)
