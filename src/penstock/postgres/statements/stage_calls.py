# ruff: noqa
"""Operations of stages by their former names."""

from penstock.broker.operations.staging import AbortStages as abort
from penstock.broker.operations.staging import BeginStage as begin
from penstock.broker.operations.staging import FlushStages as flush
from penstock.broker.operations.staging import GetLimits as limits
from penstock.broker.operations.staging import ListStages as stages
from penstock.broker.operations.staging import PublishStages as publish
from penstock.broker.operations.staging import StageSegments as stage
from penstock.broker.staging import Column as Column
from penstock.broker.staging import EpochTarget as Sent
from penstock.broker.staging import Published as Published
from penstock.broker.staging import QueueLimits as Limits
from penstock.broker.staging import StagedPart as Part

__all__ = [
    "Column",
    "Limits",
    "Part",
    "Published",
    "Sent",
    "abort",
    "begin",
    "flush",
    "limits",
    "publish",
    "stage",
    "stages",
]
