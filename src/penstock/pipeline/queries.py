"""Builds the queries of a flow: creates its queues, registers it and finds its checkpoint.

The caller holds the flow. A flow that does not fit its checkpoint is refused, and the error says how to go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException

from penstock.broker.operations.flows import ListFlows, RegisterFlow, ResetFlow
from penstock.broker.operations.groups import ListGroups
from penstock.broker.operations.log import CreateQueue, ListQueues
from penstock.broker.operations.ranges import AdvanceReader, EnsureReader, GetHeads
from penstock.broker.operations.staging import GetLimits
from penstock.broker.ranges import Heads
from penstock.errors import InvalidInput, NotFound, PenstockError, Retryable
from penstock.pipeline import checking, checkpoints, frames, poison
from penstock.pipeline.actions import actions
from penstock.pipeline.flow import DATA_SINK, Copy, Flow, derive_type
from penstock.pipeline.frames import Connection, Problem
from penstock.pipeline.running import BACKOFF_FIRST, PATIENCE, Running
from penstock.plugins import plugin_of
from penstock.postgres.database import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BUSY_PAUSE = 0.1
_BUSY_SECONDS = 30.0


@dataclass(frozen=True)
class RunOptions:
    """How to run the queries. `base` is where new checkpoints are stored; `reset` names flows that start with one."""

    base: str
    once: bool = False
    reset: frozenset[str] = frozenset()
    backoff: float = BACKOFF_FIRST


class Registration(NamedTuple):
    """Where the checkpoint of a flow lies, and whether it was made by an earlier version."""

    checkpoint: str
    is_earlier: bool


class QueryBuilder:
    """Builds the queries of flows."""

    def __init__(
        self,
        spark: "SparkSession",
        database: Database,
        connection: Connection,
        options: RunOptions,
        echo: Callable[[str], None],
    ) -> None:
        self._spark, self._database, self._connection = spark, database, connection
        self._options, self._echo = options, echo
        # The files of a Connect server are its own.
        self._is_here = not type(spark).__module__.startswith("pyspark.sql.connect")

    def build(self, flow: Flow, made: "DataFrame", read_by_others: set[str]) -> list[Running]:
        """Return the query of a flow, and those of its copies after it. `made` is what its steps make, as checked."""
        spark, options = self._spark, self._options
        shape = checking.shape(flow, made)
        for queue in flow.sources.values():
            self._ensure_group(flow, queue)
        kind = derive_type(flow, read_by_others)
        ends = list(flow.sources.values()), flow.outputs
        listed = [tuple(action) for action in actions(flow)]
        earlier = checking.earlier_shape(flow, made)
        place = self._register(flow.name, kind, ends, (shape, earlier), flow.checkpoint, listed, flow.where)
        checkpoint = place.checkpoint
        if place.is_earlier and flow.carries_values:
            # Its state has no values, and another state would not fit the checkpoint.
            flow.carries_values = False
            made = frames.flow_rows(spark, flow, self._connection)
        # What was checked is what is started: each source that Spark loads costs it a process.
        checked = [made]

        def start() -> "StreamingQuery":
            limits = self._database.run(GetLimits(flow.outputs))
            most = {name: limit.max_message_bytes for name, limit in limits.items()}
            frame = checked.pop() if checked else frames.flow_rows(spark, flow, self._connection)
            rows = frames.sink_rows(flow, frame, most)
            writer = rows.writeStream.format("penstock").outputMode("append").options(**self._connection.options())
            return self._start(flow.name, flow.trigger, writer.option("groupId", flow.name), checkpoint)

        def new_search(query: "StreamingQuery", again: bool) -> poison.Search:
            return poison.Search(spark, self._database, flow, self._connection, query, again=again)

        running = Running(
            flow.name,
            start,
            new_search if flow.files is None else None,
            once=options.once,
            give_up=PATIENCE + 1 if options.once else None,
            backoff=options.backoff,
            late_rows=self._late_rows(flow.name),
            sign=self._connection.sign,
        )
        return [running, *(self._build_copy(flow, index, made) for index in range(len(flow.copies)))]

    def _build_copy(self, flow: Flow, index: int, made: "DataFrame") -> Running:
        from pyspark.sql.types import StructType

        spark, copy, queue, name = self._spark, flow.copies[index], flow.copied_queue, flow.copy_name(index)
        route = next(route for route in flow.routes if route.queue == queue)
        if queue is None or route.value is not None:
            raise Problem(flow, copy.where, f"its rows cannot be copied: {route.name} has a value of its own")
        columns = StructType([field for field in made.schema.fields if field.name not in flow.message_columns])
        listed = [(f"to {copy.place}", f"{Copy.__module__}.{Copy.__qualname__}", plugin_of(Copy.__module__))]
        ends: tuple[list[str], list[str]] = [queue], []
        checkpoint = self._register(name, DATA_SINK, ends, (copy.place,), None, listed, copy.where).checkpoint
        read = self._connection.options() | {
            "subscribe": queue,
            "groupId": name,
            "startingOffsets": "committed",
            "maxOffsetsPerTrigger": str(flow.max_messages),
            "valueSchema": columns.json(),
        }

        def start() -> "StreamingQuery":
            self._ensure_queue(queue)
            if copy.kind == "parquet" and self._is_here:
                _refuse_files_of_other_query(copy, checkpoint)
            rows = spark.readStream.format("penstock").options(**read).load().drop("_message")
            writer = rows.writeStream.options(**copy.options).format("parquet")
            if copy.kind == "parquet":
                writer = writer.option("path", copy.place)
            table = copy.place if copy.kind == "table" else None
            return self._start(name, flow.trigger, writer, checkpoint, table)

        give_up = PATIENCE if self._options.once else None
        options, sign = self._options, self._connection.sign
        return Running(name, start, once=options.once, give_up=give_up, backoff=options.backoff, sign=sign)

    def _start(
        self, name: str, trigger: str, writer: Any, checkpoint: str, table: str | None = None
    ) -> "StreamingQuery":
        writer = writer.queryName(name).option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True) if self._options.once else writer.trigger(processingTime=trigger)
        query: StreamingQuery = writer.start() if table is None else writer.toTable(table)
        return query

    def _late_rows(self, name: str) -> int:
        """Return the number of late rows of earlier runs."""
        return next((info.late_rows for info in self._database.run(ListFlows()) if info.name == name), 0)

    def _ensure_queue(self, queue: str) -> bool:
        """Make a queue that is not there; return whether it was."""
        try:
            self._database.run(ListQueues(queue))
        except NotFound:
            self._database.run(CreateQueue(queue))
            return False
        return True

    def _ensure_group(self, flow: Flow, queue: str) -> None:
        """Create the group of a flow; if it starts with the latest, its positions are set before anything runs."""
        try:
            if (
                flow.starting == "latest"
                and self._ensure_queue(queue)
                and flow.name not in {group.name for group in self._database.run(ListGroups(queue))}
            ):
                heads = self._database.run(GetHeads([queue], None, False))
                if heads.ids:
                    self._advance(flow, queue, heads)
            self._ensure_queue(queue)
            self._database.run(EnsureReader(queue, flow.name))
        except Retryable:
            raise
        except PenstockError as error:
            raise Problem(flow, flow.where, f"it cannot read {queue}: {error}") from error

    def _advance(self, flow: Flow, queue: str, heads: Heads) -> None:
        self._until_free(
            f"flow {flow.name} cannot start with the latest now: partitions of {queue} are locked by others",
            lambda: self._database.run(AdvanceReader(queue, flow.name, heads.ids, heads.heads)).busy,
        )

    def _register(
        self,
        name: str,
        kind: str,
        ends: tuple[Sequence[str], Sequence[str]],
        shapes: tuple[str, ...],
        checkpoint: str | None,
        listed: Sequence[Any],
        where: str,
    ) -> "Registration":
        """Register a flow; return its checkpoint, or refuse one that does not fit.

        The first of the shapes is the flow's, and the others are what earlier versions made of the same flow.
        """
        shape = shapes[0]
        wanted = checkpoint or checkpoints.place(self._options.base, name)
        if self._is_here:
            wanted = checkpoints.absolute(wanted)
        known = next((info for info in self._database.run(ListFlows()) if info.name == name), None)
        if known is not None and name in self._options.reset:
            self._until_free(
                f"flow {name} cannot be reset now: partitions that it reads are locked by another transaction",
                lambda: self._database.run(ResetFlow(name, wanted)),
            )
            self._echo(f"{name}: reset; its checkpoint is {wanted}")
        elif known is not None and checkpoint is None:
            wanted = known.checkpoint
        kept = self._database.run(RegisterFlow(name, kind, *ends, shape, wanted, listed))
        if kept.writer is not None and kept.shape != shape and kept.shape in shapes:
            shape = kept.shape
            kept = self._database.run(RegisterFlow(name, kind, *ends, shape, wanted, listed))
        if kept.writer is None:
            return Registration(kept.checkpoint, False)
        way_out = (
            f"`--reset {name}` begins with a new checkpoint where the flow stands, without the state of the old one"
        )
        if kept.shape != shape:
            raise InvalidInput(
                f"{where}: flow {name}: it has changed so that it cannot go on with its checkpoint: "
                f"{checking.difference(kept.shape, shape)}. Change it back, or {way_out}"
            )
        if kept.checkpoint != wanted or (self._is_here and checkpoints.is_missing(kept.checkpoint)):
            raise InvalidInput(
                f"{where}: flow {name}: its checkpoint is not there: it was at {kept.checkpoint}. Bring it back, or "
                f"{way_out}"
            )
        return Registration(kept.checkpoint, shape != shapes[0])

    def _until_free(self, problem: str, count_busy: Callable[[], int]) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS
        while count_busy():
            if time.monotonic() > deadline:
                raise Retryable(problem)
            time.sleep(_BUSY_PAUSE)


def _refuse_files_of_other_query(copy: Copy, checkpoint: str) -> None:
    """Spark passes over, silently, what a new query writes to files of another one."""
    folder = checkpoints.local_path(copy.place)
    if folder is not None and (folder / "_spark_metadata").exists() and checkpoints.is_missing(checkpoint):
        raise PySparkException(
            f"{copy.place} was written with another checkpoint than {checkpoint}: copy to another folder"
        )
