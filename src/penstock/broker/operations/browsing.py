"""Browsing: bounded reads for people who look around. Each says how far it looked."""

from collections.abc import Sequence
from datetime import datetime

from penstock.broker.browsing import FoundPartitions, LagCell, OutlinedQueue, TotalPoint
from penstock.broker.names import check_group_names, check_moment, check_names, check_whole
from penstock.broker.operations.operation import Repeatable


class GetOutline(Repeatable[list[OutlinedQueue]], frozen=True):
    """Describe all queues and groups without counting anything."""


class SearchPartitions(Repeatable[FoundPartitions], frozen=True):
    """Find partitions of a queue by a part of their name, sorted by 'name', 'newest' or a group's 'lag'."""

    queue: str
    group: str | None = None
    search: str | None = None
    sort: str = "name"
    after: str | None = None
    skip: int = 0
    limit: int = 50
    max_look: int = 20_000

    def __post_init__(self) -> None:
        check_names(self.queue) if self.group is None else check_group_names(self.queue, self.group)
        for name in ("skip", "limit", "max_look"):
            check_whole(name, getattr(self, name))


class MapLag(Repeatable[list[LagCell]], frozen=True):
    """Say where the lag of a group sits: its partitions in cells, in the order in which they were created."""

    queue: str
    group: str
    cells: int = 120
    max_look: int = 20_000

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)
        check_whole("cells", self.cells)
        check_whole("max_look", self.max_look)


class ListTotals(Repeatable[list[TotalPoint]], frozen=True):
    """Return what was counted in all queues together, or in some of them, by steps of time, for a chart."""

    begin_at: datetime
    end_at: datetime
    step: float = 60.0
    queues: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_moment(self.begin_at)
        check_moment(self.end_at)
