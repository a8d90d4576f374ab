"""What a caller is shown of lists: a key for the queues `orders*` gets the rows of those, and no others.

What belongs to several queues, such as a consumer, is shown to those who may see all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.broker.browsing import OutlinedQueue
from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.infos import QueueInfo
from penstock.broker.metrics import Facts, RecentCount
from penstock.broker.tasks import TaskInfo
from penstock.gateway.access.callers import ANYBODY, Caller
from penstock.gateway.scopes import Scope

T = TypeVar("T")


class Sight:
    """What somebody may see; with `whole`, everything."""

    def __init__(self, caller: Caller, scope: Scope = Scope.READ) -> None:
        self._caller = caller
        self._scope = scope
        self.whole = caller.allows(scope, None)
        # Those who may see the same are shown the same.
        self.key = None if self.whole else caller.grants

    def sees(self, queue: str | None) -> bool:
        """Say whether it may see a queue; None is for what belongs to no queue."""
        return self.whole or (queue is not None and self._caller.allows(self._scope, queue))

    def rows(self, found: Iterable[T]) -> list[T]:
        """Return the rows of its queues, of a list whose rows are queues or name one."""
        return list(found) if self.whole else [each for each in found if self.sees(queue_of(each))]

    def actions(self, found: Iterable[ActionInfo]) -> list[ActionInfo]:
        """Return the actions whose items come from its queues."""
        if self.whole:
            return list(found)
        return [
            each if self.sees(each.output) else msgspec.structs.replace(each, output=None)
            for each in found
            if self.sees(each.queue)
        ]

    def tasks(self, found: Iterable[TaskInfo], actions: Iterable[ActionInfo]) -> list[TaskInfo]:
        """Return the running tasks of such actions."""
        if self.whole:
            return list(found)
        queues = queues_of(actions)
        return [each for each in found if self.sees(queues.get((each.flow, each.action)))]

    def flows(self, found: Iterable[FlowInfo]) -> list[FlowInfo]:
        """Return the flows that read from its queues alone, without other queues that they push to."""
        if self.whole:
            return list(found)
        return [
            msgspec.structs.replace(each, outputs=[queue for queue in each.outputs if self.sees(queue)])
            for each in found
            if each.sources and all(map(self.sees, each.sources))
        ]

    def facts(self, found: Facts) -> Facts:
        """Return the facts of its queues."""
        if self.whole:
            return found
        serving: dict[str, list[str]] = {}
        for queue, _, consumer in found.consuming:
            serving.setdefault(consumer, []).append(queue)
        return msgspec.structs.replace(
            found,
            work=self.rows(found.work),
            breakers=self.rows(found.breakers),
            consumers=[
                each
                for each in found.consumers
                if each.consumer_id in serving and all(map(self.sees, serving[each.consumer_id]))
            ],
            consuming=[each for each in found.consuming if self.sees(each[0])],
            external=[each for each in found.external if self.sees(each[0])],
            paused=[each for each in found.paused if self.sees(each[0])],
            # The state of a flow does not say which queues it reads from.
            flows=[],
            schedules=self.rows(found.schedules),
            orphans=[each for each in found.orphans if self.sees(each[0])],
            dead_letters=self.rows(found.dead_letters),
        )

    def rates(self, found: Sequence[RecentCount]) -> Sequence[RecentCount]:
        """Return what was counted in its queues."""
        return found if self.whole else self.rows(found)


EVERYTHING = Sight(ANYBODY)


def queue_of(row: Any) -> str | None:
    """Return the queue of a row."""
    queue: str | None = row.name if isinstance(row, QueueInfo | OutlinedQueue) else row.queue
    return queue


def queues_of(actions: Iterable[ActionInfo]) -> Mapping[tuple[str, str], str | None]:
    """Return where the items of each action come from, by flow and action."""
    return {(each.flow, each.action): each.queue for each in actions}
