"""Health: consumers report how they fare; operators look at consumers and breakers, and reset them."""

from collections.abc import Sequence
from typing import Any

from penstock.broker.health import BreakerInfo, ConsumerHealth, ConsumerInfo, GroupHealth, GroupVerdict
from penstock.broker.names import check_depth, check_group_names, check_names
from penstock.broker.operations.operation import Repeatable


class ReportHealth(Repeatable[list[GroupVerdict]], frozen=True):
    """Say how a consumer fares, and what it handled for each group; the reply is what the breakers of the groups say.

    `number` counts the reports of a consumer: one that is repeated changes nothing.
    """

    consumer: str
    number: int
    health: ConsumerHealth
    groups: Sequence[GroupHealth] = ()
    description: str | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_names(self.consumer, what=("consumer",))
        check_depth("metadata", self.metadata)


class ListConsumers(Repeatable[list[ConsumerInfo]], frozen=True):
    """List consumers and how they fare."""


class ResetConsumer(Repeatable[bool], frozen=True):
    """Let a consumer count from 0 and close its own breaker; one that is gone is deleted, which the reply says."""

    consumer: str

    def __post_init__(self) -> None:
        check_names(self.consumer, what=("consumer",))


class ListBreakers(Repeatable[list[BreakerInfo]], frozen=True):
    """List the circuit breakers of groups."""


class ResetBreaker(Repeatable[bool], frozen=True):
    """Close the circuit breaker of a group; the reply is whether it was open."""

    queue: str
    group: str

    def __post_init__(self) -> None:
        check_group_names(self.queue, self.group)
