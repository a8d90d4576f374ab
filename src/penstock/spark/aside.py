"""What a task that reads puts aside: messages that nobody can use, to become dead letters with their epoch.

Whether a message is put aside depends on the message alone, so it does not matter which attempt of a task says so, nor
how often: with the epoch it becomes one dead letter.
"""

from typing import TYPE_CHECKING, Any

from penstock.broker.flows import Letter
from penstock.broker.operations.staging import BeginStage
from penstock.spark.connections import run
from penstock.spark.jobs import Job
from penstock.spark.letters import stage_letters
from penstock.spark.options import ReadOptions

if TYPE_CHECKING:
    from penstock.spark.parsing import Misfit
    from penstock.spark.planning import Task

MALFORMED = "malformed"
# An error says what is wrong, and is no copy of the message.
_MOST_ERROR = 1000
_FLUSH = 1000


class Aside:
    """The messages that one task puts aside."""

    def __init__(self, options: ReadOptions, job: Job | None, task: "Task") -> None:
        self._options = options
        self._job = job
        names = {page.partition_id: (page.queue, page.partition) for page in task.ranges}
        self._poison = {(*names[one.partition_id], one.offset): one for one in task.poison}
        self._letters: list[Letter] = []
        self._stage: int | None = None

    def malformed(self, batch: Any, misfits: "list[Misfit]") -> None:
        """Put messages aside that cannot be parsed."""
        for row, error in misfits:
            self._put(batch, row, f"{self._options.group}: {MALFORMED}", error)

    def without_poison(self, batch: Any) -> Any:
        """Put messages aside that are known to fail; return the others."""
        import pyarrow as pa

        kept = []
        places = zip(*(batch.column(name).to_pylist() for name in ("queue", "partition", "offset")), strict=True)
        for row, place in enumerate(places):
            known = self._poison.get(place)
            if known is None:
                kept.append(row)
            else:
                self._put(batch, row, known.reason, known.error)
        return batch if len(kept) == batch.num_rows else batch.take(pa.array(kept, pa.int64()))

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _put(self, batch: Any, row: int, reason: str, error: str | None) -> None:
        # Without a group or an epoch there is no place for dead letters.
        if self._options.group is None or self._job is None:
            return
        queue, partition, offset = (batch.column(name)[row].as_py() for name in ("queue", "partition", "offset"))
        self._letters.append(Letter(queue, partition, offset, reason, None if error is None else error[:_MOST_ERROR]))
        if len(self._letters) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        job, group = self._job, self._options.group
        if not self._letters or job is None or group is None:
            return
        if self._stage is None:
            self._stage = run(self._options.target, BeginStage(job.writer, job.run, job.epoch))
        stage_letters(self._options.target, self._stage, group, self._letters, of_source=True)
        self._letters = []
