# ruff: noqa
"""Operations of archives by their former names."""

from collections.abc import Sequence
from typing import Any

from penstock.broker.archives import Archived as Archived
from penstock.broker.archives import ArchivedRange as Range
from penstock.broker.archives import ArchiveFile as File
from penstock.broker.archives import LetterCopy
from penstock.broker.operations.archives import BeginArchive as begin
from penstock.broker.operations.archives import CopyLetters
from penstock.broker.operations.archives import DropArchived as drop
from penstock.broker.operations.archives import FindArchivable as ranges
from penstock.broker.operations.archives import FindArchivedAt as at
from penstock.broker.operations.archives import ForgetArchive as forget
from penstock.broker.operations.archives import GetArchivedFloors as floors
from penstock.broker.operations.archives import GetPublishedBatch as published
from penstock.broker.operations.archives import ListArchivedLetters as letters
from penstock.broker.operations.archives import PlanArchived as plan
from penstock.broker.operations.archives import RecordArchive as record

__all__ = [
    "Archived",
    "File",
    "Range",
    "at",
    "begin",
    "copy_letters",
    "drop",
    "floors",
    "forget",
    "letters",
    "plan",
    "published",
    "ranges",
    "record",
]


def copy_letters(stage: int, messages: Sequence[Any]) -> CopyLetters:
    return CopyLetters(stage, [LetterCopy(*message) for message in messages])
