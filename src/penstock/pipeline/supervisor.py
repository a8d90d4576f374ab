"""Runs all flows of a file, each as a query of its own: they take turns, and a failing one stops no other.

Before anything starts, all flows are checked, claimed and registered. Then one loop looks at every query several times
a second. Status and heartbeats are sent by a thread of their own, so that a slow start of a query does not make other
supervisors take the flows for lost.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.broker.flows import FlowStatus
from penstock.broker.operations.flows import HeartbeatFlow, ListFlows, ListPausedFlows
from penstock.errors import InvalidFlows, InvalidInput, PenstockError, Retryable, SetupError, Unavailable
from penstock.pipeline import checking, checkpoints
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection
from penstock.pipeline.loading import ship
from penstock.pipeline.queries import QueryBuilder, RunOptions
from penstock.pipeline.running import BACKOFF_FIRST, Running, explain
from penstock.postgres.database import Database
from penstock.settings import Settings
from penstock.spark.signing import new_sign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICK = 0.1
_STATUS_SECONDS = 1.0
_HEARTBEAT_SECONDS = 5.0


@dataclass
class Member:
    """A query of the supervisor, and at which level of the flows it stands: what it reads is made below.

    `taken_by` is another supervisor that holds the flow by now.
    """

    running: Running
    level: int
    sent: FlowStatus | None = None
    sent_at: float = 0.0
    taken_by: str | None = None


class Supervisor:
    """Runs flows until `end` is called, or with `once` until they have read what is there.

    `reset` names flows that begin with a new checkpoint, where they stand. `checkpoints` is where new ones lie.
    `backoff` is how many seconds a query waits that failed once.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        settings: Settings,
        *,
        once: bool = False,
        checkpoints: str | None = None,
        reset: Sequence[str] = (),
        backoff: float = BACKOFF_FIRST,
        echo: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.flows = flows
        self._names = [name for flow in flows for name in flow.names]
        unknown = set(reset) - set(self._names)
        if unknown:
            raise InvalidInput(f"there is no flow {', '.join(sorted(unknown))} to reset in this file")
        self._options = RunOptions(checkpoints or default_base(settings), once, frozenset(reset), backoff)
        self._echo = echo
        self._me = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._connection = Connection(settings.url, new_sign())
        self._database = Database(settings)
        self._ending = threading.Event()
        self._paused: set[str] = set()
        self._held: list[str] = []
        self.members: list[Member] = []

    def end(self) -> None:
        """Stop all queries and let `run` return; safe at any moment."""
        self._ending.set()

    def require_free(self) -> None:
        """Refuse flows that another supervisor runs, and conflicting names and queues, before Spark starts."""
        checking.prepare(self.flows)
        for info in self._database.run(ListFlows()):
            is_run = info.state in ("starting", "running", "backing off") and info.supervisor is not None
            if info.name in self._names and is_run and not _is_dead(info.supervisor or ""):
                raise _held(info.name, info.supervisor or "")

    def run(self, spark: "SparkSession", observe: Callable[[Sequence[Running]], None] | None = None) -> bool:
        """Run the flows; returns whether none of them failed."""
        _leave_errors_of_py4j_to_callers()
        done = threading.Event()
        heartbeat = threading.Thread(target=self._send_heartbeats, args=(done,), daemon=True)
        try:
            self._prepare(spark)
            self._paused = self._database.run(ListPausedFlows())
            heartbeat.start()
            self._loop(observe)
        except (PenstockError, Py4JError, OSError) as error:
            # A signal to the whole process group ends Spark too, perhaps before us, and then any check may fail.
            if self._ending.is_set():
                pass
            elif isinstance(error, PenstockError):
                raise
            else:
                raise SetupError(f"Spark is gone; what was not published is read again next time ({error})") from error
        finally:
            self._stop()
            done.set()
            if heartbeat.is_alive():
                heartbeat.join()
            self._release()
            self._database.close()
        return not any(member.running.state == "failed" for member in self.members)

    def _prepare(self, spark: "SparkSession") -> None:
        if self._ending.is_set():
            return
        checking.prepare(self.flows)
        spark.conf.set("spark.sql.ansi.enabled", "false")
        for flow in self.flows:
            for step in flow.steps:
                ship(getattr(step.function, "__module__", ""))
        made = checking.check(spark, self.flows, self._connection)
        # Before anything is written: another one may be running them.
        for name in self._names:
            self._hold(name)
        builder = QueryBuilder(spark, self._database, self._connection, self._options, self._echo)
        levels = checking.levels(self.flows)
        problems: list[str] = []
        for flow in self.flows:
            read = {queue for other in self.flows if other is not flow for queue in other.sources.values()}
            try:
                first, *copies = builder.build(flow, made[flow.name], read)
            except InvalidInput as error:
                problems.append(str(error))
                continue
            self.members.append(Member(first, levels[flow.name]))
            self.members += [Member(copy, levels[flow.name] + 1) for copy in copies]
        if problems:
            raise InvalidFlows("\n".join(problems))

    def _hold(self, name: str) -> None:
        """Claim a flow, or refuse if another supervisor runs it."""
        starting = FlowStatus("starting")
        reply = self._database.run(HeartbeatFlow(name, self._me, starting))
        if reply.holder != self._me and _is_dead(reply.holder):
            reply = self._database.run(HeartbeatFlow(name, self._me, starting, take_over=True))
        if reply.holder != self._me:
            raise _held(name, reply.holder)
        self._held.append(name)

    def _release(self) -> None:
        """Send the last status of every flow that was held: how it ended, or that it never started."""
        last = {member.running.name: member for member in self.members}
        for name in self._held:
            member = last.get(name)
            if member is not None and member.taken_by is not None:
                continue
            status = FlowStatus("stopped") if member is None else member.running.status()
            if member is not None and member.sent == status and member.running.is_over:
                continue
            try:
                self._database.run(HeartbeatFlow(name, self._me, status))
            except Unavailable:
                return
            except PenstockError:
                continue

    def _loop(self, observe: Callable[[Sequence[Running]], None] | None) -> None:
        seen = 0.0
        while not self._ending.is_set():
            paused = self._paused
            # With `once`, nothing waits for a flow to be resumed.
            waiting = paused if self._options.once else set()
            levels = [m.level for m in self.members if not m.running.is_over and m.running.name not in waiting]
            for member in self.members:
                if self._ending.is_set():
                    return
                is_due = not self._options.once or (bool(levels) and member.level == min(levels))
                if is_due or member.running.name in paused:
                    self._tick(member, member.running.name in paused)
            if not levels:
                return
            if observe is not None and time.monotonic() - seen >= _STATUS_SECONDS:
                observe([member.running for member in self.members])
                seen = time.monotonic()
            self._ending.wait(_TICK)

    def _tick(self, member: Member, paused: bool) -> None:
        running = member.running
        before = running.state
        if member.taken_by is not None and not running.is_over:
            running.stop()
            self._echo(f"{running.name}: stopped, since {member.taken_by} runs it now")
            return
        running.tick(paused)
        if running.state != before:
            why = f": {running.error}" if running.error and running.state in ("backing off", "failed") else ""
            self._echo(f"{running.name}: {running.state}{why}")
        if running.remark is not None:
            self._echo(f"{running.name}: {running.remark}")
            running.remark = None

    def _send_heartbeats(self, done: threading.Event) -> None:
        """Send the status of the flows, at most once a second, and ask which to pause."""
        asked_at = 0.0
        while not done.wait(_TICK):
            try:
                if time.monotonic() - asked_at >= _STATUS_SECONDS:
                    self._paused, asked_at = self._database.run(ListPausedFlows()), time.monotonic()
            except PenstockError:
                # The database is away: the queries say so, and wait for it.
                done.wait(_STATUS_SECONDS)
                continue
            for member in self.members:
                try:
                    self._send_status(member)
                except Exception as error:
                    # A status that cannot be sent must not keep other flows from sending theirs, nor from pausing.
                    member.sent_at = time.monotonic()
                    if not isinstance(error, PenstockError):
                        self._echo(f"{member.running.name}: its status cannot be sent: {explain(error)}")

    def _send_status(self, member: Member) -> None:
        age = time.monotonic() - member.sent_at
        status = member.running.status()
        known = None if member.sent is None else member.sent._replace(retry_at=status.retry_at)
        # The status of an ended flow is sent once: another supervisor may run it by then.
        beat = age >= _HEARTBEAT_SECONDS and not member.running.is_over
        if member.taken_by is not None or age < _STATUS_SECONDS or (status == known and not beat):
            return
        reply = self._database.run(HeartbeatFlow(member.running.name, self._me, status))
        member.sent, member.sent_at = status, time.monotonic()
        if reply.holder != self._me:
            member.taken_by = reply.holder

    def _stop(self) -> None:
        for member in self.members:
            try:
                member.running.stop()
            except (PySparkException, Py4JError, OSError) as error:
                if not self._ending.is_set():
                    self._echo(f"{member.running.name}: {explain(error)}")


def default_base(settings: Settings) -> str:
    """Return the default folder of checkpoints, which survives restarts."""
    return checkpoints.default_base(settings.home)


def _leave_errors_of_py4j_to_callers() -> None:
    """Keep Py4J from logging, with a traceback each, the errors that it raises; partly by the root logger.

    A signal for the whole group of processes ends Spark's Java, and that may be seen before the signal is.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _held(name: str, holder: str) -> Retryable:
    return Retryable(f"flow {name} is already run by {holder}: stop that process, or wait until it has ended")


def _is_dead(holder: str) -> bool:
    """Say whether a supervisor of this machine is gone."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
