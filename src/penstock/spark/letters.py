"""Dead letters of an epoch: which messages become some, with copies of those that the log may not have any more.

A dead letter is copied from the log when its epoch is published. The log does not have a message that was archived and
dropped, and the database cannot read the archive; so the task that stages the dead letter brings the copy along. So do
rows that waited in a join, for longer than their message was kept.
"""

from collections.abc import Sequence
from itertools import chain

import msgspec

from penstock.broker.archives import LetterCopy
from penstock.broker.arguments import storable
from penstock.broker.flows import Letter
from penstock.broker.operations.archives import CopyLetters, ListArchivedLetters
from penstock.broker.operations.flows import StageDeadLetters
from penstock.broker.places import Place
from penstock.spark import archives
from penstock.spark.connections import run
from penstock.spark.options import Target


def stage_letters(target: Target, stage: int, group: str, letters: Sequence[Letter], *, of_source: bool) -> None:
    """Say of messages that they become dead letters with their epoch."""
    storable_ones = [_storable(letter) for letter in letters]
    run(target, StageDeadLetters(stage, group, storable_ones, of_source))
    missing = run(target, ListArchivedLetters(stage))
    if not missing:
        return
    wanted = [(Place(queue, partition), number, offset, offset + 1) for queue, partition, number, offset in missing]
    pages = list(chain.from_iterable(archives.find(target, wanted)))
    rows = (row for batch in archives.read(pages) for row in batch.to_pylist())
    copies = [
        LetterCopy(page.lies.partition_id, *(row[name] for name in ("offset", "value", "key", "headers", "timestamp")))
        for page, row in zip(pages, rows, strict=True)
    ]
    if copies:
        run(target, CopyLetters(stage, copies))


def _storable(letter: Letter) -> Letter:
    """Return a dead letter of which PostgreSQL can store every text: no message is refused for what its error says."""
    return letter._replace(
        reason=storable(letter.reason),
        error=None if letter.error is None else storable(letter.error),
        key=None if letter.key is None else storable(letter.key),
        headers=_headers(letter.headers),
    )


def _headers(text: str | None) -> str | None:
    """Return headers as they are stored: those of a message are JSON, unless somebody wrote past all checks."""
    if text is None:
        return None
    try:
        known = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return None
    return msgspec.json.encode({storable(name): storable(value) for name, value in known.items()}).decode()
