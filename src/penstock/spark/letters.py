"""Dead letters of an epoch: which messages become some, with copies of those that are only in the archive.

A dead letter is copied from the log when its epoch is published. The log does not have a message that was archived and
dropped, and the database cannot read the archive; so the task that stages the dead letter brings the copy along.
"""

from collections.abc import Sequence
from itertools import chain

from penstock.engine import archive_calls, flow_calls
from penstock.engine.calls import Place
from penstock.engine.flow_calls import Letter
from penstock.spark import archives
from penstock.spark.connections import run
from penstock.spark.options import Target


def stage_letters(target: Target, stage: int, group: str, letters: Sequence[Letter], *, of_source: bool) -> None:
    """Say of messages that they become dead letters with their epoch."""
    run(target, flow_calls.stage_letters(stage, group, letters, of_source=of_source))
    missing = run(target, archive_calls.letters(stage))
    if not missing:
        return
    wanted = [(Place(queue, partition), number, offset, offset + 1) for queue, partition, number, offset in missing]
    pages = list(chain.from_iterable(archives.find(target, wanted)))
    rows = (row for batch in archives.read(pages) for row in batch.to_pylist())
    copies = [
        (page.lies.partition_id, *(row[name] for name in ("offset", "value", "key", "headers", "timestamp")))
        for page, row in zip(pages, rows, strict=True)
    ]
    if copies:
        run(target, archive_calls.copy_letters(stage, copies))
