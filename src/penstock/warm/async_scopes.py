"""Transactions with the caller's own SQL: what is settled in them is settled in PostgreSQL; windows are told after."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from penstock.broker.async_transport import AsyncTransactionScope
from penstock.broker.claims import Claim
from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import Ack, AckAndPop, Nack, Pop, Release, ReleaseMany, Renew
from penstock.broker.operations.items import NoteItems, ReadNotes, SaveStep, SettleItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.errors import InvalidInput
from penstock.warm.async_settling import AsyncSettling, Follow, without
from penstock.warm.async_window import AsyncWindows
from penstock.warm.leases import is_warm

R = TypeVar("R")


class AsyncWarmScope:
    """A transaction. Leases of windows stand for claims in PostgreSQL."""

    def __init__(self, scope: AsyncTransactionScope, settling: AsyncSettling, windows: AsyncWindows) -> None:
        self.connection = scope.connection
        self._scope = scope
        self._windows = windows
        self._settling = settling
        self.following: list[Follow] = []

    async def run(self, operation: Operation[R]) -> R:
        """Run an operation in this transaction."""
        answer: Any
        match operation:
            case Ack() if any(is_warm(each.lease_id) for each in operation.ranges):
                answer = await self._ack(operation)
            case Pop():
                answer = await self._pop(operation)
            case AckAndPop() if any(is_warm(each.lease_id) for each in operation.ranges):
                raise InvalidInput("acknowledge in the transaction first, and pop after it")
            case SettleItems() if any(is_warm(claim.lease.lease_id) for claim in operation.claims):
                answer, following = await self._settling.settle(without(operation), self._scope.run)
                self._follow(following)
                if operation.pop is not None:
                    answer = answer._replace(claims=await self._scope.run(operation.pop))
            case Nack() if is_warm(operation.lease.lease_id):
                answer, following = await self._settling.nack(operation, self._scope.run)
                self._follow(following)
            case Renew() | ReleaseMany() if any(is_warm(lease.lease_id) for lease in operation.leases):
                raise InvalidInput("renew and release what was taken from a window outside of a transaction")
            case Release() if is_warm(operation.lease.lease_id):
                raise InvalidInput("release what was taken from a window outside of a transaction")
            case NoteItems() | SaveStep() | ReadNotes():
                answer = await self._scope.run(await translated(operation, self._settling))
            case _:
                answer = await self._scope.run(operation)
        return cast(R, answer)

    async def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        """Run the pushes that end the block."""
        return await self._scope.write(pushes)

    def block(self) -> AbstractContextManager[None]:
        """Surround the caller's own code."""
        return self._scope.block()

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that was done."""
        self._scope.note(undo)

    async def check(self) -> None:
        """Find out what rollbacks to savepoints have undone."""
        await self._scope.check()

    def _follow(self, following: Sequence[Follow]) -> None:
        """Take note of what windows are told after the commit, unless a rollback to a savepoint undoes it."""
        if following:
            self.following += following
            self._scope.note(partial(self._forget, following))

    def _forget(self, following: Sequence[Follow]) -> None:
        self.following = [each for each in self.following if not any(each is undone for undone in following)]

    async def _pop(self, wanted: Pop) -> list[Claim]:
        claims = await self._scope.run(wanted)
        if not claims and await self._windows.find(wanted.queue, wanted.group) is not None:
            # Nothing would ever be found, and nobody would say why.
            raise InvalidInput(
                f"group {wanted.group!r} of queue {wanted.queue!r} has a window in Valkey, and a transaction cannot"
                " take from it: pop outside of the transaction and acknowledge in it, or set warm to false"
            )
        return claims

    async def _ack(self, wanted: Ack) -> list[bool]:
        warm = [number for number, each in enumerate(wanted.ranges) if is_warm(each.lease_id)]
        cold = [number for number in range(len(wanted.ranges)) if number not in set(warm)]
        acked = [False] * len(wanted.ranges)
        if cold:
            rest = msgspec.structs.replace(wanted, ranges=[wanted.ranges[number] for number in cold])
            found = await self._scope.run(rest)
            for number, answer in zip(cold, found, strict=True):
                acked[number] = answer
        answers, following = await self._settling.acknowledge(
            [wanted.ranges[number] for number in warm], self._scope.run
        )
        self._follow(following)
        for number, answer in zip(warm, answers, strict=True):
            acked[number] = answer
        return acked


async def translated(operation: Operation[R], settling: AsyncSettling) -> Operation[R]:
    """Return an operation on items with the leases in PostgreSQL instead of those of windows."""
    answer: Any = operation
    if isinstance(operation, NoteItems):
        notes = []
        for note in operation.notes:
            lease = await settling.lease_in_postgres(note.lease) if is_warm(note.lease.lease_id) else note.lease
            notes.append(note._replace(lease=lease or note.lease))
        answer = msgspec.structs.replace(operation, notes=notes)
    elif isinstance(operation, SaveStep | ReadNotes) and is_warm(operation.lease.lease_id):
        found = await settling.lease_in_postgres(operation.lease)
        answer = msgspec.structs.replace(operation, lease=found or operation.lease)
    return cast(Operation[R], answer)
