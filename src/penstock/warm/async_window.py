"""The windows of groups in Valkey, as those who take from them and settle see them."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import Lease
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.warm import GetDatabaseIdentity
from penstock.warm.items import ClaimNote, read_note
from penstock.warm.keys import Keys, keys_of, names_of, wake_channel, window_field, windows_key
from penstock.warm.leases import Token
from penstock.warm.links import AsyncLink

# How long to remember that a group has no window.
_FORGET_AFTER = 0.5


class Run(NamedTuple):
    """What a lease has of one claim: its number in the lease, and consecutive items; without a note it is lost."""

    number: int
    note: ClaimNote | None
    start: int
    items: Sequence[bytes]

    @property
    def stop(self) -> int:
        """The offset behind its last item."""
        return self.start + len(self.items)


class Taken(NamedTuple):
    """What a take was given, for how many seconds, and the longest lease before it."""

    runs: list[Run]
    lease: float
    longest: float
    shared: bool
    # Nothing was there, and something is on its way.
    loading: bool = False


class Part(NamedTuple):
    """Items of a lease: of one run, from one offset up to and without another; None: no bound. Run 0: all it has."""

    token: str
    run: int
    start: int | None = None
    stop: int | None = None


class Fill(NamedTuple):
    """How full a window is; `live`: takes are granted."""

    live: bool
    items: int
    size: int
    ready: int
    leases: int
    unreported: int
    oldest_ms: int


class Found(NamedTuple):
    """A group that has a window."""

    queue: str
    group: str
    group_id: int


class AsyncWindows:
    """All windows of one database."""

    def __init__(self, link: AsyncLink, transport: AsyncTransport) -> None:
        self.link = link
        self._transport = transport
        self._database: str | None = None
        self._groups: dict[tuple[str, str], tuple[int | None, float]] = {}
        self._keys: dict[int, Keys] = {}

    async def database(self) -> str:
        """Return what tells the database from others."""
        if self._database is None:
            self._database = await self._transport.run(GetDatabaseIdentity())
        return self._database

    async def channel(self) -> str:
        """Return where to hear that something can be taken."""
        return wake_channel(await self.database())

    async def keys(self, group_id: int) -> Keys:
        """Return the keys of a group."""
        keys = self._keys.get(group_id)
        if keys is None:
            keys = self._keys[group_id] = keys_of(await self.database(), group_id)
        return keys

    async def find(self, queue: str, group: str, *, again: bool = False) -> int | None:
        """Return the id of a group that has a window; None where it has none, or Valkey cannot be used.

        That it has none is remembered for a moment; `again` asks nevertheless.
        """
        if not self.link.usable:
            return None
        known, until = self._groups.get((queue, group), (None, 0.0))
        if known is not None or (time.monotonic() < until and not again):
            return known
        found = await self.link.run("HGET", windows_key(await self.database()), window_field(queue, group))
        group_id = None if found is None else int(found)
        self._groups[queue, group] = group_id, time.monotonic() + _FORGET_AFTER
        return group_id

    async def look_for(self, groups: Sequence[tuple[str, str]]) -> None:
        """Find out, of groups of which nothing is known, which have windows, for those who `find` them next."""
        now = time.monotonic()
        known = self._groups
        unknown = [each for each in groups if each not in known or (known[each][0] is None and known[each][1] <= now)]
        if unknown and self.link.usable:
            fields = [window_field(*each) for each in unknown]
            found = await self.link.run("HMGET", windows_key(await self.database()), *fields)
            for each, group_id in zip(unknown, found, strict=True):
                self._groups[each] = None if group_id is None else int(group_id), now + _FORGET_AFTER

    def forget(self, queue: str, group: str) -> None:
        """Look again, after a moment, whether a group has a window."""
        self._groups[queue, group] = None, time.monotonic() + _FORGET_AFTER

    async def all(self, queue: str | None = None, group: str | None = None) -> list[Found]:
        """Return which groups have windows: all, those of a queue, or one."""
        reply = await self.link.run("HGETALL", windows_key(await self.database()))
        return [
            found
            for found in read_windows(reply)
            if queue in (None, found.queue) and (group is None or group == found.group)
        ]

    async def take(self, group_id: int, token: str, pop: Pop) -> Taken:
        """Take what is next; the same token gets what it got before."""
        return _taken(await self.link.call("take", await self.keys(group_id), *_take_arguments(token, pop)))

    async def follow(self, group_id: int, parts: Sequence[tuple[str, Part]]) -> None:
        """Settle parts of leases, each in its own way, because PostgreSQL has done so."""
        arguments = [each for how, part in parts for each in (how, *_bounds(part))]
        await self.link.call("follow", await self.keys(group_id), *arguments)

    async def settle(self, group_id: int, how: str, parts: Sequence[Part]) -> tuple[bytes, list[bool]]:
        """Settle parts of leases; the id of the acknowledgement in the stream, and which leases were live.

        Of all that a lease has, that is said for each run.
        """
        reported, *live = await self.link.call("settle", await self.keys(group_id), *_settle_arguments(how, parts))
        return reported, [each == 1 for each in live]

    async def settle_and_take(
        self, group_id: int, parts: Sequence[Part], token: str, pop: Pop
    ) -> tuple[bytes, list[bool], Taken | None]:
        """Acknowledge, and take what is next; None where takes are refused: what was acknowledged stays so."""
        settled, taken = await self.link.call(
            "settle_and_take",
            await self.keys(group_id),
            *_take_arguments(token, pop),
            *_settle_arguments("ack", parts),
        )
        reported, *live = settled
        return reported, [each == 1 for each in live], None if isinstance(taken, bytes) else _taken(taken)

    async def look(self, group_id: int, token: str, keep_for: float) -> tuple[bool, list[Run]]:
        """Return whether the group is shared, and what a lease still has, which stays so for some seconds."""
        mode, runs = await self.link.call("look", await self.keys(group_id), token, round(keep_for * 1000))
        return mode == b"shared", _runs(runs)

    async def let_go(self, group_id: int, token: str) -> None:
        """Let a lease end as if nobody had had a look at it."""
        await self.link.call("look", await self.keys(group_id), token, -1)

    async def has(self, group_id: int, claim: UUID) -> bool:
        """Return whether a claim in PostgreSQL is in the window that is attached now."""
        return bool(await self.link.call("has", await self.keys(group_id), str(claim)))

    async def renew(
        self, group_id: int, runs: Sequence[Token], lease: float | None, begun: bool
    ) -> tuple[bool, float, list[bool]]:
        """Extend leases; whether the claims behind them are sure to last as long, how long that is, which were live."""
        which = [each for run in runs for each in run]
        longest, granted, kept, *live = await self.link.call(
            "renew", await self.keys(group_id), round((lease or 0.0) * 1000), int(begun), *which
        )
        return bool(kept) and granted <= longest, granted / 1000, [bool(each) for each in live]

    async def withdraw(self, group_id: int, partition: str | None = None, only: Lease | None = None) -> bytes:
        """Take claims out of a window, because what they were made for does not hold any more.

        `only` is the lease of one claim in PostgreSQL; without an id, whichever its partition has. Replies the id of
        the entry in the stream that asks for them to be given back.
        """
        which = "" if only is None else str(only.lease_id or only.partition_id)
        withdrawn: bytes = await self.link.call("withdraw", await self.keys(group_id), partition or "", 0, which)
        return withdrawn

    async def halt(self, group_id: int) -> bytes:
        """Let nothing be taken until the dispatcher has looked at the group; what workers have stays theirs.

        Replies the id of the entry in the stream that asks it to.
        """
        halted: bytes = await self.link.call("halt", await self.keys(group_id))
        return halted

    async def discard(self, found: Found) -> None:
        """Remove the window of a group that is not there any more."""
        field = window_field(found.queue, found.group)
        await self.link.call("unpublish", [windows_key(await self.database())], field, found.group_id)
        await self.link.call("discard", await self.keys(found.group_id))
        self.forget(found.queue, found.group)

    async def fill(self, group_id: int) -> Fill:
        """Return how full a window is."""
        live, *rest = await self.link.call("stats", await self.keys(group_id))
        return Fill(bool(live), *rest)

    async def is_reported(self, group_id: int, reported: bytes) -> bool:
        """Return whether PostgreSQL knows of an acknowledgement."""
        keys = await self.keys(group_id)
        return not await self.link.run("XRANGE", keys.done, "-", reported, "COUNT", 1)


def read_windows(reply: Any) -> list[Found]:
    """Read the hash that tells which groups have a window."""
    fields = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return [Found(*names_of(field.decode()), int(group_id)) for field, group_id in fields]


def _take_arguments(token: str, pop: Pop) -> tuple[Any, ...]:
    lease = 0 if pop.lease is None else round(pop.lease * 1000)
    return (
        token,
        pop.max_messages,
        pop.max_partitions,
        pop.max_bytes,
        lease,
        int(pop.ahead),
        pop.partition or "",
    )


def _settle_arguments(how: str, parts: Sequence[Part]) -> list[Any]:
    arguments: list[Any] = [how]
    for part in parts:
        arguments += _bounds(part)
    return arguments


def _bounds(part: Part) -> tuple[Any, ...]:
    token, run, start, stop = part
    return token, run, -1 if start is None else start, -1 if stop is None else stop


def _taken(reply: Sequence[Any]) -> Taken:
    longest, lease, mode, runs, *loading = reply
    return Taken(_runs(runs), lease / 1000, longest / 1000, mode == b"shared", bool(loading and loading[0]))


def _runs(found: Sequence[Any]) -> list[Run]:
    """Read runs, one behind the other: note, first offset, number, how many items, and these."""
    runs, at, end = [], 0, len(found)
    while at < end:
        note, items = found[at], at + 4
        at = items + found[at + 3]
        runs.append(Run(found[items - 2], read_note(note) if note else None, found[items - 3], found[items:at]))
    return runs
