# Generated from async_taking.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Takes from windows: what lies there as claims and messages, like those that a pop of PostgreSQL returns."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from penstock.broker.claims import Claim, ClaimRange, Lease
from penstock.broker.ids import message_id
from penstock.broker.operations.claiming import Pop, Renew
from penstock.broker.operations.reading import Get
from penstock.errors import NotFound, PenstockError, ValkeyUnavailable
from penstock.warm.items import ClaimNote, unpack_items
from penstock.warm.leases import leases_of, new_token
from penstock.warm.relaying import AWAY, Relay
from penstock.warm.settling import Settling
from penstock.warm.window import Run, Taken, Windows

# How long a pop waits for what is just being loaded, and how often it looks: a load takes a few ms.
_LOADED_WITHIN, _LOADED_EVERY = 0.5, 0.001
# Who has waited so long for Valkey in vain does not ask it again.
PATIENCE = 0.5
# How much longer than any worker's lease that of a window's claim in PostgreSQL is.
SPARE = 60.0


class Taking:
    """Takes for a client; `inner` runs operations on PostgreSQL."""

    def __init__(self, windows: Windows, settling: Settling, relay: Relay) -> None:
        self._windows = windows
        self._settling = settling
        self._relay = relay

    def take_late(self, wanted: Pop, inner: Any) -> list[Claim]:
        """Take what a dispatcher has claimed in PostgreSQL and was just about to load when nothing was found there."""
        deadline = time.monotonic() + _LOADED_WITHIN
        while True:
            claims, loading = self.take(wanted, inner, again=True)
            if claims or not loading or time.monotonic() >= deadline:
                return claims
            time.sleep(_LOADED_EVERY)

    def take(self, wanted: Pop, inner: Any, *, again: bool = False) -> tuple[list[Claim], bool]:
        """Take from a window; nothing where there is none. Then whether something is just being loaded."""
        try:
            group_id = self._windows.find(wanted.queue, wanted.group, again=again)
            if group_id is None:
                return [], False
            token, asked_at = new_token(), time.monotonic()
            try:
                taken = self._windows.take(group_id, token, wanted)
            except ValkeyUnavailable:
                if time.monotonic() > asked_at + PATIENCE:
                    # It does not answer, and PostgreSQL does.
                    raise
                # The reply may have been lost; the same token gets the same items.
                taken = self._windows.take(group_id, token, wanted)
        except AWAY:
            self._windows.forget(wanted.queue, wanted.group)
            return [], False
        return self.received(group_id, token, taken, wanted, inner)

    def received(self, group_id: int, token: str, taken: Taken, wanted: Pop, inner: Any) -> tuple[list[Claim], bool]:
        """Return what was taken as claims, and whether something is just being loaded where it is nothing."""
        if not taken.runs:
            return [], taken.loading
        self._settling.remember(token, taken)
        if taken.lease > taken.longest:
            # The dispatcher does not know of leases so long, and its own must outlast them.
            leases = [Lease(group_id, run.note.partition_id, run.note.lease_id) for run in taken.runs if run.note]
            if leases:
                inner(Renew(leases, taken.lease + SPARE, durable=False))
        until = datetime.now(UTC) + timedelta(seconds=taken.lease)
        lease_of = leases_of(token)
        claims = []
        for run in taken.runs:
            if run.note is not None:
                messages = self._messages(wanted.queue, run, inner)
                claim = _claim(group_id, lease_of(run.number), run, taken, until, messages)
                # All of them may have been dropped from the log since.
                if messages or not self._is_done_with(claim, inner):
                    claims.append(claim)
        if not wanted.auto_ack:
            return claims, False
        acked = self.ack_in_postgres([claim.done() for claim in claims], inner)
        return [_without_lease(claim) for claim, done in zip(claims, acked, strict=True) if done], False

    def _messages(self, queue: str, run: Run, inner: Any) -> list[Any]:
        note = cast(ClaimNote, run.note)
        messages, elsewhere = unpack_items(queue, note, run.start, run.items)
        for offset, moment in elsewhere:
            try:
                found = inner(Get(message_id(note.partition_id, offset, moment)))
            except NotFound:
                continue  # dropped by retention since
            messages.append(msgspec.structs.replace(found, attempt=note.attempt))
        if elsewhere:
            messages.sort(key=lambda message: message.offset)
        return messages

    def _is_done_with(self, claim: Claim, inner: Any) -> bool:
        """Acknowledge a claim without messages, and say whether that could be."""
        with suppress(PenstockError):
            self.ack_in_postgres([claim.done()], inner)
            return True
        return False

    def ack_in_postgres(self, ranges: Sequence[ClaimRange], inner: Any) -> list[bool]:
        """Acknowledge in PostgreSQL what was taken from a window, and tell the window after."""
        acked, following = self._settling.acknowledge(ranges, inner)
        self._relay.follow(following)
        return acked


def _claim(group_id: int, lease_id: UUID, run: Run, taken: Taken, until: datetime, messages: list[Any]) -> Claim:
    note = cast(ClaimNote, run.note)
    return Claim(
        group_id,
        note.partition_id,
        note.partition,
        lease_id,
        until,
        note.attempt,
        run.start,
        run.stop,
        0,
        0,
        taken.shared,
        taken.lease,
        messages,
        sum([len(message.value or b"") for message in messages]),
    )


def _without_lease(claim: Claim) -> Claim:
    claim.lease_id = claim.lease_until = claim.lease_seconds = None
    return claim
