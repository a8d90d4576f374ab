"""Concurrent calls become one call of the database.

There is no fixed wait. A call that comes while nothing is under way goes at once, with whatever came in the same turn
of the event loop; what comes while a flight is under way forms the next one. So a lone caller loses next to nothing,
and the more callers there are, the more of them share a round trip.

One failing call never fails its neighbours: a flight that fails was rolled back as a whole, and is flown again in
halves until the guilty one is alone. And one that waits never holds up its neighbours: a flight of several gives up a
lock that it does not get soon, those concerned wait for it by themselves, and a flight that is overdue is no reason for
others to wait. Calls on the same thing (say, pushes to one partition) keep the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from penstock.broker.counters import Counters
from penstock.errors import PenstockError, Unavailable
from penstock.postgres.failures import sqlstate_of

# How long a flight may take before the next one starts beside it.
PATIENCE = 0.05
# How long a closing client waits for what is under way.
_CLOSING = 5.0
_LOCK_TIMEOUT = "55P03"

M = TypeVar("M")
R = TypeVar("R")
_M = TypeVar("_M", contravariant=True)


class Alone(Exception):
    """The answer to a call that must be made again, by itself. It goes to the batcher and never to a caller.

    Of several with the same key one goes first; the others come after it, together.
    """

    def __init__(self, key: Hashable) -> None:
        super().__init__(key)
        self.key = key


class Work(Protocol[_M, R]):
    """What a batcher does with the calls of one kind."""

    # Whether two calls on the same thing must not fly together.
    exclusive: bool
    # Whether a call that finds nothing under way flies in its caller's own task, which saves the cost of another one.
    # It is not for calls whose answer must be undone where the caller is gone: the caller's end would be the call's.
    direct: bool
    max_weight: int

    def keys(self, call: _M) -> Iterable[Hashable]:
        """Return what a call is on: what it may have to wait for."""

    def weight(self, call: _M) -> int:
        """Return how much of a flight a call takes up."""

    async def run(self, calls: Sequence[_M], hurried: bool) -> "Sequence[R | BaseException]":
        """Make one call of the database; hurried, it gives up a lock that it does not get soon.

        Returns an answer or an error for each. What it raises concerns all, and then nothing was changed.
        """

    async def abandon(self, answer: R) -> None:
        """Undo an answer whose caller is gone, as far as that makes sense."""


class _Ticket(Generic[M, R]):
    """A call, and whoever waits for its answer."""

    __slots__ = ("answer", "call", "keys")

    def __init__(self, call: M, keys: Iterable[Hashable], answer: "asyncio.Future[R]") -> None:
        self.call = call
        self.keys = tuple(keys)
        self.answer = answer


class _Flight:
    """What is under way, and on what."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()


class Batcher(Generic[M, R]):
    """Gathers calls of one kind and makes them together."""

    def __init__(self, name: str, work: Work[M, R], counters: Counters | None, most_flights: int) -> None:
        self._name = name
        self._work = work
        self._counters = counters
        self._most_flights = most_flights
        self._waiting: deque[_Ticket[M, R]] = deque()
        self._current: _Flight | None = None
        self._beside: set[_Flight] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def submit(self, call: M) -> R:
        """Make a call, together with others where there are some.

        Whoever is cancelled before the call is on its way has changed nothing. Later, the call is made and its answer
        abandoned.
        """
        if self._closed:
            raise PenstockError("this client is closed; make a new one")
        if self._work.direct and self._current is None and not self._waiting and not self._beside:
            return await self._fly_directly(call)
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Ticket(call, self._work.keys(call), answer))
        self._start()
        try:
            return await answer
        except asyncio.CancelledError:
            # Answered, and then cancelled before the caller could see it.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._spawn(self._work.abandon(answer.result()))
            raise

    async def close(self) -> None:
        """Take no more calls, and wait a moment for those under way."""
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
        if self._current is None and self._waiting and len(self._beside) < self._most_flights:
            self._current = _Flight()
            self._spawn(self._fly(self._current))

    async def _fly_directly(self, call: M) -> R:
        flight = self._current = _Flight()
        flight.keys.update(self._work.keys(call))
        overdue = asyncio.get_running_loop().call_later(PATIENCE, self._step_aside, flight)
        try:
            (answer,) = await self._work.run([call], False)
        finally:
            overdue.cancel()
            self._landed(flight)
        self._count(1)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _fly(self, flight: _Flight) -> None:
        # Gathered here and not when the first call came: those of the same turn of the loop go along.
        tickets = self._gather()
        if not tickets:
            # All that wait do so for flights beside this one, whose landing starts the next.
            self._current = None
            return
        flight.keys.update(key for ticket in tickets for key in ticket.keys)
        overdue = asyncio.get_running_loop().call_later(PATIENCE, self._step_aside, flight)
        try:
            # With one thing to wait for there is no neighbour.
            await self._end(tickets, flight, len(flight.keys) > 1)
        finally:
            overdue.cancel()

    async def _end(self, tickets: "list[_Ticket[M, R]]", flight: _Flight, hurried: bool) -> None:
        try:
            await self._serve(tickets, hurried)
        except asyncio.CancelledError:
            _fail(
                tickets, PenstockError("the client was closed during this call, and whether it took effect is unknown")
            )
            raise
        except Exception as error:
            # Whatever went wrong here, nobody waits for ever.
            _fail(tickets, error)
        finally:
            self._landed(flight)

    def _apart(self, tickets: "list[_Ticket[M, R]]") -> None:
        """Let some fly by themselves, however long it takes."""
        flight = _Flight()
        flight.keys.update(key for ticket in tickets for key in ticket.keys)
        self._beside.add(flight)
        self._spawn(self._end(tickets, flight, False))

    def _step_aside(self, flight: _Flight) -> None:
        if self._current is flight:
            self._current = None
            self._beside.add(flight)
            self._start()

    def _landed(self, flight: _Flight) -> None:
        if self._current is flight:
            self._current = None
        self._beside.discard(flight)
        self._start()

    def _gather(self) -> "list[_Ticket[M, R]]":
        """Take what may fly now: not what others beside us are at, nor what must stay behind such a call."""
        busy: set[Hashable] = set()
        for other in self._beside:
            busy |= other.keys
        taken: list[_Ticket[M, R]] = []
        kept: list[_Ticket[M, R]] = []
        room = self._work.max_weight
        while self._waiting and room > 0:
            ticket = self._waiting.popleft()
            if ticket.answer.done():
                continue
            if busy.isdisjoint(ticket.keys):
                room -= self._work.weight(ticket.call)
                taken.append(ticket)
                if self._work.exclusive:
                    busy.update(ticket.keys)
            else:
                kept.append(ticket)
                busy.update(ticket.keys)
        self._waiting.extendleft(reversed(kept))
        return taken

    async def _serve(self, tickets: "list[_Ticket[M, R]]", hurried: bool) -> None:
        try:
            answers = await self._work.run([ticket.call for ticket in tickets], hurried)
        except Unavailable as error:
            # Whether it took effect is unknown, so it must not be made again.
            _fail(tickets, error)
        except Exception as error:
            if hurried and sqlstate_of(error) == _LOCK_TIMEOUT:
                await self._serve_by_key(tickets)
            elif len(tickets) == 1 or sqlstate_of(error) == _LOCK_TIMEOUT:
                _fail(tickets, error)
            else:
                half = len(tickets) // 2
                await self._serve(tickets[:half], hurried)
                await self._serve(tickets[half:], hurried)
        else:
            self._deliver_all(tickets, answers)

    async def _serve_by_key(self, tickets: "list[_Ticket[M, R]]") -> None:
        """Find out who waits for somebody's lock: those go on by themselves, and the others at once."""
        groups: dict[tuple[Hashable, ...], list[_Ticket[M, R]]] = {}
        for ticket in tickets:
            groups.setdefault(ticket.keys, []).append(ticket)
        busy: set[Hashable] = set()
        for keys, group in groups.items():
            if not busy.isdisjoint(keys):
                # It comes behind one that waits, and after it.
                self._waiting.extendleft(reversed(group))
                continue
            try:
                answers = await self._work.run([ticket.call for ticket in group], True)
            except Exception as error:
                if sqlstate_of(error) != _LOCK_TIMEOUT:
                    await self._serve(group, False)
                    continue
                busy.update(keys)
                self._apart(group)
            else:
                self._deliver_all(group, answers)

    def _deliver_all(self, tickets: "list[_Ticket[M, R]]", answers: "Sequence[R | BaseException]") -> None:
        self._count(sum(not isinstance(answer, Alone) for answer in answers))
        apart: dict[Hashable, list[_Ticket[M, R]]] = {}
        for ticket, answer in zip(tickets, answers, strict=True):
            if isinstance(answer, Alone):
                ticket.keys = (answer.key,)
                apart.setdefault(answer.key, []).append(ticket)
            elif isinstance(answer, BaseException):
                _fail([ticket], answer)
            elif not ticket.answer.done():
                ticket.answer.set_result(answer)
            else:
                self._spawn(self._work.abandon(answer))
        for first, *others in apart.values():
            self._apart([first])
            self._waiting.extendleft(reversed(others))

    def _count(self, calls: int) -> None:
        if self._counters is not None:
            self._counters.flew(self._name, calls)


def _fail(tickets: "Sequence[_Ticket[Any, Any]]", error: BaseException) -> None:
    for ticket in tickets:
        if not ticket.answer.done():
            ticket.answer.set_exception(error)
