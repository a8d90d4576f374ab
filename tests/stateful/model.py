"""What penstock promises, in as few words as possible: the model that the real thing is compared with.

A group's view of a partition is a set of offsets that are done, the offsets that somebody holds, and how often each
was delivered. Everything else follows.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID


@dataclass
class Partition:
    """A lane: the values of all offsets, of which those below the floor are dropped."""

    name: str
    values: list[int | None] = field(default_factory=list)
    floor: int = 0
    # A lane of one group's own, for what it redrives.
    private: bool = False

    @property
    def head(self) -> int:
        return len(self.values)


@dataclass
class Track:
    """How far a group is in a partition."""

    done: set[int] = field(default_factory=set)
    held: dict[int, UUID] = field(default_factory=dict)
    deliveries: Counter[int] = field(default_factory=Counter)

    def first_open(self) -> int:
        return next(offset for offset in range(len(self.done) + 1) if offset not in self.done)


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    offset: int
    value: int | None
    attempts: int


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

    def add_group(self, group: Group, *, only_new: bool = False) -> None:
        self.groups[group.name] = group
        for partition in self.partitions.values():
            done = set(range(partition.head)) if only_new else set[int]()
            group.tracks[partition.name] = Track(done)

    def push(self, name: str, values: list[int | None]) -> int:
        """Append; return the first offset."""
        if name not in self.partitions:
            self.partitions[name] = Partition(name)
            for group in self.groups.values():
                group.tracks[name] = Track()
        partition = self.partitions[name]
        partition.values += values
        return partition.head - len(values)

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

    def expect(self, group: Group, partition: Partition, limit: int) -> list[int]:
        """Return the offsets that an ordered group must get from a partition that it gets."""
        offsets = self.open_offsets(group, partition)
        # What was delivered before and failed comes alone.
        return offsets[:1] if group.tracks[partition.name].deliveries[offsets[0]] else offsets[:limit]

    def deliver(self, held: Held, offsets: list[int]) -> None:
        """Take note of a claim."""
        group = self.groups[held.group]
        track = group.tracks[held.partition]
        if group.mode == "ordered":
            track.done.update(range(offsets[0]))
        track.held.update(dict.fromkeys(range(held.start, held.stop), held.lease))
        track.deliveries.update(offsets)

    def holds(self, held: Held) -> list[int]:
        """Return what is left of a claim; nothing when its lease is gone."""
        track = self.groups[held.group].tracks.get(held.partition)
        return [] if track is None else sorted(o for o, lease in track.held.items() if lease == held.lease)

    def leases(self) -> set[UUID]:
        return {
            lease for group in self.groups.values() for track in group.tracks.values() for lease in track.held.values()
        }

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
            track.deliveries[offset] -= 1

    def fail(self, held: Held, failed: int | None) -> None:
        """End a claim that failed, at a known offset or not."""
        group = self.groups[held.group]
        track = group.tracks[held.partition]
        offsets = self.holds(held)
        known = failed if failed is not None else offsets[0] if len(offsets) == 1 else None
        for offset in offsets:
            del track.held[offset]
            if known is not None and offset < known:
                track.done.add(offset)
            elif known is not None and offset > known:
                # Not reached: this delivery was none.
                track.deliveries[offset] -= 1
        if known is not None and track.deliveries[known] >= group.max_attempts:
            self._bury(group, held.partition, known)

    def _bury(self, group: Group, name: str, offset: int) -> None:
        track, partition = group.tracks[name], self.partition(group, name)
        track.done.add(offset)
        if offset >= partition.floor:
            group.letters.append(Letter(offset, partition.values[offset], track.deliveries[offset]))

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
        group.lane.values += [letter.value for letter in group.letters]
        count, group.letters = len(group.letters), []
        return count
