"""Reads what the clients of the chaos test wrote down, and says what must not be so."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Place = tuple[str, int]


class Stored(NamedTuple):
    """A message as it lies in the log."""

    value: str
    at: float


Log = dict[str, list[Stored]]


@dataclass
class Claimed:
    """A claim that a client was given, and what became of it."""

    partition: str
    lease: str
    claimed_at: float
    until: float
    start: int
    stop: int
    attempt: int
    noted_at: float
    values: dict[int, str]
    outcome: str = "held"
    failed: int | None = None

    def done(self) -> range:
        """Return the offsets that are done because of this claim, as far as the client knows."""
        if self.outcome == "acked":
            return range(self.start, self.stop)
        if self.outcome == "failed" and self.failed is not None:
            return range(self.start, self.failed)
        return range(0)

    def may_have_failed(self, offset: int) -> bool:
        """Tell whether this delivery can count as an attempt of a message."""
        if self.outcome == "failed":
            return self.failed in (None, offset)
        return self.outcome in ("held", "lost", "settling")


class Notes:
    """All that was written down by all clients."""

    def __init__(self, folder: Path, lease: float) -> None:
        self.pushed: list[tuple[str, int, str]] = []
        self.stored: list[tuple[str, str]] = []
        self.claims: dict[str, dict[tuple[str, str, int], Claimed]] = defaultdict(dict)
        for path in sorted(folder.iterdir()):
            role = path.name.partition("-")[0]
            by_lease: dict[tuple[str, str], list[Claimed]] = defaultdict(list)
            for what, *rest in map(json.loads, whole_lines(path)):
                self._read(role, lease, by_lease, what, rest)

    def _read(
        self, role: str, lease: float, by_lease: dict[tuple[str, str], list[Claimed]], what: str, rest: list[Any]
    ) -> None:
        if what == "pushed":
            partition, first, values = rest
            self.pushed += [(partition, first + index, value) for index, value in enumerate(values)]
        elif what == "stored":
            self.stored.append((rest[0], rest[1]))
        elif what == "delivered":
            partition, lease_id, until, start, stop, attempt, noted_at, offsets, values = rest
            delivered = dict(zip(offsets, values, strict=True))
            claimed = Claimed(partition, lease_id, until - lease, until, start, stop, attempt, noted_at, delivered)
            self.claims[role][partition, lease_id, start] = claimed
            by_lease[partition, lease_id].append(claimed)
        else:
            partition, lease_id, failed = rest
            for claimed in by_lease[partition, lease_id]:
                claimed.outcome, claimed.failed = what, failed


def whole_lines(path: Path) -> list[str]:
    """Read a record, but for the line in the middle of which its writer was killed."""
    return path.read_text().rpartition("\n")[0].splitlines()


def wrong_pushes(notes: Notes, log: Log) -> Iterator[str]:
    """Say which pushes returned and are not in the log where they were said to be, or are there twice."""
    for partition, offset, value in notes.pushed:
        found = [stored.value for stored in log[partition][offset : offset + 1]]
        if found != [value]:
            yield f"{value} was pushed to {partition}[{offset}], which has {found}"
    times = Counter((partition, stored.value) for partition, messages in log.items() for stored in messages)
    for partition, value in notes.stored:
        if not times[partition, value]:
            yield f"{value} was pushed to {partition} and is not there"
    for (partition, value), count in times.items():
        if count > 1:
            yield f"{value} is {count} times in {partition}"


def early_messages(log: Log) -> Iterator[str]:
    """Say which messages were in the log before they were due."""
    for partition, messages in log.items():
        for offset, stored in enumerate(messages):
            _, said, due = stored.value.partition("@")
            # Kept to the microsecond there, and written with less here.
            if said and stored.at < float(due) - 1e-5:
                yield f"{partition}[{offset}] was due at {due} and came at {stored.at}"


def wrong_deliveries(claims: Iterable[Claimed], log: Log) -> Iterator[str]:
    """Say which deliveries were not what lies in the log."""
    for claim in claims:
        if claim.values != {offset: log[claim.partition][offset].value for offset in range(claim.start, claim.stop)}:
            yield f"{claim.partition}[{claim.start}:{claim.stop}] came as {claim.values}"


def lost_messages(claims: Iterable[Claimed], log: Log, dead: Iterable[Place]) -> Iterator[str]:
    """Say which messages are neither acknowledged nor dead, nor in the hands of somebody who died with them."""
    settled = set(dead)
    in_hand: set[Place] = set()
    for claim in claims:
        settled.update((claim.partition, offset) for offset in claim.done())
        if claim.outcome == "settling":
            # The client was killed, or the server, before it could write down whether its acknowledgement went through.
            in_hand.update((claim.partition, offset) for offset in claim.values)
    for partition, values in log.items():
        for offset in range(len(values)):
            if (partition, offset) not in settled and (partition, offset) not in in_hand:
                yield f"{partition}[{offset}] was lost"


def done_twice(claims: Iterable[Claimed], dead: Iterable[Place]) -> Iterator[str]:
    """Say which messages were acknowledged by two claims, or acknowledged and dead."""
    seen = dict.fromkeys(dead, "the dead letters")
    for claim in claims:
        for offset in claim.done():
            before = seen.setdefault((claim.partition, offset), claim.lease)
            if before != claim.lease:
                yield f"{claim.partition}[{offset}] is done by {before} and by {claim.lease}"


def wrong_attempts(claims: Iterable[Claimed], dead: dict[Place, int], limit: int, *, durable: bool) -> Iterator[str]:
    """Say what was delivered more often than allowed, and what died of others' failures.

    A client that was killed may not have written down what it was given. So of each attempt of a dead letter it is
    asked: was it written down, and in each case as one that cannot have failed?
    """
    deliveries: dict[Place, list[Claimed]] = defaultdict(list)
    for claim in claims:
        if claim.attempt > limit:
            yield f"{claim.partition}[{claim.start}:{claim.stop}] came for the {claim.attempt}th time"
        for offset in claim.values:
            deliveries[claim.partition, offset].append(claim)
    for (partition, offset), attempts in dead.items():
        if attempts != limit:
            yield f"{partition}[{offset}] died after {attempts} attempts and not {limit}"
        for attempt in range(1, attempts + 1):
            noted = [claim for claim in deliveries[partition, offset] if claim.attempt == attempt]
            # An ack that a crash undid is an attempt that failed.
            if durable and noted and not any(claim.may_have_failed(offset) for claim in noted):
                how = [(claim.outcome, claim.failed) for claim in noted]
                yield f"{partition}[{offset}] is dead, and its attempt {attempt} was {how}"


def lost_acks(claims: Iterable[Claimed], committed: dict[str, int]) -> Iterator[str]:
    """Say which partitions of an ordered group stand before what was acknowledged there."""
    for claim in claims:
        if claim.outcome == "acked" and claim.stop > committed[claim.partition]:
            where = committed[claim.partition]
            yield f"{claim.partition} stands at {where}, and all below {claim.stop} was acknowledged"


def disorder(
    claims: Iterable[Claimed], dead: Iterable[Place], crashes: Sequence[float], *, durable: bool
) -> Iterator[str]:
    """Say where an ordered group went back behind an acknowledgement, left a gap, or had two claims at a time.

    A crash of the server may undo a claim, which is then given again though it is live, and in a group whose acks are
    not `durable` an ack.
    """
    buried = set(dead)
    by_partition: dict[str, list[Claimed]] = defaultdict(list)
    for claim in claims:
        by_partition[claim.partition].append(claim)
    for partition, given in by_partition.items():
        given.sort(key=lambda claim: claim.claimed_at)
        done_to = reached = 0
        for before, claim in zip([None, *given], given, strict=False):
            if claim.start < done_to and durable:
                yield f"{partition}[{claim.start}:{claim.stop}] came after all below {done_to} was done"
            if any((partition, offset) not in buried for offset in range(reached, claim.start)):
                yield f"{partition}[{claim.start}:{claim.stop}] came and nothing from {reached} on before it"
            # Nobody ended that one: only its deadline can have, and two clocks of one machine agree to a microsecond.
            if (
                before is not None
                and before.outcome in ("held", "lost")
                and claim.claimed_at < before.until - 1e-5
                and not any(before.claimed_at < crash < claim.claimed_at for crash in crashes)
            ):
                yield f"{partition}: {claim.lease} was given while {before.lease} was live"
            done_to = max(done_to, claim.done().stop)
            reached = max(reached, claim.stop)
