"""What the stream of a window says, in the words of PostgreSQL: what is done, whose leases ended, what to give back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.broker.claims import ClaimRange
from penstock.broker.warm import FailedPart

# Ranges that one call acknowledges, so that none takes long.
MOST_RANGES = 1000


@dataclass
class Reported:
    """What a part of the stream says, and where the part behind it begins."""

    done: list[ClaimRange] = field(default_factory=list)
    items: int = 0
    expired: list[FailedPart] = field(default_factory=list)
    withdrawn: list[tuple[int, UUID]] = field(default_factory=list)
    halted: bool = False
    next_id: str = "0-0"


def read(group_id: int, shared: bool, entries: Sequence[tuple[bytes, Any]]) -> Reported:
    """Read entries of the stream; ranges that follow one another become one."""
    reported = Reported()
    ranges: dict[tuple[str, int], list[list[int]]] = {}
    for entry_id, fields in entries:
        pairs = fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True)
        for kind, text in pairs:
            reported.halted = reported.halted or kind == b"halted"
            for line in text.decode().split("\n") if text else ():
                lease, partition, *numbers = line.split(" ")
                if kind == b"done":
                    start, stop = int(numbers[0]), int(numbers[1])
                    reported.items += stop - start
                    known = ranges.setdefault((lease, int(partition)), [])
                    if known and known[-1][1] == start:
                        known[-1][1] = stop
                    else:
                        known.append([start, stop])
                elif kind == b"expired":
                    reported.expired.append(
                        FailedPart(int(partition), UUID(lease), int(numbers[0]), int(numbers[1]), numbers[2] == "1")
                    )
                elif kind == b"withdrawn":
                    reported.withdrawn.append((int(partition), UUID(lease)))
        head, _, tail = entry_id.decode().partition("-")
        reported.next_id = f"{head}-{int(tail) + 1}"
    for (lease, partition_id), spans in ranges.items():
        # In an ordered group all below the end is done.
        for start, stop in _merged(spans) if shared else [(spans[0][0], max(stop for _, stop in spans))]:
            reported.done.append(ClaimRange(group_id, partition_id, UUID(lease), start, stop))
    return reported


def _merged(spans: list[list[int]]) -> list[tuple[int, int]]:
    merged: list[list[int]] = []
    for start, stop in sorted(spans):
        if merged and merged[-1][1] >= start:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return [(start, stop) for start, stop in merged]
