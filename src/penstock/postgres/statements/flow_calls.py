# ruff: noqa
"""Operations of flows by their former names."""

from collections.abc import Sequence

from penstock.broker.flows import EpochRange as Range
from penstock.broker.flows import FlowStatus as Telling
from penstock.broker.flows import Letter as Letter
from penstock.broker.flows import PoisonMessage as Poison
from penstock.broker.operations.flows import AddPoison as add_poison
from penstock.broker.operations.flows import FindPoison as find_poison
from penstock.broker.operations.flows import GetEpochRanges as epoch_ranges
from penstock.broker.operations.flows import HeartbeatFlow, PublishEpoch, RegisterFlow, StageDeadLetters
from penstock.broker.operations.flows import ListFlows as flows
from penstock.broker.operations.flows import ListPausedFlows as paused
from penstock.broker.operations.flows import ResetFlow as reset
from penstock.broker.operations.ranges import GetReaderPositions as positions
from penstock.broker.staging import EpochTarget

__all__ = [
    "Letter",
    "Poison",
    "Range",
    "Telling",
    "add_poison",
    "epoch_ranges",
    "find_poison",
    "flows",
    "paused",
    "positions",
    "publish",
    "register",
    "reset",
    "stage_letters",
    "tell",
]


def register(
    name: str,
    flow_type: str,
    ends: tuple[Sequence[str], Sequence[str]],
    shape: str,
    checkpoint: str,
    actions: Sequence[tuple[str, str, str]],
) -> RegisterFlow:
    return RegisterFlow(name, flow_type, *ends, shape, checkpoint, actions)


def tell(name: str, teller: str, telling: Telling, *, take_over: bool = False) -> HeartbeatFlow:
    return HeartbeatFlow(name, teller, telling, take_over)


def stage_letters(stage: int, group: str, letters: Sequence[Letter], *, of_source: bool) -> StageDeadLetters:
    return StageDeadLetters(stage, group, letters, of_source)


def publish(
    group: str, writer: str, run: str, epoch: int, stages: Sequence[tuple[int, int]], sent: EpochTarget | None = None
) -> PublishEpoch:
    return PublishEpoch(group, writer, run, epoch, stages, sent or EpochTarget())
