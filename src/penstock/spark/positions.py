"""Where in the queues: which partitions there are, where they stand, and what offsets a reader begins and ends at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.broker.operations.archives import FindArchivedAt, GetArchivedFloors
from penstock.broker.operations.ranges import FindOffsets, FindPartitions, GetHeads, GetReaderPositions
from penstock.broker.places import Place
from penstock.broker.ranges import PartitionHead
from penstock.errors import DataLost, InvalidInput, NotFound
from penstock.spark import archives
from penstock.spark.connections import PATIENCE, run
from penstock.spark.options import COMMITTED, EARLIEST, LATEST, Moments, Offsets, ReadOptions

T = TypeVar("T")
Numbers = NDArray[np.int64]


def numbers(values: Sequence[int]) -> Numbers:
    """Return whole numbers as an array."""
    return np.asarray(values, dtype=np.int64)


@dataclass(frozen=True)
class Positions:
    """An offset for each of many partitions; ids are sorted."""

    ids: Numbers
    offsets: Numbers

    @classmethod
    def of(cls, ids: Sequence[int] | Numbers, offsets: Sequence[int] | Numbers) -> "Positions":
        """Make positions of unsorted ones."""
        known = np.asarray(ids, dtype=np.int64)
        order = np.argsort(known)
        return cls(known[order], np.asarray(offsets, dtype=np.int64)[order])

    def get(self, ids: Numbers, default: Numbers) -> Numbers:
        """Return the offsets of some partitions, and the default for those that are not known."""
        if not len(self.ids):
            return default
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, self.offsets[found], default)

    def moved(self, ids: Numbers, offsets: Numbers) -> "Positions":
        """Return positions in which some are others."""
        kept = ~np.isin(self.ids, ids)
        return Positions.of(np.concatenate([self.ids[kept], ids]), np.concatenate([self.offsets[kept], offsets]))


@dataclass(frozen=True)
class Spans:
    """Where partitions stand at one moment, by id."""

    ids: Numbers
    floors: Numbers
    heads: Numbers


class Watch:
    """Looks at the partitions that the options name, and remembers their names."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._places: dict[int, Place] = {}
        self._assigned: Numbers | None = None

    def look(self, *, floors: bool = False, skip_missing: bool = False, patience: float = PATIENCE) -> Spans:
        """Look where the partitions stand now; what does not exist is an error, or is left out."""
        options = self._options
        queues = list(options.assigned) if options.assigned is not None else options.queues
        call = GetHeads(queues, options.pattern, floors, options.group, skip_missing)
        seen = run(options.target, call, patience)
        ids = numbers(seen.ids)
        order = np.argsort(ids)
        spans = Spans(ids[order], numbers(seen.floors)[order], numbers(seen.heads)[order])
        if floors and options.archive and len(ids):
            spans = Spans(spans.ids, self._with_archive(spans.ids, spans.floors), spans.heads)
        if options.assigned is None:
            return spans
        assigned = self._assigned
        if assigned is None:
            assigned = self._assign(options.assigned, spans.ids, skip_missing)
            if len(assigned) == sum(map(len, options.assigned.values())):
                self._assigned = assigned
        mine = np.isin(spans.ids, assigned)
        return Spans(spans.ids[mine], spans.floors[mine], spans.heads[mine])

    def places(self, ids: Numbers) -> dict[int, Place]:
        """Return the names of partitions; of those that were deleted, what is remembered."""
        unknown = [number for number in ids.tolist() if number not in self._places]
        if unknown:
            self.standing(numbers(unknown))
        return self._places

    def standing(self, ids: Numbers, *, archived: bool = False) -> dict[int, PartitionHead]:
        """Look where some partitions stand, by name; their floors may be those of the archive."""
        found = run(self._options.target, FindPartitions(ids.tolist()))
        self._places.update({number: Place(where.queue, where.partition) for number, where in found.items()})
        if archived and found and self._options.archive:
            floors = self._with_archive(numbers(list(found)), numbers([where.floor for where in found.values()]))
            pairs = zip(found.items(), floors.tolist(), strict=True)
            found = {number: where._replace(floor=floor) for (number, where), floor in pairs}
        return found

    def _with_archive(self, ids: Numbers, floors: Numbers) -> Numbers:
        """Lower floors to where the archive begins, where that reaches the log."""
        lowered: list[int] = run(self._options.target, GetArchivedFloors(ids.tolist(), floors.tolist()))
        return numbers(lowered)

    def _assign(self, wanted: dict[str, list[str]], ids: Numbers, skip_missing: bool) -> Numbers:
        by_place = {place: number for number, place in self.places(ids).items()}
        chosen = []
        for queue, names in wanted.items():
            for name in names:
                if Place(queue, name) not in by_place:
                    if skip_missing:
                        continue
                    raise NotFound(f'queue "{queue}" has no partition "{name}", which assign names')
                chosen.append(by_place[Place(queue, name)])
        return numbers(chosen)

    def starting(self, spans: Spans) -> Numbers:
        """Return the offset that each partition is read from; spans have floors."""
        moment = self._options.starting_time
        if moment is not None:
            return np.maximum(self.at(spans.ids, moment), spans.floors)
        if self._options.starting_times is not None:
            found = self._times(self._options.starting_times, spans, spans.floors, "startingOffsetsByTimestamp")
            return np.maximum(found, spans.floors)
        return self._offsets(self._options.starting, spans, "startingOffsets")

    def ending(self, spans: Spans) -> Numbers:
        """Return the offset that each partition is read up to."""
        if self._options.ending_time is not None:
            return self.at(spans.ids, self._options.ending_time)
        if self._options.ending_times is not None:
            return self._times(self._options.ending_times, spans, spans.heads, "endingOffsetsByTimestamp")
        return self._offsets(self._options.ending, spans, "endingOffsets")

    def _committed(self, spans: Spans) -> Numbers:
        queues = sorted({place.queue for place in self.places(spans.ids).values()})
        found = run(self._options.target, GetReaderPositions(queues, self._options.group or ""))
        return np.maximum(Positions.of(*found).get(spans.ids, spans.floors), spans.floors)

    def at(self, ids: Numbers, moment: datetime) -> Numbers:
        """Find where a moment lies in each partition."""
        in_log: list[int] = run(self._options.target, FindOffsets(ids.tolist(), moment))
        found = numbers(in_log)
        if not self._options.archive or not len(ids):
            return found
        # The log's answer is right, unless the moment lies before the log: then the archive has an earlier one.
        earlier = {
            page.partition_id: page.start if is_first else archives.offset_at(page, moment)
            for page, is_first in run(self._options.target, FindArchivedAt(ids.tolist(), moment))
        }
        return np.minimum(found, [earlier.get(number, offset) for number, offset in zip(ids, found, strict=True)])

    def _times(self, wanted: Moments, spans: Spans, others: Numbers, option: str) -> Numbers:
        """Find where the moment of each partition lies; where there is none, take `others`."""
        given = self._named(wanted, spans, option)
        chosen = others.copy()
        for moment in set(given.values()):
            these = np.array([given.get(number) == moment for number in spans.ids.tolist()], dtype=bool)
            chosen[these] = self.at(spans.ids[these], moment)
        return chosen

    def _named(self, wanted: Mapping[str, Mapping[str, T]], spans: Spans, option: str) -> dict[int, T]:
        """Return by id what an option says of partitions by name; a name that is not read is refused."""
        places = self.places(spans.ids)
        given = {Place(queue, name): what for queue, names in wanted.items() for name, what in names.items()}
        unknown = given.keys() - {places[number] for number in spans.ids.tolist()}
        if unknown:
            queue, name = min(unknown)
            raise InvalidInput(f'{option} names partition "{name}" of queue "{queue}", which is not among those read')
        return {number: given[places[number]] for number in spans.ids.tolist() if places[number] in given}

    def _offsets(self, wanted: int | Offsets, spans: Spans, option: str) -> Numbers:
        if wanted == COMMITTED:
            return self._committed(spans)
        if isinstance(wanted, int):
            return spans.floors if wanted == EARLIEST else spans.heads
        given = self._named(wanted, spans, option)
        # Whoever names some partitions wants all of the others.
        chosen = spans.floors.copy() if option == "startingOffsets" else spans.heads.copy()
        for index, number in enumerate(spans.ids.tolist()):
            offset = given.get(number)
            if offset is None:
                continue
            low, high = int(spans.floors[index]), int(spans.heads[index])
            if offset in (EARLIEST, LATEST):
                offset = low if offset == EARLIEST else high
            elif not low <= offset <= high and self._options.fail_on_data_loss:
                raise data_lost(self.places(spans.ids)[number], offset, low, high)
            chosen[index] = min(max(offset, low), high)
        return chosen


def data_lost(place: Place | None, offset: int, low: int, high: int) -> DataLost:
    """Return what to raise when offsets are not there (any more)."""
    where = "a partition that was deleted" if place is None else f'partition "{place.partition}" of "{place.queue}"'
    return DataLost(
        f"offset {offset} of {where} is not there: it has offsets {low} to {high}. Retention dropped what this query "
        "has still to read, or the partition was deleted. Start with a new checkpoint, or set failOnDataLoss to false "
        "to go on with what there is."
    )
