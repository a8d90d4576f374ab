"""Flows: register them, report their status, publish their epochs with dead letters, remember poison messages."""

from collections.abc import Sequence

from penstock.broker.flows import (
    ActionInfo,
    EpochRange,
    FlowHolder,
    FlowInfo,
    FlowStatus,
    Letter,
    PoisonMessage,
    RegisteredFlow,
)
from penstock.broker.names import check_names
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.staging import EpochTarget, Published


class ListFlows(Repeatable[list[FlowInfo]], frozen=True):
    """Describe all flows."""


class ListActions(Repeatable[list[ActionInfo]], frozen=True):
    """List the actions of a flow, or of all."""

    flow: str | None = None


class RegisterFlow(Repeatable[RegisteredFlow], frozen=True):
    """Write a flow, with its sources and outputs, and its actions (name, class, plugin) to the registry."""

    flow: str
    flow_type: str
    sources: Sequence[str]
    outputs: Sequence[str]
    shape: str
    checkpoint: str
    actions: Sequence[tuple[str, str, str]] = ()

    def __post_init__(self) -> None:
        check_names(self.flow, what=("flow",))


class ResetFlow(Repeatable[int], frozen=True):
    """Let a flow begin with a new checkpoint where it stands; the reply is how many partitions were busy."""

    flow: str
    checkpoint: str

    def __post_init__(self) -> None:
        check_names(self.flow, what=("flow",))


class HeartbeatFlow(Repeatable[FlowHolder], frozen=True):
    """Say that a flow is run by `supervisor`, and its status; the reply is who holds it and whether it is to pause."""

    flow: str
    supervisor: str
    status: FlowStatus
    take_over: bool = False

    def __post_init__(self) -> None:
        check_names(self.flow, what=("flow",))


class PauseFlow(Repeatable[None], frozen=True):
    """Say that a flow is to pause, or to go on."""

    flow: str
    paused: bool

    def __post_init__(self) -> None:
        check_names(self.flow, what=("flow",))


class ForgetFlow(Operation[None], frozen=True):
    """Remove a flow from the registry."""

    flow: str

    def __post_init__(self) -> None:
        check_names(self.flow, what=("flow",))


class ListPausedFlows(Repeatable[set[str]], frozen=True):
    """Return which flows are to pause."""


class StageDeadLetters(Repeatable[None], frozen=True):
    """Say of messages that they become dead letters with their epoch."""

    stage_id: int
    group: str
    letters: Sequence[Letter]
    of_source: bool


class PublishEpoch(Repeatable[Published], frozen=True):
    """Publish an epoch with its dead letters and the progress of its group."""

    group: str
    writer: str
    run: str
    epoch: int
    stages: Sequence[tuple[int, int]]
    target: EpochTarget = EpochTarget()


class AddPoison(Repeatable[None], frozen=True):
    """Remember messages (partition id and offset) at which a step fails, with an error for each."""

    flow: str
    places: Sequence[tuple[int, int]]
    reason: str
    errors: Sequence[str | None]


class FindPoison(Repeatable[list[PoisonMessage]], frozen=True):
    """Return which messages of some ranges are known to fail."""

    flow: str
    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]


class GetEpochRanges(Repeatable[list[EpochRange]], frozen=True):
    """Return what the epoch reads that a run has begun and not published."""

    writer: str
    run: str
