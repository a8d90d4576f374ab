"""What workers tell the broker: the actions that they run, and the items that they are at."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.names import check_names
from penstock.broker.operations.operation import Repeatable
from penstock.broker.tasks import ReportedTask, TaskInfo


class RegisteredAction(NamedTuple):
    """An action, as the registry has it."""

    flow: str
    name: str
    flow_type: str
    action_class: str
    plugin: str
    queue: str
    to: str | None


class RegisterActions(Repeatable[None], frozen=True):
    """Write actions to the registry; others of the same flows stay."""

    actions: Sequence[RegisteredAction]

    def __post_init__(self) -> None:
        for action in self.actions:
            check_names(action.flow, action.name, action.queue, what=("flow", "action", "queue"))


class ReportTasks(Repeatable[None], frozen=True):
    """Say what a worker process is at; nothing takes its row away."""

    worker: str
    tasks: Sequence[ReportedTask]


class ListTasks(Repeatable[list[TaskInfo]], frozen=True):
    """List what workers are at, the longest running first; a worker that has said nothing for 30 s is left out."""

    flow: str | None = None


class StopRun(Repeatable[None], frozen=True):
    """Tell the workers of a run to stop; with `at_once`, without waiting for their handlers."""

    run: str
    at_once: bool = False


class GetRunStop(Repeatable[bool | None], frozen=True):
    """Ask whether a run of workers was told to stop: None while it was not, then whether at once."""

    run: str
