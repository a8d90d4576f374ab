"""What penstock promises, in as few words as possible: the model that the real thing is compared with.

A group's view of a partition is a set of offsets that are done, the offsets that somebody holds, and how many
deliveries of each count. Everything else follows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from penstock.broker.items import ItemOutcome


class Content(NamedTuple):
    """What a message says."""

    value: bytes | None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Partition:
    """A lane: the contents of all offsets, of which those below the floor are dropped."""

    name: str
    contents: list[Content] = field(default_factory=list)
    floor: int = 0
    # A lane of one group's own, for what it redrives.
    private: bool = False

    @property
    def head(self) -> int:
        return len(self.contents)


@dataclass
class Track:
    """How far a group is in a partition."""

    done: set[int] = field(default_factory=set)
    held: dict[int, UUID] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    # Deliveries that failed at a message, or where nobody knows at which: what its attempts must come to.
    failures: Counter[int] = field(default_factory=Counter)

    def first_open(self) -> int:
        return next(offset for offset in range(len(self.done) + 1) if offset not in self.done)


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    offset: int
    content: Content
    attempts: int
    # How many of them failed at this message, or may have.
    failures: int


@dataclass
class Group:
    """A reader of the queue."""

    name: str
    mode: str
    max_attempts: int
    tracks: dict[str, Track] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    lane: Partition | None = None


@dataclass(frozen=True)
class Held:
    """A claim as it was handed out."""

    group: str
    partition: str
    lease: UUID
    start: int
    stop: int


class Model:
    """A queue with its groups."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.groups: dict[str, Group] = {}

    # Pushing

    def add_group(self, group: Group, *, only_new: bool = False) -> None:
        self.groups[group.name] = group
        for partition in self.partitions.values():
            done = set(range(partition.head)) if only_new else set[int]()
            group.tracks[partition.name] = Track(done)

    def push(self, name: str, contents: list[Content]) -> int:
        """Append; return the first offset."""
        self.add_partition(name)
        partition = self.partitions[name]
        partition.contents += contents
        return partition.head - len(contents)

    def add_partition(self, name: str) -> None:
        if name not in self.partitions:
            self.partitions[name] = Partition(name)
            for group in self.groups.values():
                group.tracks[name] = Track()

    # Looking

    def lanes(self, group: Group) -> Iterator[tuple[Partition, Track]]:
        """Yield all that a group reads."""
        for partition in [*self.partitions.values(), *([group.lane] if group.lane else [])]:
            yield partition, group.tracks[partition.name]

    def lag(self, group: Group) -> int:
        return sum(
            offset not in track.done
            for partition, track in self.lanes(group)
            for offset in range(partition.floor, partition.head)
        )

    def open_offsets(self, group: Group, partition: Partition) -> list[int]:
        """Return what may be handed out of a partition now."""
        track = group.tracks[partition.name]
        if group.mode == "ordered" and track.held:
            return []
        return [
            offset
            for offset in range(partition.floor, partition.head)
            if offset not in track.done and offset not in track.held
        ]

    def partition(self, group: Group, name: str) -> Partition:
        if group.lane is not None and group.lane.name == name:
            return group.lane
        return self.partitions[name]

    def may_come(self, group: Group, partition: Partition, limit: int, offsets: list[int]) -> bool:
        """Tell whether these offsets may be handed out together: what was delivered before and failed comes alone."""
        waiting = self.open_offsets(group, partition)
        most = 1 if group.tracks[partition.name].attempts[offsets[0]] else limit
        if group.mode == "ordered":
            return offsets == waiting[:most]
        in_a_row = list(range(offsets[0], offsets[0] + len(offsets)))
        return offsets == in_a_row and set(offsets) <= set(waiting) and len(offsets) <= most

    def consumed_to(self, name: str) -> int:
        """Return up to where no group needs a partition any more."""
        return min(
            (group.tracks[name].first_open() for group in self.groups.values() if name in group.tracks),
            default=self.partitions[name].head if name in self.partitions else 0,
        )

    def leases(self) -> set[UUID]:
        return {
            lease for group in self.groups.values() for track in group.tracks.values() for lease in track.held.values()
        }

    def holds(self, held: Held) -> list[int]:
        """Return what is left of a claim; nothing when its lease is gone."""
        group = self.groups.get(held.group)
        track = None if group is None else group.tracks.get(held.partition)
        return [] if track is None else sorted(o for o, lease in track.held.items() if lease == held.lease)

    # Claiming and settling

    def deliver(self, held: Held, offsets: list[int]) -> None:
        """Take note of a claim."""
        group = self.groups[held.group]
        track = group.tracks[held.partition]
        if group.mode == "ordered":
            track.done.update(range(offsets[0]))
        track.held.update(dict.fromkeys(range(held.start, held.stop), held.lease))
        track.attempts.update(offsets)

    def ack(self, held: Held, up_to: int | None = None, only: int | None = None) -> None:
        track = self.groups[held.group].tracks[held.partition]
        for offset in self.holds(held):
            if (up_to is None or offset < up_to) and only in (None, offset):
                del track.held[offset]
                track.done.add(offset)

    def release(self, held: Held) -> None:
        track = self.groups[held.group].tracks[held.partition]
        for offset in self.holds(held):
            del track.held[offset]
            track.attempts[offset] -= 1

    def fail(self, held: Held, failed: int | None) -> None:
        """End a claim that failed, at a known offset or not: all before that offset is done."""
        group = self.groups[held.group]
        track = group.tracks[held.partition]
        offsets = self.holds(held)
        known = offsets[0] if failed is None and len(offsets) == 1 else failed
        track.failures.update(offsets if known is None else [known])
        for offset in offsets:
            del track.held[offset]
            if known is not None and offset < known:
                track.done.add(offset)
            elif known is not None and offset > known:
                # Not reached: this delivery does not count.
                track.attempts[offset] -= 1
        if known is not None and track.attempts[known] >= group.max_attempts:
            self._bury(group, held.partition, known)

    def settle_items(
        self, held: Held, done: Sequence[tuple[int | None, int | None]], outcomes: Sequence[ItemOutcome], release: bool
    ) -> list[str]:
        """Settle items of a claim, each by itself; return what the broker says of the outcomes."""
        group = self.groups[held.group]
        track = group.tracks[held.partition]
        answers = []
        for each in outcomes:
            del track.held[each.offset]
            answer = each.outcome
            if each.outcome == "snoozed":
                track.attempts[each.offset] -= 1
            else:
                track.failures[each.offset] += 1
                answer = "retry"
                if each.outcome == "dead" or track.attempts[each.offset] >= group.max_attempts:
                    answer = "dead letter"
                    self._bury(group, held.partition, each.offset)
            answers.append(answer)
        for offset in self.holds(held):
            if any(start is None or start <= offset < (stop or 0) for start, stop in done):
                del track.held[offset]
                track.done.add(offset)
        if release or (group.mode == "ordered" and any(each.outcome in ("failed", "snoozed") for each in outcomes)):
            self.release(held)
        return answers

    def _bury(self, group: Group, name: str, offset: int) -> None:
        track, partition = group.tracks[name], self.partition(group, name)
        track.done.add(offset)
        if offset >= partition.floor:
            group.letters.append(
                Letter(offset, partition.contents[offset], track.attempts[offset], track.failures[offset])
            )

    # Operating

    def seek(self, group: Group, name: str, position: int) -> None:
        track = group.tracks[name]
        if group.mode == "ordered" and not track.held and track.first_open() == position:
            return
        group.tracks[name] = Track(set(range(position)))

    def purge(self, name: str | None) -> int:
        """Drop all messages; return how many."""
        lanes = [group.lane for group in self.groups.values() if group.lane]
        dropped = 0
        for partition in [self.partitions[name]] if name else [*self.partitions.values(), *lanes]:
            dropped += partition.head - partition.floor
            partition.floor = partition.head
        return dropped

    def delete_partition(self, name: str) -> None:
        del self.partitions[name]
        for group in self.groups.values():
            del group.tracks[name]

    def redrive(self, group: Group, lane: str) -> int:
        """Move a group's dead letters to its lane; return how many."""
        if not group.letters:
            return 0
        if group.lane is None:
            group.lane = Partition(lane, private=True)
            group.tracks[lane] = Track()
        group.lane.contents += [letter.content for letter in group.letters]
        count, group.letters = len(group.letters), []
        return count
