"""The micro-batcher: a transport that wraps another, and runs concurrent operations of one type as one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from penstock import forks
from penstock.batching.joining import AckJoiner, CheckJoiner, PopJoiner, PushJoiner, RenewJoiner, SweepJoiner
from penstock.batching.lane import Joiner, Lane
from penstock.broker.async_transport import AsyncTransactionScope, AsyncTransport
from penstock.broker.claims import AckedAndPopped
from penstock.broker.counters import Counters
from penstock.broker.hints import HintListener, Hints
from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import Ack, AckAndPop, HasPending, Pop, Renew, Sweep
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.errors import PenstockError
from penstock.settings import Settings

R = TypeVar("R")
# Renewals by many different lease times are run one by one.
_MOST_LANES = 64
# How long somebody who is cancelled waits until what was claimed for them is given back, in seconds.
_LAST_MOMENT = 1.0


@asynccontextmanager
async def _prepared(
    begun: AbstractAsyncContextManager[AsyncTransactionScope], prepare: Callable[[Operation[Any]], Operation[Any]]
) -> AsyncIterator[AsyncTransactionScope]:
    async with begun as scope:
        yield _PreparedScope(scope, prepare)


class _PreparedScope:
    """A transaction whose operations a front end prepares."""

    def __init__(self, scope: AsyncTransactionScope, prepare: Callable[[Operation[Any]], Operation[Any]]) -> None:
        self.connection = scope.connection
        self.block = scope.block
        self.note = scope.note
        self.check = scope.check
        self._scope = scope
        self._prepare = prepare

    async def run(self, operation: Operation[R]) -> R:
        reply: R = await self._scope.run(self._prepare(operation))
        return reply

    async def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        return await self._scope.write([cast(Push, self._prepare(push)) for push in pushes])


class Batching:
    """Joins pushes, pops, checks, acks, renewals and sweeps. Everything else passes through."""

    def __init__(self, transport: AsyncTransport, counters: Counters, settings: Settings) -> None:
        # Whether pushes are joined, and whether pops, acks and renewals are; both may be changed at any time.
        self.pushes = settings.push_batching
        self.pops = settings.pop_batching
        # From how many on pops are joined.
        self.several_pops = 2
        # What a front end does with each operation before it runs.
        self.prepare: Callable[[Operation[Any]], Operation[Any]] | None = None
        self._transport = transport
        self._counters = counters
        # One connection is left for all that is not joined.
        self._most_in_flight = max(2, settings.pool_size - 1)
        self._kinds: dict[type[Operation[Any]], Callable[[Any], Lane[Any, Any] | None]] = {
            Push: self._push_lane,
            Pop: self._pop_lane,
            HasPending: self._check_lane,
            Ack: self._ack_lane,
            Renew: self._renew_lane,
            Sweep: self._sweep_lane,
        }
        self._closed = False
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make all that belongs to one process."""
        self._lanes: dict[Hashable, Lane[Any, Any]] = {}
        # How many acks with a pop are in flight.
        self._both = 0

    def __repr__(self) -> str:
        return repr(self._transport)

    @property
    def address(self) -> str:
        """What identifies the broker within this process, once it is open."""
        return self._transport.address

    async def open(self) -> None:
        """Find the broker and see that it is ready."""
        await self._transport.open()

    async def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,  # noqa: ASYNC109 - for the connection, and not for the whole
        *,
        retry: bool = True,
    ) -> R:
        """Run an operation, together with others of its type where there are some."""
        if self._closed:
            raise PenstockError("this client is closed; make a new one")
        if self.prepare is not None:
            operation = self.prepare(operation)
        if isinstance(operation, AckAndPop):
            answer: Any = await self._ack_and_pop(operation, timeout, retry)
            return cast(R, answer)
        find = self._kinds.get(type(operation))
        # One whose time is limited cannot wait with others.
        if find is None or timeout is not None or (lane := find(operation)) is None:
            running = self._transport.run(operation, timeout, retry=retry)
            return await (self._undone_if_cancelled(running) if isinstance(operation, Pop) else running)
        reply: R = await lane.submit(operation)
        return reply

    async def _undone_if_cancelled(self, popping: Coroutine[Any, Any, Any]) -> Any:
        """Pop; where the caller is cancelled meanwhile, give back what came of it."""
        task = asyncio.ensure_future(popping)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            giving_back = asyncio.ensure_future(self._give_back(task))
            # It goes on by itself where that takes longer.
            await asyncio.wait({giving_back}, timeout=_LAST_MOMENT)
            raise

    async def _give_back(self, popping: "asyncio.Future[Any]") -> None:
        with suppress(PenstockError):
            await PopJoiner(self._transport, self.several_pops).abandon(await popping)

    async def run_alone(self, operation: Operation[R]) -> R:
        """Run an operation by itself."""
        if self._closed:
            raise PenstockError("this client is closed; make a new one")
        if self.prepare is not None:
            operation = self.prepare(operation)
        return await self._transport.run(operation)

    async def _ack_and_pop(
        self,
        operation: AckAndPop,
        timeout: float | None,  # noqa: ASYNC109 - for the connection, and not for the whole
        retry: bool,
    ) -> AckedAndPopped:
        """Run both in one call where nothing else is in flight; else each with others of its own type."""
        lanes = [self._lanes.get(Ack), self._lanes.get(Pop)]
        if not self.pops or not (self._both or any(lane is not None and lane.busy for lane in lanes)):
            self._both += 1
            try:
                return await self._transport.run(operation, timeout, retry=retry)
            finally:
                self._both -= 1
        acked = await self.run(Ack(operation.ranges, durable=operation.pop.durable), timeout, retry=retry)
        try:
            claims = await self.run(operation.pop, timeout, retry=retry)
        except PenstockError:
            # The acks took effect, which must not be lost. The next pop says what is wrong.
            claims = []
        return AckedAndPopped(acked, claims)

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[AsyncTransactionScope]:
        """Begin a transaction; nothing in it is joined with others."""
        begun = self._transport.transaction(connection)
        return begun if self.prepare is None else _prepared(begun, self.prepare)

    @property
    def can_listen(self) -> bool:
        """Whether hints of other processes arrive here."""
        return self._transport.can_listen

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes."""
        return self._transport.listen(listener)

    async def close(self) -> None:
        """Take no more operations, let those in flight end, and close all connections."""
        self._closed = True
        for lane in self._lanes.values():
            await lane.close()
        await self._transport.close()

    def _push_lane(self, operation: Push) -> Lane[Any, Any] | None:
        if not self.pushes:
            return None
        for batch in operation.batches:
            if not batch.plain:
                return None
        return self._lanes.get(Push) or self._open_lane(Push, "push", PushJoiner(self._transport))

    def _pop_lane(self, operation: Pop) -> Lane[Any, Any] | None:
        # A loop that claims ahead takes much at once by itself.
        if not self.pops or operation.ahead:
            return None
        return self._lanes.get(Pop) or self._open_lane(Pop, "pop", PopJoiner(self._transport, self.several_pops))

    def _check_lane(self, operation: HasPending) -> Lane[Any, Any] | None:
        if not self.pops:
            return None
        if (lane := self._lanes.get(HasPending)) is None:
            # Two at a time: one that is overdue must not hold up all who wait.
            lane = self._lanes[HasPending] = Lane("check", CheckJoiner(self._transport), None, 2)
        return lane

    def _ack_lane(self, operation: Ack) -> Lane[Any, Any] | None:
        if not self.pops:
            return None
        return self._lanes.get(Ack) or self._open_lane(Ack, "ack", AckJoiner(self._transport))

    def _renew_lane(self, operation: Renew) -> Lane[Any, Any] | None:
        if not self.pops or operation.begun:
            return None
        key = Renew, operation.lease
        if (lane := self._lanes.get(key)) is not None:
            return lane
        if len(self._lanes) >= _MOST_LANES:
            return None
        return self._open_lane(key, "renew", RenewJoiner(self._transport))

    def _sweep_lane(self, operation: Sweep) -> Lane[Any, Any] | None:
        if (lane := self._lanes.get(Sweep)) is None:
            lane = self._lanes[Sweep] = Lane("sweep", SweepJoiner(self._transport), None, 1)
        return lane

    def _open_lane(self, key: Hashable, name: str, joiner: Joiner[Any, Any]) -> Lane[Any, Any]:
        lane = self._lanes[key] = Lane(name, joiner, self._counters, self._most_in_flight)
        return lane
