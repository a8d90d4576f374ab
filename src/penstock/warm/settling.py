# Generated from async_settling.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""Settles what was taken from windows in PostgreSQL itself: whatever is more than an acknowledgement.

A worker knows the claim in PostgreSQL that its items are of. So outputs, results, failures and snoozes are settled
there, in one transaction and by the same functions as without a warm tier, and the window is told after. If that gets
lost, the lease ends in Valkey, PostgreSQL says that the items were settled before, and nothing is done twice.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from penstock.broker.claims import ClaimRange, Lease
from penstock.broker.items import SETTLED, ItemOutcome, Output, SettledClaim, SettledItems
from penstock.broker.operations.claiming import Ack, Nack
from penstock.broker.operations.items import SettleItems
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.warm import FailWarmClaims
from penstock.broker.warm import FailedPart
from penstock.errors import InvalidInput, ValkeyUnavailable, ValkeyUnusable
from penstock.warm.items import ClaimNote
from penstock.warm.leases import is_warm, token_of
from penstock.warm.links import Refused
from penstock.warm.window import Part, Taken, Windows

Runner = Callable[[Operation[Any]], Any]

# How long a lease lasts at least while PostgreSQL settles what it has, also in a transaction that takes long.
_KEEP_FOR = 60.0
# Takes of which this process remembers what they had, for when Valkey cannot be asked.
_REMEMBERED = 10_000
_ENDING = ("failed", "snoozed")


class Held(NamedTuple):
    """What a lease has of one claim."""

    note: ClaimNote
    shared: bool
    offsets: list[int]


class Follow(NamedTuple):
    """What a window has to be told after PostgreSQL was."""

    group_id: int
    how: str
    part: Part


class Parts(NamedTuple):
    """What a window is asked to settle; where that is all that a lease has, of which runs of it the answers are."""

    parts: list[Part]
    runs: list[int] | None = None


# What is kept of a run, which would keep its items: the claim, and its first offset and the one behind the last.
_Range = tuple[ClaimNote, int, int]


class _Remembered(NamedTuple):
    until: float
    lease: float
    shared: bool
    # How many runs it was given.
    given: int
    # By number: those of which anything is not settled, and the offsets of those that are settled in part.
    runs: dict[int, _Range]
    rests: dict[int, list[int]]

    def offsets(self, number: int) -> list[int]:
        """Return what of a run is not settled."""
        _, start, stop = self.runs[number]
        return self.rests.get(number) or list(range(start, stop))


class Settling:
    """Settles leases of windows through whatever runs operations on PostgreSQL."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._takes: dict[str, _Remembered] = {}

    def remember(self, token: str, taken: Taken) -> None:
        """Remember what a take was given."""
        now = time.monotonic()
        if len(self._takes) >= _REMEMBERED:
            self._takes = {known: each for known, each in self._takes.items() if each.until > now}
        runs = {run.number: (run.note, run.start, run.stop) for run in taken.runs if run.note is not None}
        self._takes[token] = _Remembered(now + taken.lease, taken.lease, taken.shared, len(taken.runs), runs, {})

    def renewed(self, token: str, lease: float) -> None:
        """Take note that a lease was extended."""
        if (known := self._takes.get(token)) is not None:
            self._takes[token] = known._replace(until=time.monotonic() + lease, lease=lease)

    def lease_time(self, token: str) -> float:
        """Return for how many seconds a lease that is remembered was given."""
        return self._takes[token].lease

    def parts_of(self, ranges: Sequence[ClaimRange]) -> "Parts":
        """Return the parts of leases that ranges stand for: one for all where they are all that one take was given.

        Not where they are all that is left of it here: what was given back may still be in the lease, because the
        window has not heard of it.
        """
        tokens = [token_of(cast(UUID, each.lease_id)) for each in ranges]
        token = tokens[0].text
        known = self._takes.get(token)
        if known is not None and not known.rests and len(tokens) == known.given:
            numbers = list(known.runs)
            if tokens == [(token, number) for number in numbers] and all(map(_covers, ranges, known.runs.values())):
                return Parts([Part(token, 0)], numbers)
        return Parts([Part(*token, each.start, each.stop) for token, each in zip(tokens, ranges, strict=True)])

    def live(self, parts: "Parts", answers: Sequence[bool]) -> list[bool]:
        """Take note of what is settled, and return for each range of these parts whether its lease was live."""
        settled = parts.parts
        if parts.runs is not None:
            token = settled[0].token
            answers = [number <= len(answers) and answers[number - 1] for number in parts.runs]
            if all(answers):
                self._takes.pop(token, None)
                return answers
            settled = [Part(token, number) for number in parts.runs]
        for part, alive in zip(settled, answers, strict=True):
            if alive:
                self.settled(part)
        return list(answers)

    def settled(self, part: Part) -> None:
        """Take note that items are settled."""
        known = self._takes.get(part.token)
        run = None if known is None else known.runs.get(part.run)
        if known is None or run is None:
            return
        rest = []
        if part.start is not None or part.stop is not None:
            rest = [offset for offset in known.offsets(part.run) if not _within(offset, part)]
        if rest:
            known.rests[part.run] = rest
            return
        del known.runs[part.run]
        known.rests.pop(part.run, None)
        if not known.runs:
            self._takes.pop(part.token, None)

    def held(self, lease: Lease, keep_for: float = _KEEP_FOR) -> Held | None:
        """Return what a lease has, and let it last; from memory where Valkey cannot tell. None where it is lost."""
        if lease.lease_id is None:
            return None
        token, number = token_of(lease.lease_id)
        try:
            shared, runs = self._windows.look(lease.group_id, token, keep_for)
        except (Refused, ValkeyUnavailable, ValkeyUnusable):
            return self._remembered(lease)
        found = [run for run in runs if run.number == number and run.items]
        note = found[0].note if found else None
        if note is None:
            return self.unknown(lease)
        if note.partition_id != lease.partition_id:
            return None
        return Held(note, shared, [offset for run in found for offset in range(run.start, run.stop)])

    def unknown(self, lease: Lease) -> Held | None:
        """Return what a lease had that a window does not know; None where it is lost.

        A window that was attached anew knows of no lease before, and the claim behind one may still stand: PostgreSQL,
        which is asked next, has the last word. But a claim that is in the window is there for others.
        """
        held = self._remembered(lease)
        with suppress(Refused, ValkeyUnavailable, ValkeyUnusable):
            if held is not None and self._windows.has(lease.group_id, held.note.lease_id):
                return None
        return held

    def _remembered(self, lease: Lease) -> Held | None:
        """Return what a lease had as far as this process knows, unless its time is over."""
        if lease.lease_id is None:
            return None
        token, number = token_of(lease.lease_id)
        known = self._takes.get(token)
        if known is None or known.until <= time.monotonic():
            return None
        run = known.runs.get(number)
        return None if run is None else Held(run[0], known.shared, known.offsets(number))

    def lease_in_postgres(self, lease: Lease) -> Lease | None:
        """Return the lease in PostgreSQL that stands behind one of a window; None where that is lost."""
        held = self.held(lease, 0.0)
        return None if held is None else Lease(lease.group_id, lease.partition_id, held.note.lease_id)

    def acknowledge(self, ranges: Sequence[ClaimRange], run: Runner) -> tuple[list[bool], list[Follow]]:
        """Acknowledge ranges in PostgreSQL, and not in the window."""
        following: list[Follow] = []
        try:
            acked, following = self._acknowledge(ranges, run)
        finally:
            if not following:
                self._let_go([Lease(each.group_id, each.partition_id, each.lease_id) for each in ranges])
        return acked, following

    def _acknowledge(self, ranges: Sequence[ClaimRange], run: Runner) -> tuple[list[bool], list[Follow]]:
        wanted: list[ClaimRange] = []
        parts: list[tuple[int, Follow]] = []
        for number, each in enumerate(ranges):
            held = self.held(Lease(each.group_id, each.partition_id, each.lease_id))
            if held is None or each.lease_id is None:
                continue
            token = token_of(each.lease_id)
            part = Part(token.text, token.run, each.start, each.stop)
            done = [offset for offset in held.offsets if _within(offset, part, held.shared)]
            for start, stop in _ranges(done):
                wanted.append(ClaimRange(each.group_id, each.partition_id, held.note.lease_id, start, stop))
                parts.append((number, Follow(each.group_id, "told", part)))
        acked = [False] * len(ranges)
        if not wanted:
            return acked, []
        answers = run(Ack(wanted))
        following = []
        for (number, follow), answer in zip(parts, answers, strict=True):
            acked[number] = answer
            if answer:
                following.append(follow)
        return acked, following

    def settle(self, wanted: SettleItems, run: Runner) -> tuple[SettledItems, list[Follow]]:
        """Settle items of any claims in PostgreSQL; what the operation pops is not for here."""
        following: list[Follow] = []
        try:
            answer, following = self._settle(wanted, run)
        finally:
            if not following:
                self._let_go([claim.lease for claim in wanted.claims])
        return answer, following

    def _settle(self, wanted: SettleItems, run: Runner) -> tuple[SettledItems, list[Follow]]:
        plans = [self._plan(claim) for claim in wanted.claims]
        for plan in plans:
            if plan is not None and plan.before is not None:
                run(Ack([plan.before]))
        places = {}
        claims: list[SettledClaim] = []
        for number, plan in enumerate(plans):
            if plan is not None and plan.claim is not None:
                places[number] = len(claims)
                claims.append(plan.claim)
        settled: list[str | None] = [None if plan is None else SETTLED for plan in plans]
        outcomes: list[list[str | None]] = [[None] * len(claim.outcomes) for claim in wanted.claims]
        if claims:
            answer = run(
                SettleItems(
                    claims,
                    [Output(places[each.claim], each.push) for each in wanted.outputs if each.claim in places],
                    None,
                    wanted.durable,
                    [each._replace(claim=places[each.claim]) for each in wanted.results if each.claim in places],
                )
            )
            for number, place in places.items():
                settled[number], outcomes[number] = answer.settled[place], answer.outcomes[place]
        following = [
            follow
            for plan, state in zip(plans, settled, strict=True)
            if plan is not None and state == SETTLED
            for follow in plan.after
        ]
        return SettledItems(settled, outcomes, []), following

    def nack(self, wanted: Nack, run: Runner) -> tuple[str | None, list[Follow]]:
        """Say that a claim failed."""
        following: list[Follow] = []
        try:
            answer, following = self._nack(wanted, run)
        finally:
            if not following:
                self._let_go([wanted.lease])
        return answer, following

    def _nack(self, wanted: Nack, run: Runner) -> tuple[str | None, list[Follow]]:
        lease = wanted.lease
        held = self.held(lease)
        if held is None or lease.lease_id is None:
            return None, []
        failed = wanted.failed_offset
        if failed is None and len(held.offsets) == 1:
            failed = held.offsets[0]
        if failed is not None and failed not in held.offsets:
            raise InvalidInput(
                f"offset {failed} is not in the claim, which has {held.offsets[0]} to {held.offsets[-1]}"
            )
        if failed is not None:
            outcome = ItemOutcome(failed, "failed", wanted.delay, wanted.error, wanted.reason, wanted.traceback)
            claim = SettledClaim(lease, _ranges(o for o in held.offsets if o < failed), [outcome], True)
            answer, following = self.settle(SettleItems([claim]), run)
            return answer.outcomes[0][0], following
        # What lies between them is done.
        parts = [
            FailedPart(lease.partition_id, held.note.lease_id, start, stop) for start, stop in _ranges(held.offsets)
        ]
        answers = run(
            FailWarmClaims(
                lease.group_id,
                parts,
                wanted.error,
                wanted.reason or wanted.error or "nack",
                wanted.delay,
                wanted.traceback,
            )
        )
        failed_parts = [answer for answer in answers if answer is not None]
        if not failed_parts:
            return None, []
        token = token_of(lease.lease_id)
        how = "told" if held.shared else "ended"
        # 'dead letter' comes before 'retry'.
        return min(failed_parts), [Follow(lease.group_id, how, Part(token.text, token.run))]

    def _let_go(self, leases: Sequence[Lease]) -> None:
        """Let leases of which nothing was settled end when they would have."""
        tokens = {
            (each.group_id, token_of(each.lease_id).text) for each in leases if each.lease_id and is_warm(each.lease_id)
        }
        with suppress(Refused, ValkeyUnavailable, ValkeyUnusable):
            for group_id, token in tokens:
                self._windows.let_go(group_id, token)

    def _plan(self, claim: SettledClaim) -> "_Plan | None":
        """Say how to settle one claim; None where its lease is lost."""
        lease = claim.lease
        if not is_warm(lease.lease_id) or lease.lease_id is None:
            return _Plan(None, claim, [])
        held = self.held(lease)
        if held is None:
            return None
        token = token_of(lease.lease_id)
        group = lease.group_id

        def part(start: int | None = None, stop: int | None = None) -> Part:
            return Part(token.text, token.run, start, stop)

        own = {outcome.offset for outcome in claim.outcomes}
        done: list[tuple[int, int]] = []
        for start, stop in claim.done:
            if start is None or stop is None:
                done += _ranges(offset for offset in held.offsets if offset not in own)
            else:
                done.append((start, stop))
        after = [Follow(group, "told", part(start, stop)) for start, stop in done]
        after += [Follow(group, "told", part(offset, offset + 1)) for offset in sorted(own)]
        ends = not held.shared and any(outcome.outcome in _ENDING for outcome in claim.outcomes)
        if ends:
            after = [Follow(group, "ended", part())]
        elif claim.release_rest:
            after.append(Follow(group, "release", part()))
        if not done and not own:
            return _Plan(None, None, after)
        before = None
        first = min([start for start, _ in done] + sorted(own))
        if not held.shared and first > held.note.start:
            # All before it is done, or it would not have been handed out; PostgreSQL may not know yet.
            before = ClaimRange(group, lease.partition_id, held.note.lease_id, None, first)
        inner = Lease(group, lease.partition_id, held.note.lease_id)
        return _Plan(before, SettledClaim(inner, done, claim.outcomes, False, claim.noted), after)


class _Plan(NamedTuple):
    """How to settle a claim: what has to be acknowledged before, what to settle, and what the window is told."""

    before: ClaimRange | None
    claim: SettledClaim | None
    after: list[Follow]


def is_plain(claim: SettledClaim) -> bool:
    """Return whether a claim is settled by acknowledging and giving back alone."""
    return not claim.outcomes and not claim.noted


def _covers(each: ClaimRange, run: _Range) -> bool:
    _, start, stop = run
    return (each.start is None or each.start <= start) and (each.stop is None or each.stop >= stop)


def _within(offset: int, part: Part, shared: bool = True) -> bool:
    return (part.start is None or not shared or offset >= part.start) and (part.stop is None or offset < part.stop)


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive offsets as ranges."""
    return list(_runs_of(sorted(offsets)))


def _runs_of(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    start: int | None = None
    stop = 0
    for offset in offsets:
        if start is not None and offset != stop:
            yield start, stop
            start = None
        if start is None:
            start = offset
        stop = offset + 1
    if start is not None:
        yield start, stop


def without(wanted: SettleItems) -> SettleItems:
    """Return what to settle without the pop after it."""
    return wanted if wanted.pop is None else msgspec.structs.replace(wanted, pop=None)
