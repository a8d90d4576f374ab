"""One window as its dispatcher sees it: where it is, what is known of it, and how to call its functions.

All that is known is in PostgreSQL or in Valkey, too: whoever takes over finds everything.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.operations.warm import HoldWarmLease, ReleaseWarmClaims
from penstock.broker.warm import WarmGroup, WarmHold
from penstock.consuming.reporting import SAMPLE
from penstock.errors import ValkeyUnavailable
from penstock.warm.flushing import MOST_RANGES
from penstock.warm.items import read_note
from penstock.warm.keys import Keys, keys_of, window_field, windows_key
from penstock.warm.links import GONE, STALE, AsyncLink, Refused

log = logging.getLogger("penstock.warm")

# The consumer's name under which dispatchers claim.
HOLDER = "penstock warm tier"
# Seconds by which the lease of a claim in PostgreSQL is longer than any worker's.
SPARE = 60.0


class Terms(NamedTuple):
    """How long a group is held without a heartbeat, how often there is one, and how long takes go on after it.

    Then how long to wait for workers before a window is given back, how often to look for groups without one, and how
    often to sample what waits.
    """

    hold_for: float = 10.0
    beat_every: float = 1.0
    grant: float = 5.0
    leave_within: float = 10.0
    find_every: float = 1.0
    sample_every: float = SAMPLE


class LostWindow(Exception):
    """Another dispatcher has the group, or the group is gone."""


class KeptWindow:
    """What the parts of a dispatcher share of one window."""

    def __init__(
        self, transport: AsyncTransport, link: AsyncLink, database: str, group: WarmGroup, name: str, terms: Terms
    ) -> None:
        self.transport = transport
        self.link = link
        self.group = group
        self.terms = terms
        self.keys: Keys = keys_of(database, group.group_id)
        self.state = "warm"
        self.items = self.size = 0
        self.transitions = group.transitions or 0
        self.hold: WarmHold | None = None
        self.epoch = 0
        # The longest lease of a worker in seconds, and how often takes were halted, as far as is known.
        self.longest = 0.0
        self.halts = 0
        # Something happened that the heart of the dispatcher has to see to; there may be something to load.
        self.event = asyncio.Event()
        self.look = asyncio.Event()
        # Claims in PostgreSQL that are not in Valkey are lost, unless somebody is just loading them.
        self.claiming = asyncio.Lock()
        self._beating = asyncio.Lock()
        self._name = name
        self._field = window_field(group.queue, group.name)
        self._windows = windows_key(database)

    def __str__(self) -> str:
        return f"the window of group {self.group.name!r} of queue {self.group.queue!r}"

    @property
    def settings(self) -> WarmHold:
        """What the last heartbeat said."""
        if self.hold is None:
            raise LostWindow("the group was deleted")
        return self.hold

    @property
    def claim_lease(self) -> float:
        """How many seconds a claim in PostgreSQL is leased for."""
        return max(self.settings.lease_time, self.longest) + SPARE

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the window."""
        try:
            return await self.link.call(name, self.keys, *arguments)
        except Refused as refused:
            if refused.code == STALE:
                raise LostWindow("another dispatcher has taken over") from None
            if refused.code == GONE:
                raise ValkeyUnavailable("Valkey has lost the window") from None
            raise

    def change(self, state: str) -> None:
        """Go over to another state; counted and logged once."""
        if state != self.state:
            self.transitions += 1
            log.info("%s: %s, was %s; %d items", self, state, self.state, self.items)
            self.state = state

    async def publish(self) -> None:
        """Let clients find the window."""
        await self.link.call("publish", [self._windows], self._field, self.group.group_id)

    async def unpublish(self) -> None:
        """Let clients find it no more."""
        await self.link.call("unpublish", [self._windows], self._field, self.group.group_id)

    async def beat(self) -> None:
        """Extend the lease in PostgreSQL, and let takes go on for as long as its settings allow."""
        # One at a time: an answer of PostgreSQL from before a halt must not go with the halts of after it.
        async with self._beating:
            while True:
                known, began = self.halts, time.monotonic()
                await self.hold_lease()
                if self.hold is None:
                    raise LostWindow("the group was deleted")
                if self.hold.epoch is None:
                    raise LostWindow("another dispatcher has taken over")
                await self.grant(began)
                if self.halts == known:
                    return
                # Halted while PostgreSQL was asked: what it said may not hold any more.

    async def hold_lease(self) -> WarmHold | None:
        """Take the lease of the window in PostgreSQL, or extend it."""
        hold = await self.transport.run(
            HoldWarmLease(
                self.group.group_id,
                self._name,
                self.epoch or None,
                self.terms.hold_for,
                self.state,
                self.items,
                self.size,
                self.longest,
                self.transitions,
            )
        )
        if hold is not None and hold.epoch is not None:
            self.epoch = hold.epoch
            self.longest = max(self.longest, hold.longest_lease)
        self.hold = hold
        return hold

    async def give_lease_back(self) -> None:
        """Let another dispatcher have it."""
        await self.transport.run(
            HoldWarmLease(
                self.group.group_id, self._name, self.epoch, 0.0, self.state, 0, 0, self.longest, self.transitions
            )
        )

    async def grant(self, began: float) -> int:
        """Let takes go on, counted from when the lease was extended; returns ms until the next deadline, or -1."""
        settings = self.settings
        grant = 0.0 if settings.obstacle is not None else self.terms.grant - (time.monotonic() - began)
        items, size, longest, due, self.halts = await self.call(
            "beat",
            self.epoch,
            max(0, round(grant * 1000)),
            settings.capacity,
            settings.most_bytes,
            round(settings.lease_time * 1000),
            self.halts,
        )
        self.items, self.size, self.longest = items, size, max(self.longest, longest / 1000)
        self.note_due(due)
        return int(due)

    # When the next lease of a worker ends.
    due: float | None = None

    def note_due(self, due: int) -> None:
        """Take note in how many ms the next lease of a worker ends; below 0: there is none."""
        self.due = None if due < 0 else time.monotonic() + due / 1000 + 0.001

    async def claims(self) -> dict[tuple[int, UUID], bytes]:
        """Return the claims that are in Valkey, by partition and lease, and their numbers."""
        found = await self.link.run("HGETALL", self.keys.claims)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        notes = ((number, read_note(text)) for number, text in pairs)
        return {(note.partition_id, note.lease_id): number for number, note in notes}

    async def release(self, claims: Sequence[tuple[int, UUID]]) -> None:
        """Give claims back in PostgreSQL."""
        for start in range(0, len(claims), MOST_RANGES):
            some = claims[start : start + MOST_RANGES]
            released = await self.transport.run(
                ReleaseWarmClaims(
                    self.group.group_id, self.epoch, [pid for pid, _ in some], [lease for _, lease in some]
                )
            )
            if released is None:
                raise LostWindow("another dispatcher has taken over")
            self.look.set()
