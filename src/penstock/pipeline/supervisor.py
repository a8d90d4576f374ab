"""All flows of a file under one roof: each its own query, which take turns, and none of which another can stop.

Before anything starts, everything is checked and registered. Then one loop looks at every query several times a second,
tells how it fares at most once a second, and hears once a second which flow shall pause.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import PySparkException

from penstock.engine import calls, flow_calls, range_calls, stage_calls
from penstock.engine.database import Database
from penstock.engine.flow_calls import Telling
from penstock.errors import InvalidInput, NotFound, PenstockError, Retryable, SetupError, Unavailable
from penstock.pipeline import checking, checkpoints, frames, poison
from penstock.pipeline.actions import actions
from penstock.pipeline.flow import DATA_SINK, Copy, Flow, derive_type
from penstock.pipeline.frames import Connection
from penstock.pipeline.loading import ship
from penstock.pipeline.running import PATIENCE, Running, explain
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TICK = 0.1
_TELL_SECONDS = 1.0
_BEAT_SECONDS = 5.0
_RESET_SECONDS = 30.0


@dataclass
class Member:
    """A query of the supervisor, and at which level of the flows it stands: what it reads is made below."""

    running: Running
    level: int
    told: Telling | None = None
    told_at: float = 0.0


class Supervisor:
    """Runs flows until it is told to stop, or with `once` until they have read what is there.

    `reset` names flows that begin with a new checkpoint, where they stand. `checkpoints` is where new ones lie.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        settings: Settings,
        *,
        once: bool = False,
        checkpoints: str | None = None,
        reset: Sequence[str] = (),
        echo: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.flows = flows
        self._settings = settings
        self._once = once
        self._base = checkpoints
        self._reset = set(reset)
        self._echo = echo
        self._me = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._connection = Connection(settings.url)
        self._database = Database(settings)
        self._ending = threading.Event()
        self.members: list[Member] = []
        unknown = self._reset - {flow.name for flow in flows}
        if unknown:
            raise InvalidInput(f"there is no flow {', '.join(sorted(unknown))} to reset in this file")

    def end(self) -> None:
        """Let it stop all queries and return; safe at any moment."""
        self._ending.set()

    def run(self, spark: "SparkSession", observe: Callable[[Sequence[Running]], None] | None = None) -> bool:
        """Run the flows; returns whether none of them failed."""
        try:
            self._prepare(spark)
            self._loop(observe)
        finally:
            self._stop()
            self._database.close()
        return not any(member.running.state == "failed" for member in self.members)

    def _prepare(self, spark: "SparkSession") -> None:
        checking.prepare(self.flows)
        spark.conf.set("spark.sql.ansi.enabled", "false")
        for flow in self.flows:
            for step in flow.steps:
                ship(getattr(step.function, "__module__", ""))
        fresh = {flow.name: self._ensure_queues(flow) for flow in self.flows}
        made = checking.check(spark, self.flows, self._connection)
        problems: list[str] = []
        for flow in self.flows:
            try:
                self._enlist(spark, flow, made[flow.name], fresh[flow.name])
            except InvalidInput as error:
                problems.append(str(error))
        if problems:
            raise InvalidInput("\n".join(problems))
        for member in self.members:
            self._claim(member)

    def _ensure_queues(self, flow: Flow) -> bool:
        """Make queues and groups that are not there; return whether the flow is new to all of them."""
        new = True
        for queue in flow.sources.values():
            try:
                groups = self._database.run(calls.queues(queue)) and self._groups(queue)
                new = new and flow.name not in groups
            except NotFound:
                self._database.run(calls.create_queue(queue, {}, None))
        return new

    def _groups(self, queue: str) -> set[str]:
        from penstock.engine import group_calls

        return {group.name for group in self._database.run(group_calls.groups(queue))}

    def _enlist(self, spark: "SparkSession", flow: Flow, made: "DataFrame", fresh: bool) -> None:
        level = self._level(flow)
        read = {queue for other in self.flows if other is not flow for queue in other.sources.values()}
        kind = derive_type(flow, read)
        shape = checking.shape(flow, made)
        ends = list(flow.sources.values()), flow.outputs
        listed = [tuple(action) for action in actions(flow)]
        checkpoint = self._register(flow.name, kind, ends, shape, flow.checkpoint, listed, flow.where)
        for queue in flow.sources.values():
            self._database.run(range_calls.ensure_reader(queue, flow.name))
        # Where nothing is committed, that is the earliest.
        starting = "latest" if fresh and flow.starting == "latest" else "committed"
        # What was checked is what is started: each source that Spark loads costs it a process.
        checked = [made] if starting == "committed" else []

        def start() -> "StreamingQuery":
            limits = self._database.run(stage_calls.limits(flow.outputs))
            most = {name: limit.max_message_bytes for name, limit in limits.items()}
            frame = checked.pop() if checked else self._build(spark, flow, starting)
            rows = frames.sink_rows(flow, frame, most)
            writer = rows.writeStream.format("penstock").outputMode("append").options(**self._connection.options())
            return self._start(flow.name, flow.trigger, writer.option("groupId", flow.name), checkpoint)

        def mend(query: "StreamingQuery | None", error: str) -> str | None:
            if query is None or flow.files is not None:
                return None
            return poison.mend(spark, self._database, flow, self._connection, query, error)

        give_up = PATIENCE + 1 if self._once else None
        self.members.append(Member(Running(flow.name, start, mend, once=self._once, give_up=give_up), level))
        for index, copy in enumerate(flow.copies):
            self._enlist_copy(spark, flow, copy, index, made, level)

    def _build(self, spark: "SparkSession", flow: Flow, starting: str) -> "DataFrame":
        return frames.transform(flow, frames.streams(spark, flow, self._connection, starting=starting))

    def _enlist_copy(
        self, spark: "SparkSession", flow: Flow, copy: Copy, index: int, made: "DataFrame", level: int
    ) -> None:
        queue = flow.copied_queue
        route = next(route for route in flow.routes if route.queue == queue)
        if queue is None or route.value is not None:
            raise frames.Problem(flow, copy.where, f"its rows cannot be copied: {route.name} has a value of its own")
        from pyspark.sql.types import StructType

        columns = StructType([field for field in made.schema.fields if field.name not in flow.message_columns])
        name = f"{flow.name}.{copy.kind}" + (f"-{index + 1}" if index else "")
        listed = [(f"to {copy.place}", f"{Copy.__module__}.{Copy.__qualname__}", actions(flow)[-1].plugin)]
        checkpoint = self._register(name, DATA_SINK, ([queue], []), copy.place, None, listed, copy.where)
        options = self._connection.options() | {
            "subscribe": queue,
            "groupId": name,
            "startingOffsets": "committed",
            "maxOffsetsPerTrigger": str(flow.max_messages),
            "valueSchema": columns.json(),
        }

        def start() -> "StreamingQuery":
            try:
                self._database.run(calls.queues(queue))
            except NotFound:
                self._database.run(calls.create_queue(queue, {}, None))
            if copy.kind == "parquet":
                self._refuse_foreign_files(copy, checkpoint)
            rows = spark.readStream.format("penstock").options(**options).load().drop("_message")
            writer = rows.writeStream.options(**copy.options).format("parquet")
            if copy.kind == "parquet":
                writer = writer.option("path", copy.place)
            table = copy.place if copy.kind == "table" else None
            return self._start(name, flow.trigger, writer, checkpoint, table)

        give_up = PATIENCE if self._once else None
        self.members.append(Member(Running(name, start, once=self._once, give_up=give_up), level + 1))

    def _refuse_foreign_files(self, copy: Copy, checkpoint: str) -> None:
        """Spark passes over, silently, what a new query writes to files of another one."""
        folder = checkpoints.local_path(copy.place)
        if folder is not None and (folder / "_spark_metadata").exists() and checkpoints.is_missing(checkpoint):
            raise PySparkException(
                f"{copy.place} was written with another checkpoint than {checkpoint}: copy to another folder"
            )

    def _start(
        self, name: str, trigger: str, writer: Any, checkpoint: str, table: str | None = None
    ) -> "StreamingQuery":
        writer = writer.queryName(name).option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=trigger)
        query: StreamingQuery = writer.start() if table is None else writer.toTable(table)
        return query

    def _register(
        self,
        name: str,
        kind: str,
        ends: tuple[Sequence[str], Sequence[str]],
        shape: str,
        checkpoint: str | None,
        listed: Sequence[Any],
        where: str,
    ) -> str:
        """Register a flow; return its checkpoint, or refuse one that does not fit."""
        base = self._base or checkpoints.default_base(self._settings.home)
        wanted = checkpoint or checkpoints.place(base, name)
        known = next((info for info in self._database.run(flow_calls.flows()) if info.name == name), None)
        if known is not None and (name in self._reset or name.rpartition(".")[0] in self._reset):
            self._do_reset(name, wanted)
        elif known is not None and checkpoint is None:
            wanted = known.checkpoint
        kept = self._database.run(flow_calls.register(name, kind, ends, shape, wanted, listed))
        if kept.writer is None:
            return kept.checkpoint
        way_out = (
            f"`--reset {name}` begins with a new checkpoint where the flow stands, without the state of the old one"
        )
        if kept.shape != shape:
            raise InvalidInput(
                f"{where}: flow {name}: it has changed so that it cannot go on with its checkpoint: "
                f"{checking.difference(kept.shape, shape)}. Change it back, or {way_out}"
            )
        if kept.checkpoint != wanted or checkpoints.is_missing(kept.checkpoint):
            raise InvalidInput(
                f"{where}: flow {name}: its checkpoint is not there: it was at {kept.checkpoint}. Bring it back, or "
                f"{way_out}"
            )
        return kept.checkpoint

    def _do_reset(self, name: str, checkpoint: str) -> None:
        deadline = time.monotonic() + _RESET_SECONDS
        while self._database.run(flow_calls.reset(name, checkpoint)):
            if time.monotonic() > deadline:
                raise Retryable(f"flow {name} cannot be reset now: somebody holds partitions that it reads")
            time.sleep(_TICK)
        self._echo(f"{name}: reset; its checkpoint is {checkpoint}")

    def _level(self, flow: Flow) -> int:
        below = [other for other in self.flows if set(other.outputs) & set(flow.sources.values())]
        return 1 + max(map(self._level, below), default=0)

    def _claim(self, member: Member) -> None:
        telling = member.running.telling()
        name = member.running.name
        told = self._database.run(flow_calls.tell(name, self._me, telling))
        if told.holder != self._me and _is_dead(told.holder):
            told = self._database.run(flow_calls.tell(name, self._me, telling, take_over=True))
        if told.holder != self._me:
            raise Retryable(f"flow {name} is run by {told.holder} already; stop that one, or wait until it is gone")

    def _loop(self, observe: Callable[[Sequence[Running]], None] | None) -> None:
        asked, seen = 0.0, 0.0
        paused: set[str] = set()
        while not self._ending.is_set():
            if time.monotonic() - asked >= _TELL_SECONDS:
                paused, asked = self._paused(paused), time.monotonic()
            open_levels = [member.level for member in self.members if not member.running.is_over]
            if not open_levels:
                return
            for member in self.members:
                if self._ending.is_set():
                    return
                if not self._once or member.level == min(open_levels):
                    self._tick(member, member.running.name in paused)
            if observe is not None and time.monotonic() - seen >= _TELL_SECONDS:
                observe([member.running for member in self.members])
                seen = time.monotonic()
            self._ending.wait(_TICK)

    def _paused(self, before: set[str]) -> set[str]:
        try:
            return self._database.run(flow_calls.paused())
        except Unavailable:
            return before

    def _tick(self, member: Member, paused: bool) -> None:
        running = member.running
        before = running.state
        try:
            running.tick(paused)
        except (PenstockError, PySparkException) as error:
            running._back_off(explain(error))
        if running.state != before:
            why = f": {running.error}" if running.error and running.state in ("backing off", "failed") else ""
            self._echo(f"{running.name}: {running.state}{why}")
        if running.remark is not None:
            self._echo(f"{running.name}: {running.remark}")
            running.remark = None
        self._tell(member)

    def _tell(self, member: Member, *, now: bool = False) -> None:
        age = time.monotonic() - member.told_at
        telling = member.running.telling()
        known = None if member.told is None else member.told._replace(retry_at=telling.retry_at)
        if not now and (age < _TELL_SECONDS or (telling == known and age < _BEAT_SECONDS)):
            return
        try:
            told = self._database.run(flow_calls.tell(member.running.name, self._me, telling))
        except (Unavailable, Retryable):
            return
        member.told, member.told_at = telling, time.monotonic()
        if told.holder != self._me and not member.running.is_over:
            member.running.stop()
            self._echo(f"{member.running.name}: stopped, since {told.holder} runs it now")

    def _stop(self) -> None:
        for member in self.members:
            try:
                member.running.stop()
            except PySparkException as error:
                self._echo(f"{member.running.name}: {explain(error)}")
            try:
                self._tell(member, now=True)
            except (SetupError, PenstockError):
                continue


def _is_dead(holder: str) -> bool:
    """Say whether a supervisor of this machine is gone."""
    host, pid, _ = holder.rsplit(":", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
