"""Queues and partitions: create, configure, list, delete, maintain."""

from typing import Any

import msgspec

from penstock.broker.infos import MaintenanceResult, PartitionInfo, QueueInfo
from penstock.broker.names import check_description, check_names, check_priority, checked_settings
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.places import Place
from penstock.errors import InvalidInput


class CreateQueue(Operation[None], frozen=True):
    """Create a queue."""

    queue: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    description: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue)
        check_description(self.description)
        msgspec.structs.force_setattr(self, "config", checked_settings(self.config))


class CreatePartition(Operation[None], frozen=True):
    """Create a partition."""

    place: Place
    priority: int = 0

    def __post_init__(self) -> None:
        check_names(*self.place)
        check_priority(self.priority)


class ConfigureQueue(Repeatable[dict[str, Any]], frozen=True):
    """Change a queue's settings; the reply is what now holds."""

    queue: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    description: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue)
        check_description(self.description)
        msgspec.structs.force_setattr(self, "changes", checked_settings(self.changes))


class PauseQueue(Repeatable[bool], frozen=True):
    """Refuse pushes to a queue, or let them go on; the reply is whether that changed anything."""

    queue: str
    paused: bool = True

    def __post_init__(self) -> None:
        check_names(self.queue)


class ConfigureDatabase(Repeatable[dict[str, Any]], frozen=True):
    """Change what holds for the whole database; the reply is what now holds."""

    create_on_first_use: bool | None = None

    def __post_init__(self) -> None:
        if self.create_on_first_use is not None and not isinstance(self.create_on_first_use, bool):
            raise InvalidInput(f"create_on_first_use is {self.create_on_first_use!r} but must be True, False or None")


class ConfigurePartition(Repeatable[None], frozen=True):
    """Change a partition."""

    place: Place
    priority: int | None = None

    def __post_init__(self) -> None:
        check_names(*self.place)
        check_priority(self.priority)


class ListQueues(Repeatable[list[QueueInfo]], frozen=True):
    """Describe all queues, or one that must exist."""

    queue: str | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_names(self.queue)


class ListPartitions(Repeatable[list[PartitionInfo]], frozen=True):
    """Describe the partitions of a queue, or one that must exist."""

    queue: str
    partition: str | None = None
    after: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_names(self.queue) if self.partition is None else check_names(self.queue, self.partition)


class GetSpread(Repeatable[int], frozen=True):
    """Return over how many partitions a queue spreads."""

    queue: str

    def __post_init__(self) -> None:
        check_names(self.queue)


class Purge(Repeatable[int], frozen=True):
    """Drop all messages of a queue or of one partition; the reply is how many."""

    queue: str
    partition: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue) if self.partition is None else check_names(self.queue, self.partition)


class Delete(Operation[int], frozen=True):
    """Delete a queue, or one partition, with all that belongs to it; the reply is how many messages it had."""

    queue: str
    partition: str | None = None

    def __post_init__(self) -> None:
        check_names(self.queue) if self.partition is None else check_names(self.queue, self.partition)


class Maintain(Repeatable[MaintenanceResult | None], frozen=True):
    """Apply retention and merge small segments in a chunk of partitions; None when another process is at it."""

    after: int = 0
    partitions: int = 1000
    min_segments: int = 64
