"""Reads what the clients of the chaos test wrote down, and says what must not be so."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Log = dict[str, list[str]]


@dataclass
class Claimed:
    """A claim that a client was given, and what became of it."""

    partition: str
    lease: str
    claimed_at: float
    until: float
    start: int
    stop: int
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


class Notes:
    """All that was written down by all clients."""

    def __init__(self, folder: Path, lease: float) -> None:
        self.pushed: list[tuple[str, int, str]] = []
        self.claims: dict[str, dict[tuple[str, str, int], Claimed]] = defaultdict(dict)
        for path in sorted(folder.iterdir()):
            role = path.name.partition("-")[0]
            for what, *rest in map(json.loads, whole_lines(path)):
                self._read(role, lease, what, rest)

    def _read(self, role: str, lease: float, what: str, rest: list[Any]) -> None:
        if what == "pushed":
            partition, first, values = rest
            self.pushed += [(partition, first + index, value) for index, value in enumerate(values)]
        elif what == "delivered":
            partition, lease_id, until, start, stop, offsets, values = rest
            claimed = Claimed(
                partition, lease_id, until - lease, until, start, stop, dict(zip(offsets, values, strict=True))
            )
            self.claims[role][partition, lease_id, start] = claimed
        else:
            partition, lease_id, failed = rest
            for claimed in self.claims[role].values():
                if (claimed.partition, claimed.lease) == (partition, lease_id):
                    claimed.outcome, claimed.failed = what, failed


def lost_pushes(notes: Notes, log: Log) -> Iterator[str]:
    """Say which pushes returned and are not in the log where they were said to be."""
    for partition, offset, value in notes.pushed:
        if log[partition][offset : offset + 1] != [value]:
            yield f"{value} was pushed to {partition}[{offset}], which has {log[partition][offset : offset + 1]}"


def whole_lines(path: Path) -> list[str]:
    """Read a record, but for the line in the middle of which its writer was killed."""
    return path.read_text().rpartition("\n")[0].splitlines()


def wrong_deliveries(claims: Iterable[Claimed], log: Log) -> Iterator[str]:
    """Say which deliveries were not what lies in the log."""
    for claim in claims:
        if claim.values != {offset: log[claim.partition][offset] for offset in range(claim.start, claim.stop)}:
            yield f"{claim.partition}[{claim.start}:{claim.stop}] came as {claim.values}"


def lost_messages(claims: Iterable[Claimed], log: Log, dead: set[tuple[str, int]]) -> Iterator[str]:
    """Say which messages are neither acknowledged nor dead, nor in the hands of somebody who died with them."""
    settled = set(dead)
    in_hand: set[tuple[str, int]] = set()
    for claim in claims:
        settled.update((claim.partition, offset) for offset in claim.done())
        if claim.outcome == "settling":
            # The client was killed before it could write down whether its acknowledgement went through.
            in_hand.update((claim.partition, offset) for offset in claim.values)
    for partition, values in log.items():
        for offset in range(len(values)):
            if (partition, offset) not in settled and (partition, offset) not in in_hand:
                yield f"{partition}[{offset}] was lost"


def done_twice(claims: Iterable[Claimed], dead: set[tuple[str, int]]) -> Iterator[str]:
    """Say which messages were acknowledged by two claims, or acknowledged and dead."""
    seen = dict.fromkeys(dead, "the dead letters")
    for claim in claims:
        for offset in claim.done():
            before = seen.setdefault((claim.partition, offset), claim.lease)
            if before != claim.lease:
                yield f"{claim.partition}[{offset}] is done by {before} and by {claim.lease}"


def disorder(claims: Iterable[Claimed], dead: set[tuple[str, int]]) -> Iterator[str]:
    """Say where an ordered group went back behind an acknowledgement, left a gap, or had two claims at a time."""
    by_partition: dict[str, list[Claimed]] = defaultdict(list)
    for claim in claims:
        by_partition[claim.partition].append(claim)
    for partition, given in by_partition.items():
        given.sort(key=lambda claim: claim.claimed_at)
        done_to = reached = 0
        for before, claim in zip([None, *given], given, strict=False):
            if claim.start < done_to:
                yield f"{partition}[{claim.start}:{claim.stop}] came after all below {done_to} was done"
            if any((partition, offset) not in dead for offset in range(reached, claim.start)):
                yield f"{partition}[{claim.start}:{claim.stop}] came and nothing from {reached} on before it"
            # Nobody ended that one: only its deadline can have, and two clocks of one machine agree to a microsecond.
            if before is not None and before.outcome in ("held", "lost") and claim.claimed_at < before.until - 1e-5:
                yield f"{partition}: {claim.lease} was given while {before.lease} was live"
            done_to = max(done_to, claim.done().stop)
            reached = max(reached, claim.stop)
