"""All flows of a file under one roof: each its own query, which take turns, and none of which another can stop.

Before anything starts, everything is checked, held against other supervisors, and registered. Then one loop looks at
every query several times a second. What takes its time there, the start of a query for instance, must not make others
believe that we are gone: telling how the flows fare, and hearing which shall pause, has a thread of its own.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.engine import flow_calls
from penstock.engine.database import Database
from penstock.engine.flow_calls import Telling
from penstock.errors import InvalidFlows, InvalidInput, PenstockError, Retryable, SetupError, Unavailable
from penstock.pipeline import checking, checkpoints
from penstock.pipeline.enlisting import Enlister, Wishes
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection
from penstock.pipeline.loading import ship
from penstock.pipeline.running import BACKOFF_FIRST, Running, explain
from penstock.settings import Settings
from penstock.spark.signing import new_sign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICK = 0.1
_TELL_SECONDS = 1.0
_BEAT_SECONDS = 5.0


@dataclass
class Member:
    """A query of the supervisor, and at which level of the flows it stands: what it reads is made below.

    `taken_by` is another supervisor that holds the flow by now.
    """

    running: Running
    level: int
    told: Telling | None = None
    told_at: float = 0.0
    taken_by: str | None = None


class Supervisor:
    """Runs flows until it is told to stop, or with `once` until they have read what is there.

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
        self._wishes = Wishes(checkpoints or default_base(settings), once, frozenset(reset), backoff)
        self._echo = echo
        self._me = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._connection = Connection(settings.url, new_sign())
        self._database = Database(settings)
        self._ending = threading.Event()
        self._paused: set[str] = set()
        self._held: list[str] = []
        self.members: list[Member] = []

    def end(self) -> None:
        """Let it stop all queries and return; safe at any moment."""
        self._ending.set()
        # What Spark's other half says from now on is that it is gone.
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)

    def require_free(self) -> None:
        """Refuse flows that somebody else runs, and names and ends that contradict each other: before Spark starts."""
        checking.prepare(self.flows)
        for info in self._database.run(flow_calls.flows()):
            is_run = info.state in ("starting", "running", "backing off") and info.supervisor is not None
            if info.name in self._names and is_run and not _is_dead(info.supervisor or ""):
                raise _held(info.name, info.supervisor or "")

    def run(self, spark: "SparkSession", observe: Callable[[Sequence[Running]], None] | None = None) -> bool:
        """Run the flows; returns whether none of them failed."""
        done = threading.Event()
        teller = threading.Thread(target=self._tell_all, args=(done,), daemon=True)
        try:
            self._prepare(spark)
            self._paused = self._database.run(flow_calls.paused())
            teller.start()
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
            if teller.is_alive():
                teller.join()
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
        enlister = Enlister(spark, self._database, self._connection, self._wishes, self._echo)
        levels = checking.levels(self.flows)
        problems: list[str] = []
        for flow in self.flows:
            read = {queue for other in self.flows if other is not flow for queue in other.sources.values()}
            try:
                first, *copies = enlister.enlist(flow, made[flow.name], read)
            except InvalidInput as error:
                problems.append(str(error))
                continue
            self.members.append(Member(first, levels[flow.name]))
            self.members += [Member(copy, levels[flow.name] + 1) for copy in copies]
        if problems:
            raise InvalidFlows("\n".join(problems))

    def _hold(self, name: str) -> None:
        """Become the one who runs a flow, or refuse."""
        starting = Telling("starting")
        told = self._database.run(flow_calls.tell(name, self._me, starting))
        if told.holder != self._me and _is_dead(told.holder):
            told = self._database.run(flow_calls.tell(name, self._me, starting, take_over=True))
        if told.holder != self._me:
            raise _held(name, told.holder)
        self._held.append(name)

    def _release(self) -> None:
        """Say the last of every flow that was held: how it ended, or that it never began."""
        last = {member.running.name: member for member in self.members}
        for name in self._held:
            member = last.get(name)
            if member is not None and member.taken_by is not None:
                continue
            telling = Telling("stopped") if member is None else member.running.telling()
            if member is not None and member.told == telling and member.running.is_over:
                continue
            try:
                self._database.run(flow_calls.tell(name, self._me, telling))
            except Unavailable:
                return
            except PenstockError:
                continue

    def _loop(self, observe: Callable[[Sequence[Running]], None] | None) -> None:
        seen = 0.0
        while not self._ending.is_set():
            paused = self._paused
            # Who reads what is there and ends cannot wait for somebody to resume a flow.
            waiting = paused if self._wishes.once else set()
            levels = [m.level for m in self.members if not m.running.is_over and m.running.name not in waiting]
            for member in self.members:
                if self._ending.is_set():
                    return
                is_due = not self._wishes.once or (bool(levels) and member.level == min(levels))
                if is_due or member.running.name in paused:
                    self._tick(member, member.running.name in paused)
            if not levels:
                return
            if observe is not None and time.monotonic() - seen >= _TELL_SECONDS:
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

    def _tell_all(self, done: threading.Event) -> None:
        """Tell how the flows fare, at most once a second, and hear which shall pause."""
        heard = 0.0
        while not done.wait(_TICK):
            try:
                if time.monotonic() - heard >= _TELL_SECONDS:
                    self._paused, heard = self._database.run(flow_calls.paused()), time.monotonic()
            except PenstockError:
                # The database is away: the queries say so, and wait for it.
                done.wait(_TELL_SECONDS)
                continue
            for member in self.members:
                try:
                    self._tell(member)
                except Exception as error:
                    # Whatever cannot be told of one flow must not keep others from being heard of, nor from pausing.
                    member.told_at = time.monotonic()
                    if not isinstance(error, PenstockError):
                        self._echo(f"{member.running.name}: how it fares cannot be told: {explain(error)}")

    def _tell(self, member: Member) -> None:
        age = time.monotonic() - member.told_at
        telling = member.running.telling()
        known = None if member.told is None else member.told._replace(retry_at=telling.retry_at)
        # What is over is told once: by then somebody else may run it.
        beat = age >= _BEAT_SECONDS and not member.running.is_over
        if member.taken_by is not None or age < _TELL_SECONDS or (telling == known and not beat):
            return
        told = self._database.run(flow_calls.tell(member.running.name, self._me, telling))
        member.told, member.told_at = telling, time.monotonic()
        if told.holder != self._me:
            member.taken_by = told.holder

    def _stop(self) -> None:
        for member in self.members:
            try:
                member.running.stop()
            except (PySparkException, Py4JError, OSError) as error:
                if not self._ending.is_set():
                    self._echo(f"{member.running.name}: {explain(error)}")


def default_base(settings: Settings) -> str:
    """Return where checkpoints lie when nobody says: in a folder that survives restarts."""
    return checkpoints.default_base(settings.home)


def _held(name: str, holder: str) -> Retryable:
    return Retryable(f"flow {name} is run by {holder} already; stop that one, or wait until it is gone")


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
