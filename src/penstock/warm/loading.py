"""Loads a window: claims what is next in PostgreSQL, ahead of the workers, and puts it into Valkey.

It works beside the heartbeats and the reports of a dispatcher, so that no round trip waits for one of the others.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import ReleaseMany
from penstock.broker.operations.groups import GetLag
from penstock.broker.operations.warm import ClaimForWindow
from penstock.broker.warm import WarmHold
from penstock.consuming.polling import ReadyCursor
from penstock.errors import ValkeyUnavailable
from penstock.warm.items import pack_claim
from penstock.warm.kept import HOLDER, KeptWindow, LostWindow
from penstock.warm.links import FULL, MOVED, OUT_OF_MEMORY, Refused

log = logging.getLogger("penstock.warm")

# What one load may have, so that no function takes long, and what one claim may.
_MOST_LOADED, _MOST_CLAIMED, _MOST_PARTITIONS = 1000, 500, 500
_LOAD_BYTES = 4 << 20
# How often to ask for the lag of an ordered group.
_ASK_EVERY = 1.0
# How long takes believe that something is being loaded, in ms.
_LOADING = 1000


class _Withdrawn(Exception):
    """Claims were withdrawn while others were on their way: a seek or a purge may have ended those, too."""


class Loader:
    """Keeps one window filled, and knows whether it is cold."""

    def __init__(self, window: KeptWindow) -> None:
        self._window = window
        self._cursor = ReadyCursor()
        self._loads = self._claims = 0
        # How often claims were withdrawn, as was known before the last claim.
        self._withdrawals = 0
        self._per_claim = 10.0
        # Nothing waits in PostgreSQL alone, as far as is known.
        self.exhausted = True
        # Whether partitions may have more than was claimed of them, and when to ask again.
        self._deep = False
        self._ask_at = 0.0
        self._full_memory = False

    def begin(self, loads: int, claims: int) -> None:
        """Go on behind the last load and claim of the window."""
        self._loads, self._claims = loads, claims

    async def run(self) -> None:
        """Load whenever there may be something to load."""
        while True:
            await self._window.look.wait()
            self._window.look.clear()
            await self.refill()

    async def refill(self) -> None:
        """Load what there is, up to the size of the window."""
        window = self._window
        settings = window.settings
        if window.state == "leaving" or settings.obstacle is not None:
            return
        await self._begin()
        while True:
            room = settings.capacity - window.items
            full = room < self._smallest(settings) or window.size >= settings.most_bytes
            if full or (window.state == "cold" and self._is_well_filled(settings)):
                self.exhausted = False
                break
            async with window.claiming:
                claims = await self._claim(settings, room)
                if not claims:
                    self.exhausted = True
                    break
                try:
                    room_left = await self._load(claims)
                except _Withdrawn:
                    await self._begin()
                    continue
                if not room_left:
                    self.exhausted = False
                    break
        await window.call("begin", window.epoch, 0)
        if window.state == "leaving":
            return
        if self.exhausted and settings.mode == "ordered" and (self._deep or window.state == "cold"):
            if time.monotonic() < self._ask_at:
                return
            self.exhausted = not await self._rest_waits()
        if not self.exhausted:
            window.change("cold")
        elif window.items <= settings.again_at * settings.capacity:
            window.change("warm")

    def _is_well_filled(self, settings: WarmHold) -> bool:
        """Return whether a cold window need not be refilled yet."""
        window, share = self._window, settings.refill_below
        return window.items >= share * settings.capacity or window.size >= share * settings.most_bytes

    async def _begin(self) -> None:
        window = self._window
        window.items, window.size, self._withdrawals = await window.call("begin", window.epoch, _LOADING)

    async def _claim(self, settings: WarmHold, room: int) -> list[Claim]:
        """Claim what is next, and no more than there is room for.

        A pop is limited by claims and by messages of each, so how many claims to ask for is a guess from those before;
        what is too much goes back. Claims are always of one size at most: of an ordered group the rest of a partition
        waits until what was claimed of it is done, and ranges of a shared group that are cut anew go to the end.
        """
        window = self._window
        room = min(room, _MOST_LOADED)
        each = min(room, self._each(settings))
        partitions = max(1, min(_MOST_PARTITIONS, int(room / min(each, 1.5 * self._per_claim))))
        claims = await window.transport.run(
            ClaimForWindow(
                window.group.group_id,
                window.epoch,
                window.group.queue,
                max_messages=each,
                max_partitions=partitions,
                max_bytes=max(1, min(_LOAD_BYTES, settings.most_bytes - window.size) // partitions),
                lease=window.claim_lease,
                holder=HOLDER,
                ready_from=self._cursor.lows(),
            ),
            retry=False,
        )
        if claims is None:
            raise LostWindow("the group was deleted, or another dispatcher has taken over")
        self._cursor.took(claims)
        if not claims:
            return []
        found = sum(claim.stop - claim.start for claim in claims)
        self._per_claim = max(1.0, found / len(claims))
        self._deep = self._deep or any(claim.stop - claim.start == each for claim in claims)
        fitting, items = 0, 0
        for claim in claims:
            items += claim.stop - claim.start
            if items > room:
                break
            fitting += 1
        if fitting < len(claims):
            await window.transport.run(ReleaseMany([claim.lease for claim in claims[fitting:]]))
        return claims[:fitting]

    async def _rest_waits(self) -> bool:
        """Return whether claimed partitions of an ordered group have more than is in the window."""
        window = self._window
        self._ask_at = time.monotonic() + _ASK_EVERY
        lag = await window.transport.run(GetLag(window.group.queue, window.group.name))
        items, *_ = await window.call("begin", window.epoch, 0)
        self._deep = lag > items
        return self._deep

    def _each(self, settings: WarmHold) -> int:
        """Return how many messages a claim may have."""
        return max(1, min(_MOST_CLAIMED, settings.capacity // 10))

    def _smallest(self, settings: WarmHold) -> int:
        """Return the room below which a window is full: less would cut ranges anew."""
        return self._each(settings) if settings.mode == "shared" else 1

    async def _load(self, claims: Sequence[Claim]) -> bool:
        """Load claims; say whether there was room. What cannot be loaded goes back."""
        window = self._window
        arguments: list[Any] = [window.epoch, self._loads + 1, self._withdrawals]
        number, size = self._claims, window.size
        for claim in claims:
            packed = pack_claim(claim, number + 1)
            size += sum(len(item) for item in packed[3:])
            # A claim has a message at least, however large, and has to get into an empty window.
            if size > window.settings.most_bytes and (number > self._claims or window.size > 0):
                break
            number += 1
            arguments += packed
        claims, rest = claims[: number - self._claims], claims[number - self._claims :]
        if rest:
            await window.transport.run(ReleaseMany([claim.lease for claim in rest]))
        if not claims:
            return False
        try:
            try:
                window.items, window.size = await window.call("load", *arguments)
            except ValkeyUnavailable:
                # It may have been done: the same load again changes nothing.
                window.items, window.size = await window.call("load", *arguments)
        except Refused as refused:
            await window.transport.run(ReleaseMany([claim.lease for claim in claims]))
            if refused.code == MOVED:
                raise _Withdrawn from None
            if refused.code not in (FULL, OUT_OF_MEMORY):
                raise
            if refused.code == OUT_OF_MEMORY and not self._full_memory:
                log.warning("%s cannot be refilled: %s", window, refused)
            self._full_memory = refused.code == OUT_OF_MEMORY
            return False
        self._full_memory = False
        self._loads += 1
        self._claims = number
        return not rest
