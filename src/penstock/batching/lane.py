"""Concurrent operations of one type become one operation.

There is no fixed wait. An operation that comes while nothing is in flight goes at once, with whatever came in the same
turn of the event loop; what comes while a batch is in flight forms the next one. So a lone caller loses next to
nothing, and the more callers there are, the more of them share a round trip.

One failing operation never fails its neighbours: a batch that fails was rolled back as a whole, and is run again in
halves until the failing one is alone. And one that waits never holds up its neighbours: a batch of several gives up a
lock that it does not get soon, those concerned wait for it by themselves, and a batch that is overdue is no reason for
others to wait. Operations on the same thing (say, pushes to one partition) keep the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from penstock.broker.counters import Counters
from penstock.errors import LockTimeout, PenstockError, Unavailable

# How long a batch may be in flight before the next one starts beside it.
OVERDUE = 0.05
# How long a batch of several waits for a lock: longer than a commit, and less than a caller notices.
LOCK_TIMEOUT = 0.05
# How long a closing client waits for what is in flight.
_CLOSING = 5.0

O = TypeVar("O")  # noqa: E741
R = TypeVar("R")
_O = TypeVar("_O", contravariant=True)


class Alone(Exception):
    """The reply to an operation that must be run again, by itself. It goes to the lane and never to a caller.

    Of several with the same key one goes first; the others come after it, together.
    """

    def __init__(self, key: Hashable) -> None:
        super().__init__(key)
        self.key = key


class Joiner(Protocol[_O, R]):
    """How operations of one type are run together."""

    # Whether two operations on the same thing must not be in one batch.
    exclusive: bool
    # Whether an operation that finds nothing in flight runs in its caller's own task, which saves the cost of another
    # one. It is not for operations whose reply must be undone where the caller is gone: the caller's end would be the
    # operation's.
    direct: bool
    max_weight: int

    def keys(self, operation: _O) -> Iterable[Hashable]:
        """Return what an operation is on: what it may have to wait for."""

    def weight(self, operation: _O) -> int:
        """Return how much of a batch an operation takes up."""

    async def run(self, operations: Sequence[_O], lock_timeout: float | None) -> "Sequence[R | BaseException]":
        """Run some as one.

        Returns a reply or an error for each. What it raises concerns all, and then nothing was changed.
        """

    async def abandon(self, reply: R) -> None:
        """Undo a reply whose caller is gone, as far as that makes sense."""


class _Entry(Generic[O, R]):
    """An operation, and whoever waits for its reply."""

    __slots__ = ("keys", "operation", "reply")

    def __init__(self, operation: O, keys: Iterable[Hashable], reply: "asyncio.Future[R]") -> None:
        self.operation = operation
        self.keys = tuple(keys)
        self.reply = reply


class _InFlight:
    """A batch that is in flight, by what it is on."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()


class Lane(Generic[O, R]):
    """Gathers operations of one type and runs them together."""

    def __init__(self, name: str, joiner: Joiner[O, R], counters: Counters | None, most_in_flight: int) -> None:
        self._name = name
        self._joiner = joiner
        self._counters = counters
        self._most_in_flight = most_in_flight
        self._waiting: deque[_Entry[O, R]] = deque()
        self._current: _InFlight | None = None
        self._beside: set[_InFlight] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether something waits or is in flight."""
        return self._current is not None or bool(self._waiting or self._beside)

    async def submit(self, operation: O) -> R:
        """Run an operation, together with others where there are some.

        Whoever is cancelled before the operation is on its way has changed nothing. Later, it is run and its reply
        abandoned.
        """
        if self._closed:
            raise PenstockError("this client is closed; make a new one")
        if self._joiner.direct and self._current is None and not self._waiting and not self._beside:
            return await self._run_directly(operation)
        reply: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(operation, self._joiner.keys(operation), reply))
        self._start()
        try:
            return await reply
        except asyncio.CancelledError:
            # Answered, and then cancelled before the caller could see it.
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                self._spawn(self._joiner.abandon(reply.result()))
            raise

    async def close(self) -> None:
        """Take no more, and wait a moment for what is in flight."""
        self._closed = True
        while self._waiting:
            _fail([self._waiting.popleft()], PenstockError("the client was closed before this call was made"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self) -> None:
        if self._current is None and self._waiting and len(self._beside) < self._most_in_flight:
            self._current = _InFlight()
            self._spawn(self._run_next(self._current))

    async def _run_directly(self, operation: O) -> R:
        batch = self._current = _InFlight()
        batch.keys.update(self._joiner.keys(operation))
        overdue = asyncio.get_running_loop().call_later(OVERDUE, self._step_aside, batch)
        try:
            (reply,) = await self._joiner.run([operation], None)
        finally:
            overdue.cancel()
            self._ended(batch)
        self._count(1)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def _run_next(self, batch: _InFlight) -> None:
        # Gathered here and not when the first one came: those of the same turn of the loop go along.
        entries = self._gather()
        if not entries:
            # All that wait do so for batches beside this one, whose end starts the next.
            self._current = None
            return
        batch.keys.update(key for entry in entries for key in entry.keys)
        overdue = asyncio.get_running_loop().call_later(OVERDUE, self._step_aside, batch)
        try:
            # With one thing to wait for there is no neighbour.
            await self._run(entries, batch, LOCK_TIMEOUT if len(batch.keys) > 1 else None)
        finally:
            overdue.cancel()

    async def _run(self, entries: "list[_Entry[O, R]]", batch: _InFlight, lock_timeout: float | None) -> None:
        try:
            await self._serve(entries, lock_timeout)
        except asyncio.CancelledError:
            _fail(
                entries, PenstockError("the client was closed during this call, and whether it took effect is unknown")
            )
            raise
        except Exception as error:
            # Whatever went wrong here, nobody waits for ever.
            _fail(entries, error)
        finally:
            self._ended(batch)

    def _run_apart(self, entries: "list[_Entry[O, R]]") -> None:
        """Run some by themselves, however long it takes."""
        batch = _InFlight()
        batch.keys.update(key for entry in entries for key in entry.keys)
        self._beside.add(batch)
        self._spawn(self._run(entries, batch, None))

    def _step_aside(self, batch: _InFlight) -> None:
        """Let the next batch start beside one that is overdue."""
        if self._current is batch:
            self._current = None
            self._beside.add(batch)
            self._start()

    def _ended(self, batch: _InFlight) -> None:
        if self._current is batch:
            self._current = None
        self._beside.discard(batch)
        self._start()

    def _gather(self) -> "list[_Entry[O, R]]":
        """Take what may run now: not what batches beside us are at, nor what must stay behind such an operation."""
        busy: set[Hashable] = set()
        for other in self._beside:
            busy |= other.keys
        taken: list[_Entry[O, R]] = []
        kept: list[_Entry[O, R]] = []
        room = self._joiner.max_weight
        while self._waiting and room > 0:
            entry = self._waiting.popleft()
            if entry.reply.done():
                continue
            if busy.isdisjoint(entry.keys):
                room -= self._joiner.weight(entry.operation)
                taken.append(entry)
                if self._joiner.exclusive:
                    busy.update(entry.keys)
            else:
                kept.append(entry)
                busy.update(entry.keys)
        self._waiting.extendleft(reversed(kept))
        return taken

    async def _serve(self, entries: "list[_Entry[O, R]]", lock_timeout: float | None) -> None:
        try:
            replies = await self._joiner.run([entry.operation for entry in entries], lock_timeout)
        except Unavailable as error:
            # Whether it took effect is unknown, so it must not be run again.
            _fail(entries, error)
        except LockTimeout as error:
            if lock_timeout is None:
                _fail(entries, error)
            else:
                await self._serve_by_key(entries, lock_timeout)
        except Exception as error:
            if len(entries) == 1:
                _fail(entries, error)
            else:
                half = len(entries) // 2
                await self._serve(entries[:half], lock_timeout)
                await self._serve(entries[half:], lock_timeout)
        else:
            self._deliver(entries, replies)

    async def _serve_by_key(self, entries: "list[_Entry[O, R]]", lock_timeout: float) -> None:
        """Find out who waits for somebody's lock: those go on by themselves, and the others at once."""
        groups: dict[tuple[Hashable, ...], list[_Entry[O, R]]] = {}
        for entry in entries:
            groups.setdefault(entry.keys, []).append(entry)
        busy: set[Hashable] = set()
        for keys, group in groups.items():
            if not busy.isdisjoint(keys):
                # It comes behind one that waits, and after it.
                self._waiting.extendleft(reversed(group))
                continue
            try:
                replies = await self._joiner.run([entry.operation for entry in group], lock_timeout)
            except LockTimeout:
                busy.update(keys)
                self._run_apart(group)
            except Exception:
                await self._serve(group, None)
            else:
                self._deliver(group, replies)

    def _deliver(self, entries: "list[_Entry[O, R]]", replies: "Sequence[R | BaseException]") -> None:
        self._count(sum(not isinstance(reply, Alone) for reply in replies))
        apart: dict[Hashable, list[_Entry[O, R]]] = {}
        for entry, reply in zip(entries, replies, strict=True):
            if isinstance(reply, Alone):
                entry.keys = (reply.key,)
                apart.setdefault(reply.key, []).append(entry)
            elif isinstance(reply, BaseException):
                _fail([entry], reply)
            elif not entry.reply.done():
                entry.reply.set_result(reply)
            else:
                self._spawn(self._joiner.abandon(reply))
        for first, *others in apart.values():
            self._run_apart([first])
            self._waiting.extendleft(reversed(others))

    def _count(self, operations: int) -> None:
        if self._counters is not None:
            self._counters.batched(self._name, operations)


def _fail(entries: "Sequence[_Entry[Any, Any]]", error: BaseException) -> None:
    for entry in entries:
        if not entry.reply.done():
            entry.reply.set_exception(error)
